"""Filters of collections, keys and times, over real sockets: what nodes send, what rows there are.

Without Spark: rounds in this process.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcp.client.addresses import NodeAddress
from dcp.errors import ConfigError
from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.receive.wanted_rows import WantedRows
from dcp.lake.rounds.round_plan import StreamPlan
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.protocol.events import SnapshotStarted
from dcp.protocol.position import Position
from dcp.types import SnapshotRange
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.columns import decode_columns
from dcp.wire.framing import FrameBlock
from dcp.wire.vocabulary import Datatype, Opcode, SnapshotFlag
from dcp.wire.xattr import join_xattrs
from tests.lake.receiving import RoundsInProcess, item_rows, settings_for

VBUCKETS = 4
KEYS = [b"key-%d" % number for number in range(12)]
MakeRounds = Callable[..., RoundsInProcess]


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=VBUCKETS)) as cluster:
        cluster.create_scope("s")
        cluster.create_scope("t")
        for scope, name in (("s", "c"), ("s", "d"), ("t", "c")):
            cluster.create_collection(scope, name)
            write(cluster, f"{scope}.{name}")
        write(cluster, "_default._default")
        yield cluster


def write(cluster: ProducerCluster, collection: str, keys: list[bytes] = KEYS) -> None:
    for key in keys:
        cluster.set(key, b'{"in": "%s"}' % collection.encode(), collection=collection)


@pytest.fixture
def make_rounds(cluster: ProducerCluster, tmp_path: Path) -> MakeRounds:
    def make(**rules: Any) -> RoundsInProcess:
        quick = {"quiet_seconds": 0.2}
        return RoundsInProcess(settings_for(cluster, tmp_path, filter=rules, round=quick))

    return make


def filter_anew(rounds: RoundsInProcess, **rules: Any) -> None:
    rounds.settings = replace(rounds.settings, filter=FilterSettings(**rules))


def found_in(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return collections and keys of the document rows."""
    return {(json.loads(row["value"])["in"], row["key"]) for row in item_rows(rows)}


def all_of(*collections: str, keys: list[bytes] = KEYS) -> set[tuple[str, str]]:
    return {(collection, key.decode()) for collection in collections for key in keys}


def require_all_read(rounds: RoundsInProcess, cluster: ProducerCluster) -> None:
    high = {vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}
    caught_up = {vb: state.caught_up_seqno for vb, state in rounds.states.items()}
    complete = {vb: state.complete_seqno for vb, state in rounds.states.items()}
    assert caught_up == high
    assert complete == high
    assert rounds.plan() is None, "it is idle"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"include_collections": ("s.c",)}, ("s.c",)),
        ({"include_collections": ("s.c", "t.c")}, ("s.c", "t.c")),
        ({"include_collections": ("s",)}, ("s.c", "s.d")),
        ({"include_collections": ("s", "t.c")}, ("s.c", "s.d", "t.c")),
        ({"exclude_collections": ("s.d", "_default")}, ("s.c", "t.c")),
    ],
)
def test_collections(
    make_rounds: MakeRounds,
    cluster: ProducerCluster,
    rules: dict[str, Any],
    expected: tuple[str, ...],
) -> None:
    rounds = make_rounds(**rules)
    assert found_in(rounds.run()) == all_of(*expected)
    require_all_read(rounds, cluster)
    write(cluster, "_default._default")  # nothing for us
    assert item_rows(rounds.run()) == []
    require_all_read(rounds, cluster)


def test_keys_and_times(make_rounds: MakeRounds, cluster: ProducerCluster) -> None:
    """Deletions too; a key that is no UTF-8 is looked at as it is written in ``key``."""
    rounds = make_rounds(include_keys="^(key-[0-4]$|\\\\x)", exclude_keys="-3")
    cluster.set(b"\xff1", b'{"in": "_default._default"}')
    cluster.delete(b"key-1")
    cluster.delete(b"key-9")
    rows = rounds.run()
    kept = [b"key-0", b"key-1", b"key-2", b"key-4"]
    everywhere = ("s.c", "s.d", "t.c", "_default._default")
    found = {(row["kind"], row["key"]) for row in item_rows(rows) if row["collection_id"] == 0}
    assert found == {
        ("deletion", "key-1"),
        ("mutation", "\\xff31"),
        *(("mutation", key.decode()) for key in kept if key != b"key-1"),
    }
    others = {(row["collection_id"], row["key"]) for row in item_rows(rows) if row["collection_id"]}
    assert len(others) == len(kept) * (len(everywhere) - 1)
    require_all_read(rounds, cluster)

    middle = datetime.now(UTC)
    filter_anew(rounds, since=middle.isoformat())
    write(cluster, "s.c", KEYS[:2])
    assert found_in(rounds.run()) == all_of("s.c", keys=KEYS[:2])
    assert {state.epoch for state in rounds.states.values()} == {1}
    require_all_read(rounds, cluster)


def test_a_version_with_an_older_cas_is_a_deletion_but_in_the_first_snapshot() -> None:
    """It may replace one in the table; in a first snapshot none, unless that repeats keys."""
    rules = FilterSettings(since="1970-01-01T00:00:01Z")
    wanted = DocumentFilter.resolve(rules, None)

    def passed(
        state: LakeVbucketState, *snapshots: tuple[int, int], flags: int = 0
    ) -> list[tuple[int, str, bytes]]:
        stream = StreamPlan(state, NodeAddress("host", 1), 9)
        rows = WantedRows(wanted, [stream])
        for start, end in snapshots:
            rows.learn(SnapshotStarted(1, SnapshotRange(start, end), flags))
        frames = FrameBlock.of(
            encode(
                m.Mutation(b"k%d" % seqno, b"{}", seqno, 1),
                Opcode.DCP_MUTATION,
                vbucket=1,
                cas=rules.since_ns + age,
            ).to_bytes()
            for seqno, age in ((4, -1), (5, 0), (8, -1), (9, 7))
        )
        found = rows.documents(decode_columns(frames, np.arange(4), collections=False))
        kinds = [Opcode(code).name.removeprefix("DCP_") for code in found.opcode.tolist()]
        return list(zip(found.seqno.tolist(), kinds, found.value.to_pylist(), strict=True))

    kept = [(5, "MUTATION", b"{}"), (9, "MUTATION", b"{}")]
    new = LakeVbucketState.beginning(1)
    assert passed(new, (0, 9)) == kept
    behind = (8, "DELETION", b"")
    first = (4, "DELETION", b"")
    for flag in (SnapshotFlag.HISTORY, SnapshotFlag.MAY_CONTAIN_DUPLICATES):
        assert passed(new, (0, 9), flags=flag | SnapshotFlag.DISK) == sorted([first, *kept, behind])
    assert passed(new, (0, 5), (6, 9)) == sorted([*kept, behind])
    in_first = replace(new, position=Position(7, 2, 0, 5, 0))
    assert passed(in_first, (6, 9)) == sorted([*kept, behind])
    whole = replace(new, position=Position.complete_at(7, 3))
    assert passed(whole, (4, 9)) == sorted([*kept, behind, first])


def test_what_is_of_couchbase_itself_is_left_out(
    make_rounds: MakeRounds, cluster: ProducerCluster
) -> None:
    """Documents of transactions, what they stage, and system xattrs; all are there if wanted."""
    bookkeeping = b"_txn:atr-0-#14"
    staged = '{"op":{"type":"replace","stgd":{"not":"committed"}}}'
    xattrs = [(b"_sync", b'"s"'), (b"mine", b"1"), (b"txn", staged.encode())]
    value = join_xattrs(xattrs, b'{"in": "s.c"}')
    datatype = int(Datatype.JSON | Datatype.XATTR)
    cluster.set(bookkeeping, b'{"in": "s.c"}', collection="s.c")
    cluster.set(b"with", value, datatype=datatype, collection="s.c")

    def found(rounds: RoundsInProcess) -> tuple[set[str], set[str | None]]:
        rows = item_rows(rounds.run())
        xattrs = {row["xattrs"] for row in rows if row["key"] == "with"}
        return {row["key"] for row in rows if row["key"].startswith("_")}, xattrs

    rounds = make_rounds()
    assert found(rounds) == (set(), {'{"mine":1}'})
    filter_anew(rounds, exclude_keys="", system_xattrs=True)
    assert found(rounds) == (
        {bookkeeping.decode()},
        {f'{{"_sync":"s","mine":1,"txn":{staged}}}'},
    )


@pytest.mark.parametrize(
    "rules", [{"include_collections": ("s",)}, {"exclude_collections": ("_default", "t")}]
)
def test_what_comes_into_a_scope_is_read_and_what_goes_is_told(
    make_rounds: MakeRounds, cluster: ProducerCluster, rules: dict[str, Any]
) -> None:
    rounds = make_rounds(**rules)
    assert found_in(rounds.run()) == all_of("s.c", "s.d")
    cluster.create_collection("s", "new")
    cluster.create_collection("t", "new")
    write(cluster, "s.new")
    write(cluster, "t.new")
    rows = rounds.run()
    assert found_in(rows) == all_of("s.new")
    cluster.drop_collection("s", "new")
    cluster.drop_collection("t", "new")
    rows += rounds.run()
    events = [json.loads(row["detail"]) for row in rows if row["kind"] == "system_event"]
    begun = {each["collection_id"] for each in events if each["event"] == "BEGIN_COLLECTION"}
    ended = {each["collection_id"] for each in events if each["event"] == "END_COLLECTION"}
    assert len(begun) == 1, "that of t.new is not told"
    assert begun < ended, "of t.new, which is in no manifest any more, nobody knows"
    assert {state.epoch for state in rounds.states.values()} == {0}
    require_all_read(rounds, cluster)


def test_a_collection_made_anew_is_read_on(
    make_rounds: MakeRounds, cluster: ProducerCluster
) -> None:
    """It has a new id, and is told by name in the streams."""
    rounds = make_rounds(include_collections=("s.c", "s.d"))
    rounds.run()
    cluster.drop_collection("s", "d")
    cluster.create_collection("s", "d")
    write(cluster, "s.d", KEYS[:3])
    assert found_in(rounds.run()) == all_of("s.d", keys=KEYS[:3])
    assert {state.epoch for state in rounds.states.values()} == {0}
    require_all_read(rounds, cluster)


def test_another_filter_reads_anew_once(make_rounds: MakeRounds, cluster: ProducerCluster) -> None:
    rounds = make_rounds()
    rounds.run()
    filter_anew(rounds, include_collections=("t",))
    assert found_in(rounds.run()) == all_of("t.c")
    require_all_read(rounds, cluster)
    filter_anew(rounds)
    assert found_in(rounds.run()) == all_of("s.c", "s.d", "t.c", "_default._default")
    assert {state.epoch for state in rounds.states.values()} == {2}
    require_all_read(rounds, cluster)


def test_a_lake_that_starts_now_has_what_changes_then(
    make_rounds: MakeRounds, cluster: ProducerCluster
) -> None:
    """However it is read again; another start is another filter."""
    rounds = make_rounds(since="now")
    assert item_rows(rounds.run()) == []
    starts = {vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}
    assert {vb: state.start_seqno for vb, state in rounds.states.items()} == starts
    require_all_read(rounds, cluster)
    write(cluster, "s.c", KEYS[:3])
    cluster.delete(KEYS[3])
    changed = all_of("s.c", keys=KEYS[:3])
    rows = item_rows(rounds.run())
    assert {row["key"] for row in rows if row["kind"] == "deletion"} == {"key-3"}
    assert found_in([{**row} for row in rows if row["kind"] == "mutation"]) == changed
    require_all_read(rounds, cluster)

    filter_anew(rounds, since="now", include_collections=("s",))
    assert found_in(rounds.run()) == changed
    assert {state.epoch for state in rounds.states.values()} == {1}
    filter_anew(rounds, include_collections=("s",))
    assert found_in(rounds.run()) == all_of("s.c", "s.d")
    filter_anew(rounds, since="now")
    with pytest.raises(ConfigError, match=r"found now, and lake .* has read vbuckets from"):
        rounds.plan()


def test_an_idle_filtered_vbucket_meets_no_rollback_to_0(
    make_rounds: MakeRounds, cluster: ProducerCluster
) -> None:
    """It stands where the vbucket stands, however long nothing of its own was changed."""
    rounds = make_rounds(include_collections=("s.c",))
    rounds.run()
    for key in KEYS:
        cluster.delete(key)
    rounds.run()
    for vbucket in range(VBUCKETS):
        assert cluster.purge_tombstones(vbucket) > 0
    write(cluster, "_default._default")
    rows = rounds.run()
    assert [row for row in rows if row["kind"] == "rollback"] == []
    assert item_rows(rows) == []
    require_all_read(rounds, cluster)

"""The parts of a verification that need no Spark; the streams are real."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer

from dcp.cli.options.values import vbucket_ranges
from dcp.errors import IncompleteRunError, VerifyError
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import LeftOut, RoundPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.tables.lake_tables import DOCS, ReplicaTable
from dcp.lake.verify.compare import Digests, differing_vbuckets
from dcp.lake.verify.frames import (
    DIFFERS,
    IN_REPLICA_ONLY,
    pins_table,
    unpinned_vbuckets,
)
from dcp.lake.verify.keys import undecidable
from dcp.lake.verify.report import Difference, KeyState, TableCompared, VerifyReport
from dcp.lake.verify.stream import SOURCE_ROWS, StreamEnding, metadata_access, read_function
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.records import read
from dcp.types import U64_MAX
from tests.lake.receiving import SMALL_FLOW, settings_for

VBUCKETS = 4
ODD_KEYS = (b"\xff\xfe", b"\\x41", b"nul\0key")


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    settings = ClusterSettings(
        nodes=2,
        vbuckets=VBUCKETS,
        replicas=1,
        seed=3,
        checkpoint_items=50,
        last_words_seconds=60.0,  # after a cut, a slow machine also reads what was sent
    )
    with ProducerCluster(settings) as cluster:
        yield cluster


def stream(
    cluster: ProducerCluster, folder: Path, on_plan: Callable[[RoundPlan], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Read all vbuckets in one task, as an executor does; return its rows."""
    settings = settings_for(cluster, folder, flow_control=SMALL_FLOW)
    access = metadata_access(source_access(settings))
    plan = plan_round(
        LakeState("lake", 0), query_cluster(access), settings.round, settings.flow_control, 1
    )
    assert isinstance(plan, RoundPlan)
    on_plan(plan)
    read = read_function("0123456789abcdef", plan.tasks, access)
    batches = list(read(iter([pa.record_batch({"id": [0]})])))
    assert all(batch.schema == SOURCE_ROWS for batch in batches)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return rows


def test_a_task_reads_keys_seqnos_and_cas_of_whole_vbuckets(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    cluster.start_vbucket_at(0, seqno=2**63 + 7, cas=2**63 + 2**62)
    for key in (*ODD_KEYS, *(b"key-%d" % number for number in range(200))):
        cluster.set(key, bytes(10_000))
    deleted = cluster.delete(b"key-9")
    cluster.wait_until_replicated()  # which counts, too
    sent_before = cluster.counters().bytes_sent
    rows = stream(cluster, tmp_path)
    assert cluster.counters().bytes_sent - sent_before < 100_000
    endings = {row["vbucket"]: row["ending"] for row in rows if row["ending"] is not None}
    assert [read(StreamEnding, json.loads(text)) for v, text in sorted(endings.items())] == [
        StreamEnding(vbucket) for vbucket in range(VBUCKETS)
    ]
    items = [row for row in rows if row["ending"] is None]
    assert {row["collection_id"] for row in items} == {0}
    assert [(row["key"], int(row["seqno"])) for row in items if row["deleted"]] == [
        ("key-9", deleted.seqno)
    ]
    # Whether the deleted key's mutation comes too depends on where its checkpoint ended.
    newest = {row["key"]: row for row in sorted(items, key=lambda row: int(row["seqno"]))}
    for vbucket in range(VBUCKETS):
        held = cluster.state_at(vbucket, cluster.high_seqno(vbucket))
        found = sorted(
            (int(row["seqno"]), int(row["cas"]))
            for row in newest.values()
            if row["vbucket"] == vbucket and not row["deleted"]
        )
        assert found == sorted((each.seqno, each.cas) for each in held.values())
    assert {"\\xfffe", "\\x5c783431", "nul\0key"} < {row["key"] for row in items}


def test_a_task_says_which_vbuckets_it_could_not_read(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    for number in range(300):
        cluster.set(b"key-%d" % number, b"{}")
    cluster.snapshot_cut_after(20)
    cluster.refuse_stream(2, 0x04, times=10**6)  # type: ignore[arg-type]
    rows = stream(cluster, tmp_path)
    endings = [
        read(StreamEnding, json.loads(row["ending"])) for row in rows if row["ending"] is not None
    ]
    failed = [each for each in endings if each.reason]
    assert [(each.vbucket, each.reason) for each in failed] == [(2, "refused")]
    assert "EINVAL" in failed[0].detail
    for vbucket in (0, 1, 3):  # one was cut, and went on where it stood: nothing comes twice
        seqnos = [int(row["seqno"]) for row in rows if row["vbucket"] == vbucket and row["seqno"]]
        assert seqnos == list(range(1, cluster.high_seqno(vbucket) + 1))


def test_what_has_no_node_when_a_look_is_planned_is_not_read_in_it(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    """Even if it has one by then: it was reported as not compared."""
    with cluster.batch():
        for number in range(4000):
            cluster.set(b"key-%d" % number, b"{}")
    planned = {vb for vb in range(VBUCKETS) if cluster.vbucket_owner(vb) == 0}
    cluster.kill_node(1)
    rows = stream(cluster, tmp_path, on_plan=lambda _: cluster.failover(1))
    assert {row["vbucket"] for row in rows} == planned


OTHER = ReplicaTable("docs__s__c__8", 8)
PINS = {DOCS: {0: 10, 1: U64_MAX}, OTHER: {0: 0}}


def test_pins_keep_all_64_bits() -> None:
    rows = pins_table(PINS).to_pylist()
    assert [(r["collection_id"], r["vbucket"], int(r["complete_seqno"])) for r in rows] == [
        (0, 0, 10),
        (0, 1, U64_MAX),
        (8, 0, 0),
    ]
    assert pins_table({}).num_rows == 0


def test_what_has_no_pin_is_told() -> None:
    wanted = {DOCS: {0, 1}, OTHER: {0, 1}}
    assert [(left.vbucket, left.reason) for left in unpinned_vbuckets(wanted, PINS)] == [
        (1, "stale")
    ]


ONE = (1, 5, 5)


@pytest.mark.parametrize(
    ("found", "held", "differing"),
    [
        ({}, {}, set()),
        ({(0, 0): ONE}, {(0, 0): ONE}, set()),
        ({(0, 0): ONE}, {}, {0}),
        ({}, {(0, 1): ONE}, {1}),
        ({(0, 0): ONE}, {(0, 0): (1, 5, 4)}, {0}),
        ({(0, 0): ONE}, {(0, 0): (1, 4, 5)}, {0}),
        ({(0, 0): ONE}, {(0, 0): (2, 5, 5)}, {0}),
        ({(0, 0): ONE, (8, 0): ONE}, {(0, 0): ONE}, {0}),
        ({(8, 1): ONE, (9, 0): ONE}, {(8, 2): ONE}, set()),  # not pinned
    ],
)
def test_vbuckets_differ_by_their_digests(
    found: Digests, held: Digests, differing: set[int]
) -> None:
    assert differing_vbuckets(PINS, found, held) == differing


def test_a_missing_key_proves_nothing_where_its_deletion_may_be_forgotten() -> None:
    endings = [StreamEnding(0, purge_seqno=11), StreamEnding(1, purge_seqno=U64_MAX)]
    everywhere = [(0, 0), (0, 1), (8, 0), (8, 1)]
    found = undecidable(everywhere, endings, PINS)
    assert [(left.vbucket, left.reason) for left in found] == [(0, "deletions purged")] * 2
    assert "up to seqno 11, above 10, where docs stands" in found[0].detail
    assert "above 0, where docs__s__c__8 stands" in found[1].detail
    assert undecidable([(0, 1), (8, 1)], endings, PINS) == []
    assert undecidable(everywhere, [StreamEnding(0, purge_seqno=10)], {DOCS: PINS[DOCS]}) == []
    assert undecidable(everywhere, [], PINS) == []


def test_ranges_of_vbuckets() -> None:
    assert vbucket_ranges("0-3,7,2") == {0, 1, 2, 3, 7}
    for text in ("", "a", "3-1", "-1", "1-", "1--2", "70000", "1,,2", "\u0661", "1" * 5000):
        with pytest.raises(typer.BadParameter, match="expected"):
            vbucket_ranges(text)


def report(
    counts: dict[str, int], keys: tuple[Difference, ...] = (), *not_compared: LeftOut
) -> VerifyReport:
    tables = (TableCompared("docs", 3, 2, 1000),)
    return VerifyReport("/lake", "id", tables, 8, 4, counts, keys, not_compared, (), {}, 1.5)


DOWN = (LeftOut(4, "node unreachable", "b:1: gone"), LeftOut(5, "node unreachable", "b:1: gone"))


def test_an_equal_lake_is_no_error() -> None:
    found = report({DIFFERS: 0})
    assert (found.result, found.error()) == ("equal", None)
    assert str(found).splitlines()[0] == "docs: version 3 (round 2), 1,000 documents"


def test_what_could_not_be_compared_is_an_error() -> None:
    found = report({}, (), *DOWN)
    error = found.error()
    assert isinstance(error, IncompleteRunError)
    assert error.exit_code == 5
    assert "vbuckets 4-5 were not compared" in str(error)
    assert "  not compared: vbuckets 4-5: node unreachable (b:1: gone)" in str(found)
    assert found.to_json()["result"] == "incomplete"


def test_a_difference_says_both_sides_and_weighs_more() -> None:
    key = Difference(
        "docs", 1, "k", DIFFERS, KeyState(U64_MAX, 2**63), KeyState(5, 6, deleted=True)
    )
    missing = Difference("docs", 2, "only", IN_REPLICA_ONLY, KeyState(1, 2), None)
    found = report({DIFFERS: 1, IN_REPLICA_ONLY: 11}, (key, missing), *DOWN)
    error = found.error()
    assert isinstance(error, VerifyError)
    assert error.exit_code == 10
    assert str(error) == ("found 12 keys that differ (1 different, 11 in replica only), expected 0")
    assert (
        "  docs vbucket 1 key 'k': different; replica: seqno 18446744073709551615 cas "
        "9223372036854775808; source: deleted at seqno 5 cas 6"
    ) in str(found)
    assert "source: nothing" in str(found)
    assert "  … and 10 more keys" in str(found)
    told = json.loads(json.dumps(found.to_json()))
    assert told["keys"][0]["replica"]["seqno"] == U64_MAX
    assert told["keys"][1]["source"] is None
    assert (told["result"], told["differing"]) == ("different", 12)

"""Verifications against the real producer: what they find, and what they let pass.

The tests share one lake, which is as they found it when they end; the cluster may have moved on
meanwhile, which a verification must let pass.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dcp.cli.main import main
from dcp.lake.adapters.opening import lake_location
from dcp.lake.config.settings import Settings
from dcp.lake.rounds.observer import RoundProgress
from dcp.lake.run.replicate import run
from dcp.lake.spark.beside import session_beside
from dcp.lake.tables.lake_tables import DOCS, ReplicaTable, ensure_replicas
from dcp.lake.tables.schema import REPLICA
from dcp.lake.verify.compare import verify
from dcp.lake.verify.frames import (
    DIFFERS,
    IN_REPLICA_ONLY,
    IN_SOURCE_ONLY,
    REPEATED,
    differences,
)
from dcp.lake.verify.report import VerifyReport
from dcp.lake.verify.stream import SOURCE_ROWS
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype
from dcp.wire.xattr import join_xattrs
from tests.lake.commits_by_hand import put_rows, write_to_disk
from tests.lake.memory_store import MemoryStore
from tests.lake.receiving import (
    PASSWORD_FILE,
    QUICK_ROUND,
    QUICK_SOURCE,
    USER,
    lake_of,
    settings_for,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
VBUCKETS = 4
DOCUMENTS = 300
VALUE_BYTES = 5_000
ODD_KEYS = (b"\xff\xfe", b"\\x41", b"nul\0key")
ODD_VALUES = (
    (b"{}", 0),
    (join_xattrs([(b"_sys", b"1")], b"{}"), int(Datatype.XATTR)),
    (deflate(b"{}" * 100), int(Datatype.SNAPPY)),
)
REPLICA_COLUMNS = ("collection_id", "vbucket", "key", "seqno", "cas")


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class World:
    """A bucket and its lake, which is in memory."""

    cluster: ProducerCluster
    settings: Settings
    store: MemoryStore
    folder: Path

    def verify(self, settings: Settings | None = None, **options: Any) -> VerifyReport:
        """Verify the lake, perhaps by the settings of another bucket."""
        with in_memory(self.store):
            return verify(settings or self.settings, **options)

    @contextmanager
    def tampered(self, tamper: Callable[[Rows], Rows]) -> Iterator[None]:
        """Change the replica's rows by hand, and take that back in the end."""
        docs = self.store.table("docs")
        before = docs.kept.newest
        docs.delete(None, {})
        docs.append(pa.Table.from_pylist(tamper(before.rows.to_pylist()), REPLICA), {})
        try:
            yield
        finally:
            docs.restore(before.number)


@contextmanager
def in_memory(store: MemoryStore) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dcp.lake.adapters.opening.SparkStore", lambda *_: store)
        yield


def write(cluster: ProducerCluster, count: int) -> None:
    """Write documents, keys that are no STRING and values of each datatype, and delete one."""
    with cluster.batch():
        for number in range(count):
            cluster.set(b"key-%d" % number, b"v" * VALUE_BYTES)
        for key, (value, datatype) in zip(ODD_KEYS, ODD_VALUES, strict=True):
            cluster.set(key, value, datatype=datatype)
        cluster.set(b"deleted", b"{}")
        cluster.delete(b"deleted")


def cluster_settings() -> ClusterSettings:
    """Settings with which the same writes give the same history: no clock, no randomness."""
    return ClusterSettings(nodes=2, vbuckets=VBUCKETS, seed=11, clock=lambda: 1.7e9)


def start_beyond_signed(cluster: ProducerCluster) -> None:
    cluster.start_vbucket_at(0, seqno=2**63 + 7, cas=2**63 + 2**62)


@pytest.fixture(scope="module")
def world(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("verify")
    with ProducerCluster(cluster_settings()) as cluster:
        start_beyond_signed(cluster)
        write(cluster, DOCUMENTS)
        settings = settings_for(cluster, folder, source=QUICK_SOURCE, round=QUICK_ROUND)
        store = MemoryStore()
        with in_memory(store):
            run(settings, once=True)
            ensure_replicas(lake_of(settings), [ReplicaTable("docs__s__dropped__8", 8)])
        store.viewer = session_beside(spark)
        yield World(cluster, settings, store, folder)


C = 2**63 + 100
PINNED = {DOCS: {0: C, 1: 5}, ReplicaTable("docs__s__c__8", 8): {0: C}}
CASES: dict[str, tuple[list[tuple[int, int, bool]], list[tuple[int, int]], str | None]] = {
    "the same": ([(C, 7, False)], [(C, 7)], None),
    "changed twice": ([(3, 1, False), (C, 7, False)], [(C, 7)], None),
    "another cas": ([(C, 2**64 - 1, False)], [(C, 2**64 - 2)], DIFFERS),
    "another seqno": ([(C - 1, 7, False)], [(C, 7)], DIFFERS),
    "ahead of its pin": ([(C, 7, False)], [(C + 1, 7)], DIFFERS),
    "not in the replica": ([(C, 7, False)], [], IN_SOURCE_ONLY),
    "not in the source": ([], [(C, 7)], IN_REPLICA_ONLY),
    "deleted long ago": ([(C, 7, True)], [(C - 1, 7)], IN_REPLICA_ONLY),
    "deleted on both sides": ([(C, 7, True)], [], None),
    "made and deleted": ([(C - 1, 7, False), (C, 8, True)], [], None),
    "changed just now": ([(C, 7, False), (C + 1, 8, False)], [(C, 7)], None),
    "deleted just now": ([(C + 1, 8, True)], [(C, 7)], None),
    "made just now": ([(C + 1, 8, False)], [], None),
    "created again just now": ([(C + 1, 8, False)], [(3, 3)], None),
    "twice": ([(C, 7, False)], [(C, 7), (C, 7)], REPEATED),
    "twice, and changed just now": ([(C + 1, 8, False)], [(C, 7), (C, 7)], REPEATED),
}
"""By key: what the source sends (seqno, cas, deleted), what a replica holds, what differs."""


def rows_of_source(collection: int, vbucket: int) -> list[dict[str, object]]:
    return [
        {
            "collection_id": collection,
            "vbucket": vbucket,
            "key": key,
            "seqno": Decimal(seqno),
            "cas": Decimal(cas),
            "deleted": deleted,
        }
        for key, (sent, _, _) in CASES.items()
        for seqno, cas, deleted in sent
    ]


def rows_of_replica(collection: int, vbucket: int) -> list[dict[str, object]]:
    return [
        {
            "collection_id": collection,
            "vbucket": vbucket,
            "key": key,
            "seqno": Decimal(seqno),
            "cas": Decimal(cas),
        }
        for key, (_, held, _) in CASES.items()
        for seqno, cas in held
    ]


def test_what_is_a_difference(spark: "SparkSession") -> None:
    """In each of two collections for itself; vbucket 2, and vbucket 1 of one, have no pin."""
    sent = rows_of_source(0, 0) + rows_of_source(0, 2) + rows_of_source(8, 1)
    sent += [{"vbucket": 0, "ending": "ending of 0"}, {"vbucket": 2, "ending": "ending of 2"}]
    held = [*rows_of_replica(0, 0), *rows_of_replica(0, 2)]
    held += [row | {"collection_id": 8} for row in rows_of_replica(0, 0)]
    narrow = pa.schema([SOURCE_ROWS.field(n) for n in REPLICA_COLUMNS])
    source = spark.createDataFrame(pa.Table.from_pylist(sent, schema=SOURCE_ROWS))
    replica = spark.createDataFrame(pa.Table.from_pylist(held, schema=narrow))
    found = differences(source, replica, PINNED).collect()
    assert {row["ending"] for row in found if row["kind"] == "ending"} == {
        "ending of 0",
        "ending of 2",
    }
    kinds = {(row["collection_id"], row["vbucket"], row["key"]): row["kind"] for row in found}
    assert {key[2]: kind for key, kind in kinds.items() if key[:2] == (0, 0)} == {
        key: kind for key, (_, _, kind) in CASES.items() if kind
    }
    assert {key[2]: kind for key, kind in kinds.items() if key[0] == 8} == {
        key: REPEATED if len(held) > 1 else IN_REPLICA_ONLY
        for key, (_, held, _) in CASES.items()
        if held
    }
    assert {key[:2] for key in kinds} == {(0, 0), (8, 0), (None, 0), (None, 2)}


class Hooks:
    """Does something when a look begins or ends, and remembers the looks."""

    def __init__(
        self,
        begin: Callable[[int], object] = lambda _: None,
        end: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.looks: list[tuple[str, int]] = []
        self.seqnos: list[int] = []
        self._begin = begin
        self._end = end

    @contextmanager
    def __call__(
        self, pass_name: str, vbuckets: int, _: int, progress: RoundProgress | None
    ) -> Iterator[None]:
        self.looks.append((pass_name, vbuckets))
        self._begin(len(self.looks))
        try:
            yield
        finally:
            if progress is not None:
                self.seqnos.append(progress.total().seqnos)
            self._end(len(self.looks))


def key_in(cluster: ProducerCluster, vbucket: int, number: int = 0) -> str:
    keys = (f"key-{n}" for n in range(DOCUMENTS))
    return [key for key in keys if cluster.vbucket_of(key.encode()) == vbucket][number]


def test_an_equal_lake_takes_one_look_without_values(world: World) -> None:
    hooks = Hooks()
    sent_before = world.cluster.counters().bytes_sent
    found = world.verify(show_pass=hooks)
    assert world.cluster.counters().bytes_sent - sent_before < DOCUMENTS * VALUE_BYTES / 10
    assert (found.result, found.suspects, found.differing) == ("equal", 0, 0)
    assert found.error() is None
    assert [(each.table, each.round, each.documents) for each in found.tables] == [
        ("docs", 1, DOCUMENTS + len(ODD_KEYS)),
        ("docs__s__dropped__8", 0, 0),  # it must be empty
    ]
    assert (found.vbuckets, found.dropped) == (VBUCKETS, ("docs__s__dropped__8",))
    assert hooks.looks == [("comparing", VBUCKETS)]
    assert hooks.seqnos[0] > DOCUMENTS


def test_changes_by_hand_are_found_key_by_key(
    world: World, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    """In Delta's files, and by the command."""
    location = lake_location(world.settings)
    write_to_disk(world.store, location)
    changed, missing, renamed, doubled = (key_in(world.cluster, 0, n) for n in range(4))

    def tamper(rows: Rows) -> Rows:
        by_key = {row["key"]: row for row in rows}
        del by_key[missing]
        by_key[changed]["cas"] += 1
        by_key[renamed]["key"] = "extra"
        return [*by_key.values(), by_key[doubled]]

    rows = world.store.table("docs").kept.newest.rows.to_pylist()
    put_rows(location.path("docs"), pa.Table.from_pylist(tamper(rows), REPLICA))
    hooks = Hooks()
    found = verify(world.settings, spark=spark, show_pass=hooks)
    config = world.folder / "dcplake.toml"
    seeds = ", ".join(f'"{seed}"' for seed in world.cluster.seeds)
    config.write_text(
        f'[source]\nseeds = [{seeds}]\nusername = "{USER}"\n'
        f'password_file = "{world.folder / PASSWORD_FILE}"\n'
        f'[lake]\nroot = "{location}"\n'
    )
    words = ["verify", "--config", str(config), "--vbuckets", "0-1", "--keys", "2", "--json"]
    assert main(words) == 10
    assert main([*words, "--vbuckets", "1-2"]) == 0
    assert hooks.looks == [("comparing", VBUCKETS), *[("looking closer", 1)] * 2]
    assert {(each.key, each.kind) for each in found.keys} == {
        (changed, DIFFERS),
        (missing, IN_SOURCE_ONLY),
        (renamed, IN_SOURCE_ONLY),
        ("extra", IN_REPLICA_ONLY),
        (doubled, REPEATED),
    }
    assert found.counts == {DIFFERS: 1, IN_SOURCE_ONLY: 2, IN_REPLICA_ONLY: 1, REPEATED: 1}
    held = world.cluster.state_at(0, world.cluster.high_seqno(0))
    by_key = {each.key: each for each in found.keys}
    wrong, right = by_key[changed], held[changed.encode()]
    assert wrong.source is not None and wrong.replica is not None
    assert (wrong.source.seqno, wrong.source.cas) == (right.seqno, right.cas)
    assert (wrong.replica.seqno, wrong.replica.cas) == (right.seqno, right.cas + 1)
    assert right.seqno > 2**63
    assert by_key[missing].replica is None
    assert by_key["extra"].source is None
    captured = capsys.readouterr()
    told, again = map(json.loads, captured.out.splitlines())
    assert (told["result"], told["differing"], len(told["keys"])) == ("different", 5, 2)
    assert told["keys"] == [each.to_json() for each in found.keys[:2]]
    assert (again["result"], again["vbuckets"]) == ("equal", 2)
    assert '"message":"found 5 keys that differ' in captured.err


def test_a_change_that_was_taken_back_meanwhile_is_none(world: World) -> None:
    """The third look is at the newest version."""
    key = key_in(world.cluster, 1)

    def tamper(rows: Rows) -> Rows:
        return [row | {"seqno": row["seqno"] + (row["key"] == key)} for row in rows]

    with ExitStack() as until_taken_back:
        until_taken_back.enter_context(world.tampered(tamper))

        def take_back(look: int) -> None:
            if look == 2:
                until_taken_back.close()

        found = world.verify(show_pass=Hooks(end=take_back))
    assert (found.result, found.suspects, found.differing) == ("equal", 1, 0)


def test_what_changes_meanwhile_and_what_waits_is_no_difference(world: World) -> None:
    def change(look: int) -> None:
        with world.cluster.batch():
            for number in range(DOCUMENTS // 2):
                world.cluster.set(b"key-%d" % number, b"changed at look %d" % look)
            world.cluster.set(b"new at look %d" % look, b"{}")
            world.cluster.delete(b"key-%d" % (DOCUMENTS - 1 - look))

    change(0)  # waits for a run
    hooks = Hooks(begin=change)
    found = world.verify(show_pass=hooks)
    assert (found.result, found.suspects) == ("equal", 0)
    assert len(hooks.looks) == 2, "the vbuckets must have been looked at key by key"


def test_a_dead_node_makes_the_result_incomplete(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that dies while it is read."""
    owned = [v for v in range(VBUCKETS) if world.cluster.vbucket_owner(v) == 1]
    try:
        found = world.verify(show_pass=Hooks(begin=lambda _: world.cluster.kill_node(1)))
        assert [left.vbucket for left in found.not_compared] == owned
        assert {left.reason for left in found.not_compared} == {"node unavailable"}
        found = world.verify()
    finally:
        world.cluster.restore_node(1)
    assert [left.vbucket for left in found.not_compared] == owned
    assert {left.reason for left in found.not_compared} == {"node unreachable"}
    assert (found.result, found.vbuckets) == ("incomplete", VBUCKETS - len(owned))
    error = found.error()
    assert error is not None and error.exit_code == 5


def test_rows_of_a_branch_that_the_source_lost_are_a_difference(
    world: World, tmp_path: Path
) -> None:
    """The same history, but for its end: a failover lost that, and nothing was run since."""
    with ProducerCluster(cluster_settings()) as promoted:
        start_beyond_signed(promoted)
        with promoted.batch():
            for number in range(DOCUMENTS - 2):
                promoted.set(b"key-%d" % number, b"v" * VALUE_BYTES)
        found = world.verify(settings_for(promoted, tmp_path), keys=100)
    lost = {f"key-{n}" for n in (DOCUMENTS - 2, DOCUMENTS - 1)}
    assert {each.kind for each in found.keys} == {IN_REPLICA_ONLY}
    assert {each.key for each in found.keys} == lost | {"\\xfffe", "\\x5c783431", "nul\0key"}
    assert found.differing == len(found.keys)
    assert found.result == "different"


@pytest.mark.parametrize(
    "release",
    [
        pytest.param((6, 0), id="knows no other flag"),
        pytest.param((7, 2), id="right of keys alone"),
        pytest.param((8, 0), id="makes metadata up"),
    ],
)
def test_what_left_memory_is_equal_on_servers_of_each_kind(
    world: World, tmp_path: Path, release: tuple[int, int]
) -> None:
    """The same history, of which each node reads its disk."""
    rules = replace(cluster_settings(), rules="server", release=release)
    with ProducerCluster(rules) as cluster:
        start_beyond_signed(cluster)
        write(cluster, DOCUMENTS)
        for vbucket in cluster.bucket.vbuckets:
            vbucket.data.checkpoints.expel()
        found = world.verify(settings_for(cluster, tmp_path))
        sent_bytes = cluster.counters().bytes_sent
    assert found.result == "equal", str(found)
    assert found.suspects == 0, "seen at the first look"
    assert sent_bytes < DOCUMENTS * VALUE_BYTES / 4, "without values"

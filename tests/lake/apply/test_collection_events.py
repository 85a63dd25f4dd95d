"""Flushes and drops of collections, from a real producer to the replicas, views and verify."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from dcp.errors import ConfigError, VerifyError
from dcp.lake.apply import merge_plan, slice_reader
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.collection_events import dropped_policies, kept_vbuckets
from dcp.lake.change_log.control import RequestAction
from dcp.lake.config.settings import (
    ApplySettings,
    ApplyWhen,
    DroppedPolicy,
    PolicySettings,
    RollbackPolicy,
    Settings,
)
from dcp.lake.query.cuts import find_cut
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import Idle, LeftOut, RoundPlan
from dcp.lake.run.control_requests import ask
from dcp.lake.run.driver import Driver
from dcp.lake.run.preview import preview
from dcp.lake.run.replicate import apply_pending, run
from dcp.lake.tables.lake_tables import DOCS, LakeTables, ReplicaTable, replicas_in
from dcp.lake.tables.schema import RowKind, is_kind
from dcp.lake.verify.compare import verify
from dcp.lake.verify.report import VerifyReport
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.query.test_cookbook import RECIPES
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import asked
from tests.lake.versions import version_in

pytestmark = pytest.mark.timeout(900)

VBUCKETS = 4
KEYS = [b"key-%d" % number for number in range(20)]


@dataclass
class World:
    """A bucket with the collection ``s.c``, and its lake in memory, which Spark can ``view``."""

    view: Callable[[LakeTables], None]
    cluster: ProducerCluster
    settings: Settings

    def make(self, name: str) -> None:
        self.cluster.create_collection("s", name)

    def write(self, keys: list[bytes], collection: str = "c") -> None:
        with self.cluster.batch():
            for key in keys:
                self.cluster.set(
                    key, b'{"in": "%s"}' % collection.encode(), collection=f"s.{collection}"
                )

    def run(self) -> None:
        run(self.settings, once=True)

    def verify(self) -> VerifyReport:
        self.view(self.lake)
        return verify(self.settings)

    @property
    def lake(self) -> LakeTables:
        return lake_of(self.settings)

    def replica(self, name: str = "c") -> ReplicaTable:
        """The newest replica of that name, of a collection that exists or existed."""
        found = [
            each for each in replicas_in(self.lake) if each.name.startswith(f"docs__s__{name}")
        ]
        return max(found, key=lambda each: each.collection_id)

    def keys(self, view: str) -> set[bytes]:
        """The keys in a table, as other engines see them, or in a view."""
        lake = self.lake
        if view in {replica.name for replica in replicas_in(lake)}:
            return {key.encode() for key in version_in(lake, view)["key"].to_pylist()}
        found = self.sql(f"SELECT key FROM {view}")
        return {row["key"].encode() for row in found}

    def dropped(self) -> dict[str, tuple[int, int, bool]]:
        """By table, the drop's first round, its vbuckets, and whether rows stay."""
        return {
            row["table"]: (row["dropped_in_round"], row["vbuckets"], row["keeps_rows"])
            for row in self.sql("SELECT * FROM dropped_collections")
        }

    def sql(self, query: str) -> list[dict[str, Any]]:
        """What Spark finds in the tables and views as they are now."""
        lake = self.lake
        self.view(lake)
        rows: list[dict[str, Any]] = asked(lake, query, replicas_in(lake)).to_pylist()
        return rows


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest, lakes_in_memory: None) -> Iterator[World]:
    """On one node; on two, where a test says so, the second of which has the vbuckets 2 and 3."""
    nodes = getattr(request, "param", 1)

    def view(lake: LakeTables) -> None:
        request.getfixturevalue("view")(lake)

    chosen_cluster = ClusterSettings(nodes=nodes, vbuckets=VBUCKETS, replicas=nodes - 1, seed=5)
    with ProducerCluster(chosen_cluster) as cluster:
        settings = settings_for(
            cluster, tmp_path, round={"quiet_seconds": 0.2}, apply={"when": "every_round"}
        )
        cluster.create_scope("s")
        found = World(view, cluster, settings)
        found.make("c")
        yield found


def flush(world: World) -> None:
    world.cluster.flush_collection("s", "c")


def drop(world: World) -> None:
    world.cluster.drop_collection("s", "c")


@pytest.mark.slow
def test_a_cut_shows_no_row_that_a_flush_ended(world: World) -> None:
    """Before the apply, only the empty table of the beginning holds the round of the flush."""
    world.write(KEYS)
    world.run()
    table = world.replica().name
    before = find_cut(world.lake)
    assert version_in(world.lake, table, before.versions[table])["key"].to_pylist() != []

    flush(world)
    world.settings = replace(world.settings, apply=ApplySettings(when=ApplyWhen.NEVER))
    world.run()
    assert world.keys(table) == set(KEYS)
    cut = find_cut(world.lake)
    assert cut.round == before.round + 1
    assert version_in(world.lake, table, cut.versions[table])["key"].to_pylist() == []


@pytest.mark.slow
def test_a_flush_takes_effect_everywhere_with_the_snapshot_that_carries_it(world: World) -> None:
    world.write(KEYS)
    world.run()
    table = world.replica().name
    assert world.keys(table) == set(KEYS)

    flush(world)
    world.write(KEYS[:1])
    world.settings = replace(world.settings, apply=ApplySettings(when=ApplyWhen.NEVER))
    world.run()
    assert world.keys(table) == set(KEYS)
    assert world.keys(table.replace("docs", "docs_live")) == set(KEYS[:1])

    nowhere = replace(world.settings.source, seeds=("127.0.0.1:1",))
    without_cluster = replace(world.settings, source=nowhere)
    made = apply_pending(without_cluster, observer=Observer())
    assert [version.table for version in made] == [table]
    assert apply_pending(without_cluster, observer=Observer()) == []
    assert world.keys(table) == set(KEYS[:1])
    assert world.keys(table.replace("docs", "docs_live")) == set(KEYS[:1])
    history = world.sql(
        "SELECT key, cleared_at_seqno > seqno AS was_cleared, cleared_in_round "
        "FROM row_history WHERE is_live"
    )
    cleared = [row for row in history if row["was_cleared"]]
    assert {row["key"].encode() for row in cleared} == set(KEYS)
    assert {row["cleared_in_round"] for row in cleared} == {2}
    assert [row["key"] for row in history if row["was_cleared"] is None] == ["key-0"]


def test_a_dropped_collection_that_is_made_again_is_another_one(world: World) -> None:
    world.write(KEYS)
    world.run()
    first = world.replica()
    drop(world)
    world.make("c")
    world.write(KEYS[5:8])
    world.run()
    second = world.replica()
    assert second.collection_id > first.collection_id
    assert world.keys(first.name) == set()
    assert world.keys(second.name) == set(KEYS[5:8])


@pytest.mark.slow
def test_rows_of_dropped_collections_are_kept_where_that_is_wanted(world: World) -> None:
    policy = PolicySettings(dropped=DroppedPolicy.KEEP, dropped_collections={"s.gone": "delete"})
    world.settings = replace(world.settings, policy=policy)
    world.write(KEYS)
    world.make("gone")
    world.write(KEYS[:3], "gone")
    world.run()
    table, first = world.replica().name, world.replica().collection_id
    flush(world)  # a flush is no drop
    world.write(KEYS[:6])
    world.run()
    assert world.keys(table) == set(KEYS[:6])
    drop(world)
    world.cluster.drop_collection("s", "gone")
    world.run()
    gone = world.replica("gone").name
    assert world.keys(table) == set(KEYS[:6])
    assert world.keys(table.replace("docs", "docs_live")) == set(KEYS[:6])
    assert world.dropped() == {table: (3, VBUCKETS, True), gone: (3, VBUCKETS, False)}
    ask(world.settings, RequestAction.RESYNC)
    world.make("c")
    world.write(KEYS[5:8])
    world.run()
    second = world.replica().name
    assert world.keys(table) == set(KEYS[:6])
    assert world.keys(second) == set(KEYS[5:8])
    assert world.dropped()[table] == (3, VBUCKETS, True), "it is the same drop"
    cleared = world.sql(
        "SELECT collection_id, round, count(cleared_at_seqno) > 0 AS is_cleared FROM row_history "
        "WHERE round <= 2 GROUP BY ALL ORDER BY collection_id, round"
    )
    assert [(row["collection_id"], row["is_cleared"]) for row in cleared] == [
        (first, True),  # by the flush
        (first, False),
        (world.replica("gone").collection_id, True),
    ]

    def told(recipe: str) -> list[tuple[object, ...]]:
        asked = RECIPES[recipe].replace("__shop__carts__a", second.removeprefix("docs"))
        asked = asked.replace("__shop__carts__9", table.removeprefix("docs"))
        return [tuple(row.values()) for row in world.sql(asked)]

    assert (table, 3, VBUCKETS, True) in told("Collections that are gone")
    rows = [(row[0], row[2]) for row in told("A collection that was dropped and created again")]
    again = [(key.decode(), second) for key in KEYS[5:8]]
    assert sorted(rows) == sorted([*((key.decode(), table) for key in KEYS[:6]), *again])


def test_each_collection_is_dropped_by_its_own_policy(world: World) -> None:
    """All of them while nobody runs: the next run knows their names from the log only."""
    own = {"s": "delete", "s.c": "keep", "s.kept": "keep"}
    world.settings = replace(world.settings, policy=PolicySettings(dropped_collections=own))
    world.write(KEYS)
    for name in ("gone", "kept"):
        world.make(name)
        world.write(KEYS, name)
    world.run()
    first, gone, kept = (world.replica(name).name for name in ("c", "gone", "kept"))
    for name in ("c", "gone", "kept"):
        world.cluster.drop_collection("s", name)
    world.make("c")
    world.write(KEYS[5:8])
    world.run()
    second = world.replica().name
    assert isinstance(preview(world.settings), Idle), "the log has the names of what is gone"
    unknown = PolicySettings(dropped_collections=own | {"s.gne": "keep"})
    with pytest.raises(ConfigError, match=r"policy\.dropped_collections: found 's\.gne'.*expected"):
        preview(replace(world.settings, policy=unknown))
    assert world.keys(first) == world.keys(kept) == set(KEYS)
    assert world.keys(gone) == set() and world.keys(second) == set(KEYS[5:8])


@pytest.mark.parametrize("world", [2], indirect=True)
@pytest.mark.slow
def test_a_failover_that_loses_a_kept_drop_takes_it_back(world: World) -> None:
    """The cluster's manifest goes back with the node: the drop never happened in its vbuckets."""
    world.settings = replace(world.settings, policy=PolicySettings(dropped=DroppedPolicy.KEEP))
    cluster = world.cluster
    world.write(KEYS)
    world.run()
    table, before = world.replica().name, cluster.manifest
    cluster.wait_until_replicated()
    cluster.pause_replication()
    world.write([b"lost-%d" % number for number in range(8)])
    drop(world)
    world.run()
    dropped = world.keys(table)
    assert dropped > set(KEYS)
    assert world.dropped() == {table: (2, VBUCKETS, True)}

    with cluster.bucket.lock:
        cluster.bucket.collections.take(before)
    cluster.failover(1)
    cluster.resume_replication()
    world.run()
    assert world.dropped() == {table: (2, 2, True)}
    stay = {key for key in dropped if cluster.vbucket_of(key) < 2}
    back = {key for key in KEYS if cluster.vbucket_of(key) >= 2}
    assert world.keys(table) == back | stay
    assert world.verify().result == "equal"

    world.settings = replace(world.settings, policy=PolicySettings(dropped=DroppedPolicy.DELETE))
    world.write(sorted(back)[:2])
    drop(world)
    world.run()
    assert world.keys(table) == back | stay, "the first drop decided"
    assert world.dropped() == {table: (2, VBUCKETS, True)}
    assert world.verify().kept == {table: frozenset(range(VBUCKETS))}


@pytest.mark.parametrize(("choice", "other"), list(permutations(DroppedPolicy)))
def test_the_round_that_first_receives_a_drop_decides_for_all_vbuckets(
    world: World, choice: DroppedPolicy, other: DroppedPolicy
) -> None:
    """Half of the vbuckets receive the drop under the other policy, and all of them once more."""
    keeps = choice is DroppedPolicy.KEEP
    world.settings = replace(world.settings, policy=PolicySettings(dropped=choice))
    world.write(KEYS)
    world.run()
    first = world.replica()
    drop(world)
    access = source_access(world.settings)
    driver = Driver(world.lake, world.settings, access, Observer())
    late = {vbucket: LeftOut(vbucket, "late", "") for vbucket in (2, 3)}
    plan = driver.prepare_round(query_cluster(access), skip=late)
    assert isinstance(plan, RoundPlan)
    driver.round(plan)
    left = {key for key in KEYS if keeps or world.cluster.vbucket_of(key) in late}
    assert world.keys(first.name.replace("docs", "docs_live")) == left
    driver.apply(driver.received(), force=True)
    assert world.keys(first.name) == left
    assert world.dropped() == {first.name: (2, 2, keeps)}

    world.settings = replace(world.settings, policy=PolicySettings(dropped=other))
    kept = set(KEYS) if keeps else set()
    world.make("c")
    world.write(KEYS[:3])
    world.run()
    assert world.keys(first.name) == kept
    assert world.keys(first.name.replace("docs", "docs_live")) == kept
    assert world.dropped() == {first.name: (2, VBUCKETS, keeps)}
    for _ in range(2):
        ask(world.settings, RequestAction.RESYNC)
        world.run()
        assert world.keys(first.name) == kept
    second = world.replica()
    drop(world)
    world.run()
    assert world.keys(second.name) == (set(KEYS[:3]) if other == "keep" else set())
    assert dropped_policies(world.lake) == {
        first.collection_id: choice,
        second.collection_id: other,
    }


def test_a_rollback_over_a_flush_to_a_history_with_another_one(world: World) -> None:
    """The node comes back without the flush in its vbuckets, but with it in its manifest."""
    world.write(KEYS)
    world.run()
    table = world.replica().name
    flush(world)
    world.write(KEYS[:12])
    world.run()
    assert world.keys(table) == set(KEYS[:12])
    world.cluster.crash_restart(0, lost_seqnos=6)
    world.run()
    assert world.keys(table) == set()
    world.write(KEYS[3:5])
    world.run()
    assert world.keys(table) == set(KEYS[3:5])


@pytest.mark.slow
def test_verify_knows_what_flushes_and_drops_take_and_finds_what_they_should_have_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake whose driver passes over a flush, as one that was written before they acted."""
    policy = PolicySettings(dropped=DroppedPolicy.KEEP, dropped_collections={"s.gone": "delete"})
    world.settings = replace(world.settings, policy=policy)
    world.make("gone")
    world.write(KEYS)
    world.write(KEYS[:3], "gone")
    world.run()
    flush(world)
    assert world.verify().result == "equal", "the flush is on its way"
    with monkeypatch.context() as patch:
        patch.setattr(slice_reader, "collection_events", lambda *_: ())
        patch.setattr(merge_plan, "EMPTY_ROUNDS", 1)
        world.run()
    table, gone = world.replica().name, world.replica("gone").name
    assert world.keys(table) == set(KEYS)
    report = world.verify()
    assert report.counts["in replica only"] == len(KEYS)
    assert isinstance(report.error(), VerifyError)

    drop(world)
    world.cluster.drop_collection("s", "gone")
    world.run()
    assert world.keys(table) == set(KEYS) and world.keys(gone) == set()
    report = world.verify()
    assert (report.result, report.dropped, report.kept) == (
        "equal",
        (gone,),
        {table: frozenset(range(VBUCKETS))},
    )
    assert (
        f"{table}: its collection was dropped at the source; its rows are kept in vbuckets 0-3 "
        in str(report)
    )


@pytest.mark.parametrize("world", [2], indirect=True)
@pytest.mark.parametrize("reads_again", ["policy", "resync"])
def test_rows_of_the_default_collection_are_exact_after_its_drop_was_lost(
    world: World, reads_again: str
) -> None:
    """No stream tells the begin of the default collection: the manifest does."""
    policy = RollbackPolicy.RESYNC if reads_again == "policy" else RollbackPolicy.REWRITE
    world.settings = replace(
        world.settings, policy=PolicySettings(dropped=DroppedPolicy.KEEP, rollback=policy)
    )
    cluster = world.cluster
    for key in KEYS:
        cluster.set(key, b"1")
    world.run()
    before = cluster.manifest
    cluster.wait_until_replicated()
    cluster.pause_replication()
    for number in range(20):
        cluster.set(b"phantom-%d" % number, b"1")
    cluster.drop_collection("_default", "_default")
    world.run()
    if reads_again == "resync":
        ask(world.settings, RequestAction.RESYNC)
        world.run()
    with cluster.bucket.lock:
        cluster.bucket.collections.take(before)
    cluster.failover(1)
    cluster.resume_replication()
    world.run()
    back = {key for key in KEYS if cluster.vbucket_of(key) >= 2}
    for key in sorted(back)[1:]:
        cluster.delete(key)
    for vbucket in (2, 3):
        cluster.purge_tombstones(vbucket)
    ask(world.settings, RequestAction.RESYNC)
    world.run()
    found = {key for key in world.keys("docs") if cluster.vbucket_of(key) >= 2}
    assert found == {min(back)}
    kept = kept_vbuckets(world.lake, latest_round(world.lake))
    assert kept == {DOCS.collection_id: frozenset({0, 1})}


@pytest.mark.parametrize("lost", [None, f"{is_kind(RowKind.SYSTEM_EVENT)} AND vbucket IS NULL"])
def test_a_driver_keeps_rows_of_a_drop_through_the_repair_of_the_log(
    world: World, lost: str | None
) -> None:
    world.settings = replace(world.settings, policy=PolicySettings(dropped=DroppedPolicy.KEEP))
    world.write(KEYS)
    world.run()
    access = source_access(world.settings)
    with closing(Driver(world.lake, world.settings, access, Observer())) as driver:
        table = world.replica().name
        drop(world)
        driver.once(query_cluster(access), threading.Event())
        world.lake.changes.delete(lost, {})
        ask(world.settings, RequestAction.RESYNC)
        driver.once(query_cluster(access), threading.Event())
    assert world.keys(table) == set(KEYS)
    assert list(dropped_policies(world.lake).values()) == [DroppedPolicy.KEEP]

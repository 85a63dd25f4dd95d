"""Flushes and drops of collections, from a real producer to the replicas, views and verify."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.errors import VerifyError
from dcp.lake.apply import apply
from dcp.lake.apply.replica_facts import LakeFacts
from dcp.lake.config.settings import ApplySettings, PolicySettings, Settings
from dcp.lake.log.observer import Observer
from dcp.lake.query.query import name_tables
from dcp.lake.query.views import register_views
from dcp.lake.run.apply_pending import apply_pending
from dcp.lake.run.resync import commit_resync
from dcp.lake.run.run import run
from dcp.lake.tables.opening import lake_location
from dcp.lake.tables.tables import LakeTables, ReplicaTable, open_lake, replicas_in
from dcp.lake.verify.verify import verify
from dcp.lake.verify.verify_report import VerifyReport
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from tests.lake.receiving import settings_for
from tests.lake.versions import table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VBUCKETS = 4
KEYS = [b"key-%d" % number for number in range(20)]


@dataclass
class World:
    """A bucket with the collection ``s.c``, and its lake."""

    spark: "SparkSession"
    cluster: ProducerCluster
    settings: Settings
    ids: dict[str, int] = field(default_factory=dict)

    def make(self, name: str) -> None:
        self.cluster.create_collection("s", name)

    def write(self, keys: list[bytes], collection: str = "c") -> None:
        with self.cluster.batch():
            for key in keys:
                self.cluster.set(
                    key, b'{"in": "%s"}' % collection.encode(), collection=f"s.{collection}"
                )

    def run(self) -> None:
        run(self.settings, once=True, spark=self.spark)

    def verify(self) -> VerifyReport:
        return verify(self.settings, spark=self.spark)

    @property
    def lake(self) -> LakeTables:
        return open_lake(lambda: self.spark, lake_location(self.settings))

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
            return {key.encode() for key in table_at(lake.location.path(view))["key"].to_pylist()}
        name_tables(lake, replicas_in(lake))
        register_views(lake, replicas_in(lake))
        return {row["key"].encode() for row in self.spark.sql(f"SELECT key FROM {view}").collect()}


@pytest.fixture
def world(spark: "SparkSession", tmp_path: Path) -> Iterator[World]:
    with ProducerCluster(ClusterSettings(vbuckets=VBUCKETS, seed=5)) as cluster:
        settings = settings_for(
            cluster, tmp_path, round={"quiet_seconds": 0.2}, apply={"when": "every_round"}
        )
        cluster.create_scope("s")
        found = World(spark, cluster, settings)
        found.make("c")
        yield found


def flush(world: World) -> None:
    world.cluster.flush_collection("s", "c")


def drop(world: World) -> None:
    world.cluster.drop_collection("s", "c")


def test_a_flush_takes_effect_everywhere_with_the_snapshot_that_carries_it(world: World) -> None:
    world.write(KEYS)
    world.run()
    table = world.replica().name
    assert world.keys(table) == set(KEYS)

    flush(world)
    world.write(KEYS[:1])
    assert world.verify().result == "equal"  # the flush is on its way
    world.settings = replace(world.settings, apply=ApplySettings(when="never"))
    world.run()
    assert world.keys(table) == set(KEYS)
    assert world.keys(table.replace("docs", "docs_live")) == set(KEYS[:1])

    nowhere = replace(world.settings.source, seeds=("127.0.0.1:1",))
    without_cluster = replace(world.settings, source=nowhere)
    made = apply_pending(without_cluster, observer=Observer(), spark=world.spark)
    assert [version.table for version in made] == [table]
    assert apply_pending(without_cluster, observer=Observer(), spark=world.spark) == []
    assert world.keys(table) == set(KEYS[:1])
    assert world.keys(table.replace("docs", "docs_live")) == set(KEYS[:1])
    assert world.verify().result == "equal"
    history = world.spark.sql(
        "SELECT key, cleared_at_seqno > seqno AS was_cleared, cleared_in_round "
        "FROM row_history WHERE is_live"
    ).collect()
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
    report = world.verify()
    assert (report.result, report.dropped, report.kept) == ("equal", (first.name,), {})


def test_rows_of_dropped_collections_are_kept_where_that_is_wanted(world: World) -> None:
    world.settings = replace(world.settings, policy=PolicySettings(dropped="keep"))
    world.write(KEYS)
    world.make("other")
    world.write(KEYS[:3], "other")
    world.run()
    table = world.replica().name
    flush(world)  # a flush is no drop
    world.write(KEYS[:6])
    world.run()
    assert world.keys(table) == set(KEYS[:6])
    drop(world)
    world.run()
    assert world.keys(table) == set(KEYS[:6])
    assert world.keys(table.replace("docs", "docs_live")) == set(KEYS[:6])
    commit_resync(world.lake)
    world.run()
    assert world.keys(table) == set(KEYS[:6])
    report = world.verify()
    assert (report.result, report.dropped, report.kept) == (
        "equal",
        (),
        {table: frozenset(range(VBUCKETS))},
    )
    assert (
        f"{table}: its collection was dropped at the source; its rows are kept in vbuckets 0-3 "
        in str(report)
    )


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
    assert world.keys(table) == world.keys(table.replace("docs", "docs_live")) == set(KEYS[3:5])
    assert world.verify().result == "equal"


@pytest.mark.parametrize("lose", [flush, drop])
def test_verify_finds_the_rows_that_a_flush_or_drop_should_have_taken(
    world: World, lose: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake whose driver passes over the event, as one that was written before they acted."""
    world.write(KEYS)
    world.run()
    lose(world)
    with monkeypatch.context() as patch:
        patch.setattr(LakeFacts, "collection_events", lambda *_: ())
        patch.setattr(apply, "EMPTY_ROUNDS", 1)
        world.run()
    table = world.replica().name
    assert world.keys(table) == set(KEYS)
    report = world.verify()
    assert report.counts["in replica only"] == len(KEYS)
    assert isinstance(report.error(), VerifyError)

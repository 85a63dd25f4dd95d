"""Collections without changes cost an apply nothing, and are applied to as soon as they have some.

Also: what a driver remembers of a table is never believed after somebody else wrote to it.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from dcp.errors import ForeignWriteError, LakeError
from dcp.lake.apply import up_to_date_tables
from dcp.lake.apply.applier import pending_of
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.config.settings import ApplySettings, ApplyWhen
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.run.driver import Driver
from dcp.lake.tables.lake_tables import ReplicaTable
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.memory_store import MemoryStore, lake_in_memory
from tests.lake.receiving import settings_for

VBUCKETS: Final = 4


class Scene:
    """A driver of a bucket with three collections that hold documents, and an empty one; warm."""

    def __init__(self, cluster: ProducerCluster, folder: Path) -> None:
        self.cluster, self.store = cluster, MemoryStore()
        cluster.create_scope("shop")
        self.ids = {"docs": 0} | {
            f"docs__shop__{name}__{number:x}": number
            for name in ("a", "b")
            for number in [cluster.create_collection("shop", name)]
        }
        empty = cluster.create_collection("shop", "empty")
        self.empty = f"docs__shop__empty__{empty:x}"
        settings = settings_for(cluster, folder)
        self._access = source_access(settings)
        uuid = query_cluster(self._access).map.bucket_uuid
        self.lake = lake_in_memory(VBUCKETS, self.store, uuid)
        self.driver = Driver(self.lake, settings, self._access, Observer())
        self.written: dict[str, int] = {}
        self.planned: list[str] = []
        self.round = 0

    def write(self, table: str, count: int = 20) -> None:
        self.written[table] = self.written.get(table, 0) + 1
        for number in range(count):
            value = b"%d" % self.written[table]
            self.cluster.set(b"key-%d" % number, value, collection=self.ids[table])

    def receive(self) -> None:
        plan = self.driver.prepare_round(query_cluster(self._access))
        assert isinstance(plan, RoundPlan)
        self.round = self.driver.round(plan).round

    def apply(self) -> set[str]:
        """Apply up to the newest round; return to which tables; `planned` has those looked at."""
        self.planned.clear()
        return {each.table for each in self.driver.apply(self.round, force=False)}

    def newest(self, table: str) -> set[bytes]:
        return {bytes(row["value"]) for row in self.lake.table(table).rows("value", "true")}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with ProducerCluster(
        ClusterSettings(nodes=2, vbuckets=VBUCKETS, replicas=1, seed=6)
    ) as cluster:
        made = Scene(cluster, tmp_path)

        def noted(lake: Any, replica: ReplicaTable, *more: Any, **named: Any) -> Any:
            made.planned.append(replica.name)
            return plan_merge(lake, replica, *more, **named)

        monkeypatch.setattr("dcp.lake.apply.applier.plan_merge", noted)
        for table in made.ids:
            made.write(table)
        made.receive()
        assert made.apply() == set(made.ids)
        assert made.apply() == set()
        yield made


def test_only_tables_with_changes_are_looked_at(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = list(scene.ids)[1:]
    for _ in range(3):
        scene.write(a)
        scene.receive()
        assert scene.apply() == {a}
        assert scene.planned == [a]
        assert scene.apply() == set()
        assert scene.planned in ([a], [])  # once, to learn that it is up to date, too
    scene.write(b)
    scene.receive()
    assert scene.apply() == {b}
    assert (scene.newest(a), scene.newest(b), scene.newest("docs")) == ({b"4"}, {b"2"}, {b"1"})
    for module in ("applier", "merge_plan"):
        monkeypatch.setattr(f"dcp.lake.apply.{module}.EMPTY_ROUNDS", 2)
    scene.write(b)
    scene.receive()
    assert scene.apply() == {*scene.ids, scene.empty}  # so that the log need not be kept for them


def test_where_applies_wait_a_table_without_pending_rows_is_asked_about_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(lake: Any, replica: ReplicaTable, to_round: int) -> Any:
        asked.append(replica.name)
        return pending_of(lake, replica, to_round)

    monkeypatch.setattr("dcp.lake.apply.applier.pending_of", noted)
    applier = scene.driver._applier
    monkeypatch.setattr(applier, "_rule", ApplySettings(when=ApplyWhen.AGE, age_seconds=3600))
    monkeypatch.setattr(applier, "_up_to_date", up_to_date_tables.UpToDateTables())
    a = [*scene.ids][1]
    scene.write(a)
    scene.receive()
    assert scene.apply() == set()
    assert set(asked) == {*scene.ids, scene.empty}
    asked.clear()
    assert scene.apply() == set()
    assert asked == [a]
    for module in ("applier", "merge_plan"):
        monkeypatch.setattr(f"dcp.lake.apply.{module}.EMPTY_ROUNDS", 1)
    assert scene.apply() == {*scene.ids, scene.empty} - {a}  # these hold that round, nothing waits


def test_a_rollback_or_a_flush_concerns_them_all(scene: Scene) -> None:
    a, b = list(scene.ids)[1:]
    scene.write("docs")
    scene.receive()
    assert scene.apply() == {"docs"}
    scene.cluster.flush_collection("shop", "b")
    scene.receive()
    assert b in scene.apply()
    assert scene.newest(b) == set()
    scene.apply()
    scene.cluster.wait_until_replicated()
    scene.cluster.pause_replication()
    scene.write(a)
    scene.receive()
    assert scene.apply() == {a}
    scene.cluster.failover(scene.cluster.vbucket_owner(0))
    scene.receive()
    scene.receive()
    scene.apply()
    assert set(scene.planned) == {*scene.ids, scene.empty}


def test_rows_that_wait_for_the_end_of_a_snapshot_are_somebodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pending = {
        0: SimpleNamespace(first_incomplete_round=None),
        1: SimpleNamespace(first_incomplete_round=7),
    }
    monkeypatch.setattr(up_to_date_tables, "states_at", lambda *_: pending)
    lake: Any = None  # not asked: the table is not noted
    tables, replica = up_to_date_tables.UpToDateTables(), ReplicaTable("docs", 0)
    tables.note(lake, replica, 7, version=3)
    assert not tables.is_up_to_date(lake, replica, 7)


def test_a_look_asks_of_a_bounded_number_of_tables_whether_somebody_changed_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def newest(table: str, limit: int) -> list[Any]:
        asked.append(table)
        return [SimpleNamespace(version=4 if table == "docs3" else 3)][:limit]

    monkeypatch.setattr(up_to_date_tables, "states_at", lambda *_: {})
    monkeypatch.setattr(up_to_date_tables, "history", newest)
    monkeypatch.setattr(up_to_date_tables, "ASKED_AT_ONCE", 2)
    lake: Any = SimpleNamespace(table=str)
    replicas = [ReplicaTable(f"docs{number}", number) for number in range(5)]
    tables = up_to_date_tables.UpToDateTables()
    for each in replicas:
        tables.note(lake, each, 7, version=3)
    changed = []
    for turn in (["docs0", "docs1"], ["docs2", "docs3"], ["docs4"], ["docs0", "docs1"]):
        asked.clear()
        tables.begin_pass(replicas)
        changed.append([each.name for each in replicas if not tables.is_up_to_date(lake, each, 7)])
        assert asked == turn
    assert changed == [[], ["docs3"], [], []]


def test_a_foreign_write_is_found(scene: Scene) -> None:
    a, b = list(scene.ids)[1:]
    scene.store.table(b).delete("key = 'key-1'", {})
    with pytest.raises(ForeignWriteError, match=b):
        scene.apply()
    scene.store.table(b).restore(1)
    scene.write(a)
    scene.receive()
    assert scene.apply() == {a}
    assert b in scene.planned
    scene.store.table("changes").delete("vbucket = 1", {})
    scene.write("docs")
    with pytest.raises(LakeError, match="changes"):
        scene.receive()

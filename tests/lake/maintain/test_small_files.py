"""Tables stay in few files while rounds and applies go on; no version has other rows for that."""

import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from dcp.lake.adapters.opening import lake_location
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.change_log.control import Control, ControlRequest, RequestAction, RequestState
from dcp.lake.config.settings import Settings
from dcp.lake.maintain import compaction
from dcp.lake.maintain.steps import run_steps, work_on
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.run.driver import Driver
from dcp.lake.run.replicate import open_or_create
from dcp.lake.store.lake_store import LakeStore
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.horizon import Horizon
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.conftest import NewLake
from tests.lake.memory_store import MemoryStore
from tests.lake.receiving import settings_for
from tests.lake.versions import table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

COMMITS: Final = 2
KEYS: Final = 20
TABLES: Final = ("changes", "docs")


class Source:
    """A bucket of which each round changes every document, and what a driver makes of it."""

    def __init__(self, store: LakeStore, cluster: ProducerCluster, settings: Settings) -> None:
        self._cluster, self._settings = cluster, settings
        self._access = source_access(settings)
        self.lake = open_or_create(store, settings, query_cluster(self._access))
        self.rounds = 0
        self.shown: dict[int, int] = {}

    def driver(self) -> Driver:
        return Driver(self.lake, self._settings, self._access, Observer())

    def round_and_apply(self, driver: Driver) -> None:
        self.rounds += 1
        for number in range(KEYS):
            self._cluster.set(b"key-%d" % number, b"%d" % self.rounds)
        plan = driver.prepare_round(query_cluster(self._access))
        assert isinstance(plan, RoundPlan)
        [version] = driver.apply(driver.round(plan).round, force=False)
        self.shown[version.version] = self.rounds

    def files(self, table: str) -> int:
        return self.lake.table(table).size().files

    def operations(self, table: str) -> list[str]:
        return [each.operation for each in reversed(history(self.lake.table(table), WHOLE))]

    def values(self, version: int) -> set[bytes]:
        values = table_at(self.lake.location.path("docs"), version).column("value").to_pylist()
        assert len(values) == KEYS
        return set(values)


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(vbuckets=4, seed=5)) as running:
        yield running


@pytest.mark.slow
def test_files_stay_few_and_versions_as_they_were(
    spark: "SparkSession",
    cluster: ProducerCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where drivers end after each round: they compact no more often."""
    monkeypatch.setattr(compaction, "COMMITS", COMMITS)
    settings = settings_for(cluster, tmp_path)
    source = Source(SparkStore(lambda: spark, lake_location(settings)), cluster, settings)
    driver = source.driver()
    most = dict.fromkeys(TABLES, 0)
    for number in range(2 * COMMITS):
        source.round_and_apply(driver if number <= COMMITS else source.driver())
        most = {table: max(most[table], source.files(table)) for table in TABLES}
    for table in TABLES:
        operations = source.operations(table)
        compacted = [at for at, operation in enumerate(operations) if operation == "OPTIMIZE"]
        assert len(compacted) == 2, operations
        assert {after - before for before, after in pairwise(compacted)} == {COMMITS + 1}
        assert most[table] <= COMMITS + 2  # those since, and two that OPTIMIZE left
    for version, number in source.shown.items():
        assert source.values(version) == {b"%d" % number}
    newest = history(source.lake.table("docs"), 1)[0].version
    assert source.values(newest) == {b"%d" % source.rounds}


def test_a_large_table_that_was_never_in_order_is_left_to_maintenance(
    cluster: ProducerCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In memory only the log becomes more chunks; a MERGE makes one."""
    monkeypatch.setattr(compaction, "MOST_BYTES", 0)
    monkeypatch.setattr(compaction, "COMMITS", 1)
    source = Source(MemoryStore(), cluster, settings_for(cluster, tmp_path))
    driver = source.driver()
    with caplog.at_level(logging.WARNING, logger=compaction.__name__):
        for _ in range(2):
            source.round_and_apply(driver)
    assert "OPTIMIZE" not in source.operations("changes")
    assert caplog.text.count("table changes: found") == 1
    assert "dcplake maintain" in caplog.text
    source.lake.changes.optimize({}, 0)
    source.round_and_apply(driver)
    assert source.operations("changes").count("OPTIMIZE") == 2


def test_maintenance_compacts_what_only_grows(
    new_lake_in_memory: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_MANY_FILES", 4)
    lake = new_lake_in_memory(4)
    request = ControlRequest.new(RequestAction.PAUSE, None, {})
    control = Control(lake)
    states = (RequestState.REQUESTED, RequestState.BEGUN, RequestState.BEGUN, RequestState.DONE)

    def maintained() -> dict[tuple[str, str], str]:
        work = work_on(lake, Horizon.of_hours(1), retain_hours=2)
        reports = run_steps(work, ["optimize", "vacuum"])
        return {(each.step, each.table): each.summary for each in reports}

    for state in states[:3]:
        control.write(request, state)
    reports = maintained()
    assert ("optimize", "control") not in reports, "it has few files"
    assert ("vacuum", "control") in reports and ("vacuum", "undone") not in reports

    control.write(request, states[3])
    found = control.requests()
    reports = maintained()
    assert reports["optimize", "control"] == "4 files became 1"
    assert reports["vacuum", "control"] == ("deleted 0 files that no version within a week needs")
    assert Control(lake).requests() == found
    assert lake.table("control").size().files == 1

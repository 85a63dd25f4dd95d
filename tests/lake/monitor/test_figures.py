"""The figures of a real lake, through all that moves them: no Spark is asked for any of them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dcp.cli.main import main
from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.opening import lake_location, store_without_spark
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.config.settings import RoundSettings
from dcp.lake.monitor.figures import FiguresReader, FullFigures, Lag, figures_json
from dcp.lake.monitor.lake_metrics import LAKE_METRICS, lake_exposition
from dcp.lake.monitor.run_server import RunFigures
from dcp.lake.monitor.run_watch import RunWatch
from dcp.lake.query.lake_figures import LakeFigures
from dcp.lake.query.status import lake_status
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.run.driver import Driver
from dcp.lake.run.replicate import open_or_create
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import open_lake
from dcp.lake.tables.round_record import Outcome, VbucketReport
from dcp.lake.tables.schema import RowKind, is_kind
from dcp.producer.cluster import ProducerCluster
from dcp.records import plain
from dcp.server.model.cluster_settings import ClusterSettings
from tests.lake.receiving import settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VBUCKETS: Final = 4


def shown(figures: LakeFigures) -> dict[str, Any]:
    """Return the figures without the commits, of which a status reads more."""
    return {**figures.parts(), "replicas": plain(figures.replicas)}


class Scene:
    """A bucket with a collection ``shop.a``, its driver, and one reader that lives on."""

    def __init__(self, spark: "SparkSession", cluster: ProducerCluster, folder: Path) -> None:
        self.cluster = cluster
        cluster.create_scope("shop")
        self.collection = cluster.create_collection("shop", "a")
        self.table = f"docs__shop__a__{self.collection:x}"
        settings = self.settings = settings_for(cluster, folder, round={"quiet_seconds": 0.2})
        self._access = source_access(settings)
        self._location = lake_location(settings)
        self.lake = open_or_create(
            SparkStore(lambda: spark, self._location), settings, query_cluster(self._access)
        )
        self.driver = Driver(self.lake, settings, self._access, Observer())
        self._reader = self.new_reader()

    def new_reader(self) -> FiguresReader:
        def started() -> "SparkSession":
            raise AssertionError("Spark was started")

        return FiguresReader(open_lake(SparkStore(started, self._location)))

    def write(self, count: int, collection: int = 0) -> None:
        for number in range(count):
            self.cluster.set(b"key-%d" % number, b'{"n": 1}', collection=collection)

    def receive(self) -> int:
        plan = self.driver.prepare_round(query_cluster(self._access))
        assert isinstance(plan, RoundPlan)
        return self.driver.round(plan).round

    def follow(self) -> None:
        self.driver.once(query_cluster(self._access), Event())

    def figures(self) -> FullFigures:
        """Read them; who has read before, who has not, and a status find the same."""
        found = self._reader.read()
        assert found == self.new_reader().read()
        assert shown(lake_status(self.lake)) == shown(found)
        assert self._reader.read() is found, "nothing has changed since"
        return found

    def lag(self, table: str) -> Lag:
        return self.figures().lags[table]

    def high_seqnos(self) -> dict[int, int]:
        return {vb: self.cluster.high_seqno(vb) for vb in range(VBUCKETS)}

    def time_of(self, round_number: int) -> datetime:
        [time] = [
            each.time for each in history(self.lake.changes, 50) if each.round == round_number
        ]
        return time


@pytest.fixture(scope="module")
def scene(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=6)) as cluster:
        made = Scene(spark, cluster, tmp_path_factory.mktemp("figures"))
        made.write(40)
        made.write(10, made.collection)
        made.follow()
        yield made


def test_figures_follow_what_happens_to_a_lake(scene: Scene) -> None:
    figures = scene.figures()
    assert figures.highs == scene.high_seqnos()
    assert sum(each.rows for each in figures.rounds) == 50
    assert figures.rounds[0].time == scene.time_of(figures.round)
    for lag in figures.lags.values():
        assert (lag.seqnos(figures.highs), lag.since) == (0, None)
    sizes = {each.table: each.size for each in figures.tables}
    assert sizes.keys() == {"changes", "docs", scene.table}
    for table, size in sizes.items():  # no file is removed yet
        files = list(Path(scene.lake.location.path(table)).rglob("*.parquet"))
        data = [file.stat().st_size for file in files if "_delta_log" not in file.parts]
        assert (size.files, size.bytes) == (len(data), sum(data))

    scene.write(6, scene.collection)
    before, number = scene.high_seqnos(), scene.receive()
    behind = scene.lag(scene.table)
    assert behind.seqnos(before) == 6
    assert behind.since == scene.time_of(number)
    docs = scene.lag("docs")
    assert (docs.seqnos(before), docs.since) == (0, None), "it lacks nothing"
    assert scene.figures().rounds[0].rows == 6

    now = datetime.now(UTC)
    ahead = scene.figures().seeing({0: before[0] + 3}, now)
    assert ahead.lags["docs"].seqnos(ahead.highs) == 3 and ahead.lags["docs"].since == now
    assert ahead.lags[scene.table].since == behind.since
    assert ahead.last_contact is not None and ahead.last_contact.time == now, (
        "the run has just asked"
    )

    [applied] = scene.driver.apply(number, force=True)
    lag = scene.lag(scene.table)
    assert (lag.seqnos(before), lag.since) == (0, None)
    [after] = [each for each in scene.figures().replicas if each.table == scene.table]
    [commit] = history(scene.lake.table(scene.table), 1)
    assert (after.round, after.applied_at) == (number, commit.time)
    assert after.version == applied.version == commit.version


def test_a_rollback_is_counted_and_every_metric_is_told(scene: Scene) -> None:
    scene.follow()
    assert scene.figures().rollbacks == 0
    scene.write(20)
    scene.follow()
    scene.cluster.crash_restart(0, lost_seqnos=2)
    scene.follow()
    orders = scene.lake.changes.rows(
        "vbucket", f"{is_kind(RowKind.ROLLBACK)} AND rollback IS NOT NULL AND seqno IS NULL"
    )
    figures = scene.figures()
    assert figures.rollbacks == len(orders) == VBUCKETS
    assert sum(each.rollbacks for each in figures.rounds) == VBUCKETS
    assert all(lag.seqnos(figures.highs) == 0 for lag in figures.lags.values())

    scene.write(20)
    scene.receive()
    detail = "127.0.0.1:1: refused"
    stuck = VbucketReport(1, Outcome.LEFT_OUT, reason="node unreachable", detail=detail)
    figures = replace(scene.figures(), stuck=(stuck, replace(stuck, vbucket=2)))
    assert figures.rollbacks == VBUCKETS
    told = figures_json(figures, datetime.now(UTC))["stuck"]
    assert told[0] == {"vbucket": 1, "reason": stuck.reason, "detail": detail} and len(told) == 2
    text = lake_exposition(figures, datetime.now(UTC))
    samples = [each for all_ in text_string_to_metric_families(text) for each in all_.samples]
    assert {each.labels.pop("bucket") for each in samples} == {"default"}
    assert {each.labels.pop("lake") for each in samples} == {figures.lake_id}
    found = {(each.name, *sorted(each.labels.values())): each.value for each in samples}
    assert found["dcplake_stuck_vbuckets", stuck.reason] == 2
    assert found["dcplake_rollbacks_total",] == VBUCKETS
    assert found["dcplake_lag_seqnos", "docs"] == 20
    assert found["dcplake_lag_seconds", "docs"] > 0
    assert {name for name, *_ in found} >= LAKE_METRICS.keys() - {
        "dcplake_round_window_full_ratio"  # nothing was large
    }


def test_a_run_serves_the_figures_and_a_report_has_them_in_it(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.follow()
    watch = RunWatch(Observer(), RoundSettings())
    figures = RunFigures(store_without_spark(scene.settings), watch)
    assert figures.read() == scene.figures()
    watch.under_way = {0: scene.high_seqnos()[0] + 2}, datetime.now(UTC)
    assert figures.read().highs[0] == scene.high_seqnos()[0] + 2
    root = str(scene.settings.lake.root)
    assert main(["report", "--lake", root]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {each["table"] for each in told["replicas"]} == {"docs", scene.table}
    assert told["round"] == scene.figures().round == told["rounds"][0]["round"]
    page = tmp_path / "page.html"
    assert main(["report", "--lake", root, "--html", str(page)]) == 0
    assert f'"round": {told["round"]}' in page.read_text()


def test_the_page_costs_one_read_of_the_log(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.write(8)
    scene.write(1, scene.collection)
    scene.follow()
    reads: list[str] = []
    take_rows = FileTable.take_rows

    def counted(table: FileTable, *asked: Any) -> Any:
        reads.append(table.where)
        return take_rows(table, *asked)

    monkeypatch.setattr(FileTable, "take_rows", counted)
    reader = scene.new_reader()
    told = figures_json(reader.read(), datetime.now(UTC))
    assert len(reads) == 1, "a reader that has read nothing before"
    assert len(told["rounds"]) > 1 and told["rounds"][0]["rows"] == 9
    assert told["map"]["behind"] == [0] * VBUCKETS
    assert sum(each.get("rows", 0) for each in told["minutes"]) >= 9
    reader.read()
    assert len(reads) == 1


def test_no_lag_of_zero_is_told_when_nobody_drives(scene: Scene) -> None:
    scene.follow()
    figures = scene.figures()
    assert figures.last_contact is not None
    now = datetime.now(UTC)
    assert (figures.lag_seqnos("docs", now), figures.lag_seconds("docs", now)) == (0, 0.0)
    late = now + timedelta(seconds=figures.last_contact.next_seconds + 1)
    told = figures_json(figures, late)
    assert not told["is_driven"]
    for each in told["replicas"]:
        assert (each["lag_seqnos"], each["lag_seconds"]) == (None, None)
    text = lake_exposition(figures, late)
    assert "dcplake_lag_seconds{" not in text and "dcplake_lag_seqnos{" not in text
    assert "dcplake_last_contact_timestamp_seconds{" in text

    scene.write(5)
    scene.receive()
    behind = scene.figures()
    assert behind.lag_seqnos("docs", late) == 5, "the least that it lacks is known"
    scene.follow()
    scene.driver.close()
    assert not scene.figures().is_driven(datetime.now(UTC)), "the driver has ended"

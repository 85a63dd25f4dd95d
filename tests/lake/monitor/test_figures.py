"""The figures of a real lake, through all that moves them: no Spark is asked for any of them."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from time import sleep
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import ANY

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dcp.cli.main import main
from dcp.client.addresses import NodeAddress
from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.opening import lake_location
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.change_log.last_contact import LastContact
from dcp.lake.config.settings import RoundSettings
from dcp.lake.monitor import run_server
from dcp.lake.monitor.figures_reader import NOTHING_UNDER_WAY, FiguresReader, UnderWay
from dcp.lake.monitor.lake_figures import LakeFigures
from dcp.lake.monitor.run_server import RunServer
from dcp.lake.monitor.run_watch import RunWatch
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.run.driver import Driver
from dcp.lake.run.replicate import open_or_create
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import open_lake
from dcp.lake.tables.round_record import Outcome, VbucketReport
from dcp.lake.tables.schema import RowKind, is_kind
from dcp.lake.task_board.board_files import shown_on_board
from dcp.lake.task_board.board_folder import BoardFolder
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import settings_for
from tests.lake.task_board.test_board_files import READY, watcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VBUCKETS: Final = 4


def lag_of(figures: LakeFigures, table: str) -> tuple[int | None, datetime | None]:
    """Return the seqnos that a table lacks, and since when."""
    [found] = [each for each in figures.replicas if each.table == table]
    if not found.lag_seconds:
        return found.lag_seqnos, None
    return found.lag_seqnos, figures.at - timedelta(seconds=found.lag_seconds)


def contact_at(time: datetime) -> LastContact:
    return LastContact.now(time, RoundSettings(), 3)


def unsearched(figures: LakeFigures) -> dict[str, Any]:
    """Return what differs without a search of the log: tables at older rounds have no known lag."""
    is_known = [each.status.round == figures.round for each in figures.replicas]
    replicas = tuple(
        each if known else replace(each, lag_seqnos=None, lag_seconds=None)
        for each, known in zip(figures.replicas, is_known, strict=True)
    )
    return {"replicas": replicas, "behind": figures.behind if all(is_known) else ANY}


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
        self._board = BoardFolder.of(settings)
        self._reader = self.new_reader()

    def new_reader(self) -> FiguresReader:
        def started() -> "SparkSession":
            raise AssertionError("Spark was started")

        lake = open_lake(SparkStore(started, self._location))
        return FiguresReader(lake, self._board, searches=True)

    def write(self, count: int, collection: int = 0) -> None:
        for number in range(count):
            self.cluster.set(b"key-%d" % number, b'{"n": 1}', collection=collection)

    def receive(self) -> int:
        plan = self.driver.prepare_round(query_cluster(self._access))
        assert isinstance(plan, RoundPlan)
        return self.driver.round(plan).round

    def follow(self) -> None:
        self.driver.once(query_cluster(self._access), Event())

    def figures(
        self, under_way: UnderWay = NOTHING_UNDER_WAY, at: datetime | None = None
    ) -> LakeFigures:
        """Read them; who has read before, who has not, and a status find the same."""
        at = at or datetime.now(UTC)
        found = self._reader.read(at, under_way)
        assert found == self.new_reader().read(at, under_way)
        status = FiguresReader(self.lake, self._board, searches=False).read(at, under_way)
        assert status == replace(found, rounds=found.rounds[:1], **unsearched(found))
        return found

    def lag(self, table: str) -> tuple[int | None, datetime | None]:
        return lag_of(self.figures(), table)

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
    assert figures.behind == (0,) * VBUCKETS
    above = {vb: seqno + 1 for vb, seqno in scene.high_seqnos().items()}
    assert scene.figures((above, contact_at(figures.at))).behind == (1,) * VBUCKETS
    assert sum(each.rows for each in figures.rounds) == 50
    assert figures.rounds[0].time == scene.time_of(figures.round)
    for table, documents in (("docs", 40), (scene.table, 10)):
        assert lag_of(figures, table) == (0, None)
        [found] = [each for each in figures.replicas if each.table == table]
        assert (found.documents, found.undecodable_values, found.stale) == (documents, 0, ())
    sizes = {each.table: each.size for each in figures.tables}
    assert sizes.keys() == {"changes", "docs", scene.table}
    for table, size in sizes.items():  # no file is removed yet
        files = list(Path(scene.lake.location.path(table)).rglob("*.parquet"))
        data = [file.stat().st_size for file in files if "_delta_log" not in file.parts]
        assert (size.files, size.bytes) == (len(data), sum(data))

    scene.write(6, scene.collection)
    before, number = scene.high_seqnos(), scene.receive()
    behind = scene.lag(scene.table)
    assert behind == (6, scene.time_of(number))
    assert scene.lag("docs") == (0, None), "it lacks nothing"
    assert scene.figures().rounds[0].rows == 6

    asked = datetime.now(UTC)
    ahead = scene.figures(({0: before[0] + 3}, contact_at(asked)), asked + timedelta(seconds=1))
    assert lag_of(ahead, "docs") == (3, asked)
    assert lag_of(ahead, scene.table) == (9, behind[1])
    assert ahead.last_contact is not None and ahead.last_contact.minutes
    told = ahead.last_contact.time, ahead.last_contact.behind
    assert told == (asked, 3), "the run has just asked"

    [applied] = scene.driver.apply(number, force=True)
    assert scene.lag(scene.table) == (0, None)
    [after] = [each.status for each in scene.figures().replicas if each.table == scene.table]
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
    assert [each.lag_seqnos for each in figures.replicas] == [0, 0]

    scene.write(20)
    scene.receive()
    detail = "127.0.0.1:1: refused"
    stuck = VbucketReport(1, Outcome.LEFT_OUT, reason="node unreachable", detail=detail)
    figures = replace(scene.figures(), stuck=(stuck, replace(stuck, vbucket=2)))
    assert figures.rollbacks == VBUCKETS
    told = figures.to_json()["stuck"]
    assert told[0].items() >= {"vbucket": 1, "reason": stuck.reason, "detail": detail}.items()
    assert (told[0]["outcome"], len(told)) == ("left_out", 2), "the page tells these two apart"
    text = figures.exposition()
    samples = [each for all_ in text_string_to_metric_families(text) for each in all_.samples]
    assert {each.labels.pop("bucket") for each in samples} == {"default"}
    assert {each.labels.pop("lake") for each in samples} == {figures.lake_id}
    found = {(each.name, *sorted(each.labels.values())): each.value for each in samples}
    assert found["dcplake_stuck_vbuckets", stuck.reason] == 2
    assert found["dcplake_rollbacks_total",] == VBUCKETS
    assert found["dcplake_lag_seqnos", "docs"] == 20
    assert found["dcplake_lag_seconds", "docs"] > 0
    assert {name for name, *_ in found} >= {each.name for each in LakeFigures.metrics} - {
        "dcplake_round_window_full_ratio"  # nothing was large
    }


def test_a_run_serves_the_figures_and_a_report_has_them_in_it(
    scene: Scene,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene.follow()
    watch = RunWatch(Observer(), RoundSettings())
    board = BoardFolder.of(scene.settings)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = NodeAddress(*free.getsockname())
    with RunServer(address, scene.settings, watch) as server:
        figures = server.figures()
        assert figures.health is not None and figures.health.is_well
        assert replace(figures, health=None) == scene.figures(at=figures.at)
        watch.under_way = {0: scene.high_seqnos()[0] + 2}, contact_at(datetime.now(UTC))
        monkeypatch.setattr(run_server, "_KEPT_SECONDS", 0.0)
        assert server.figures().behind == (2, 0, 0, 0)
        with shown_on_board(board, "task", watcher([READY]).stats):
            while not (tasks := server.figures().tasks):
                sleep(0.05)
        assert [each.rows for each in tasks] == [120]
    root = str(scene.settings.lake.root)
    assert main(["report", "--lake", root]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["status", "--lake", root, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status.keys() == told.keys()
    differ = {name for name in told if status[name] != told[name]}
    assert differ <= {"at", "rounds", "behind", "replicas", "source"}
    for one, other in zip(status["replicas"], told["replicas"], strict=True):
        assert one in (other, other | {"lag_seqnos": None, "lag_seconds": None})
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
        reads.append(table.where.split()[-1])
        return take_rows(table, *asked)

    monkeypatch.setattr(FileTable, "take_rows", counted)
    reader = scene.new_reader()
    told = reader.read(datetime.now(UTC)).to_json()
    counts = ["docs", "docs", scene.table, scene.table]
    assert sorted(reads) == ["changes", *counts], "a reader that has read nothing before"
    assert len(told["rounds"]) > 1 and told["rounds"][0]["rows"] == 9
    assert told["behind"] == [0] * VBUCKETS
    assert sum(each.get("rows", 0) for each in told["minutes"]) >= 9
    reader.read(datetime.now(UTC))
    assert len(reads) == 5, "nothing has changed since"
    scene.write(1)
    scene.follow()
    reads.clear()
    reader.read(datetime.now(UTC))
    assert reads.count("docs") == 2 and scene.table not in reads, "it counts what has changed"


def test_no_lag_of_zero_is_told_when_nobody_drives(scene: Scene) -> None:
    scene.follow()
    figures = scene.figures()
    assert figures.last_contact is not None
    now = datetime.now(UTC)
    assert [(each.lag_seqnos, each.lag_seconds) for each in figures.replicas] == [(0, 0.0)] * 2
    late = now + timedelta(seconds=figures.last_contact.next_seconds + 1)
    figures = scene.figures(at=late)
    told = figures.to_json()
    assert not told["is_driven"]
    for each in told["replicas"]:
        assert (each["lag_seqnos"], each["lag_seconds"]) == (None, None)
    text = figures.exposition()
    assert "dcplake_lag_seconds{" not in text and "dcplake_lag_seqnos{" not in text
    assert "dcplake_last_contact_timestamp_seconds{" in text

    scene.write(5)
    scene.receive()
    assert lag_of(scene.figures(at=late), "docs")[0] == 5, "the least that it lacks is known"
    scene.follow()
    scene.driver.close()
    assert not scene.figures().is_driven, "the driver has ended"

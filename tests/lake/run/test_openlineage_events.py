"""OpenLineage events of rounds and applies: sent over HTTP and to a file, and never in the way."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from dcp.errors import ConfigError
from dcp.installation import how_to_install
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run.openlineage_events import sending_lineage, table_name
from dcp.lake.run.run import run
from dcp.lake.tables.location import LakeLocation
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from tests.lake.receiving import PASSWORD, USER, settings_for, settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN = RoundPlan("lake", 1, (), (), 1, 1.0)
REPORT = RoundReport(1, 1, 0.5, (), ())
PARENT = "01890000-0000-7000-8000-000000000001"


@pytest.fixture(autouse=True)
def no_variables() -> Iterator[None]:
    """The client adds variables of its own to those that it finds."""
    yield
    for name in [each for each in os.environ if each.startswith("OPENLINEAGE")]:
        del os.environ[name]


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The URL of a receiver, and the events that it was sent."""
    events: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/api/v1/lineage"
            events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", events
        server.shutdown()


def test_a_run_sends_its_round_and_its_apply(
    spark: "SparkSession",
    tmp_path: Path,
    received: tuple[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, events = received
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "travel")
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/dag.task/{PARENT}")
    with ProducerCluster(ClusterSettings(vbuckets=2, users={USER: PASSWORD})) as cluster:
        cluster.set(b"key", b"1")
        settings = settings_for(cluster, tmp_path)
        run(settings, once=True, spark=spark)
    started, complete, applied = events
    assert [each["eventType"] for each in events] == ["START", "COMPLETE", "COMPLETE"]
    assert [each["job"] for each in (started, applied)] == [
        {"namespace": "travel", "name": f"default.{table}", "facets": {}}
        for table in ("changes", "docs")
    ]
    assert started["run"]["runId"] == complete["run"]["runId"] != applied["run"]["runId"]
    for each in events:
        parent = each["run"]["facets"]["parent"]
        assert parent["run"]["runId"] == PARENT
        assert (parent["job"]["namespace"], parent["job"]["name"]) == ("airflow", "dag.task")
    bucket = {"namespace": f"couchbase://{settings.source.seeds[0]}", "name": "default"}
    changes = {"namespace": "file", "name": f"{settings.lake.root}/changes"}
    docs = {"namespace": "file", "name": f"{settings.lake.root}/docs"}
    assert [_places(each) for each in events] == [
        ([bucket], [changes]),
        ([bucket], [changes]),
        ([changes], [docs]),
    ]
    assert "version" not in started["outputs"][0]["facets"]
    for each in (complete, applied):
        [output] = each["outputs"]
        assert output["facets"]["version"]["datasetVersion"] == "1"
        assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1


def test_a_round_that_is_not_committed_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "events.jsonl"
    _send_to(monkeypatch, type="file", log_file_path=str(file), append=True)
    with (
        pytest.raises(RuntimeError),
        sending_lineage(Observer(), settings_of(["127.0.0.1:1"], tmp_path)) as told,
    ):
        told.planned(PLAN, None)
        told.planned(PLAN, None)
        told.committed(REPORT)
        told.planned(PLAN, None)
        raise RuntimeError
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["eventType"] for each in events] == [
        *("START", "FAIL"),
        *("START", "COMPLETE"),
        *("START", "FAIL"),
    ]
    runs = [each["run"]["runId"] for each in events]
    assert runs[::2] == runs[1::2] and len(set(runs)) == 3


def test_a_receiver_out_of_reach_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _send_to(monkeypatch, type="http", url="http://127.0.0.1:9", retry={"total": 0})
    with sending_lineage(Observer(), settings_of(["127.0.0.1:1"], tmp_path)) as told:
        for _ in range(3):
            told.planned(PLAN, None)
            told.committed(REPORT)
    [warning] = caplog.messages
    assert "OpenLineage events cannot be sent; the run goes on: " in warning


def test_a_receiver_that_does_not_answer_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dcp.lake.run.openlineage_events._MOST_WAITING", 2)
    monkeypatch.setattr("dcp.lake.run.openlineage_events._LAST_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        _send_to(monkeypatch, type="http", url=url, timeout=60, retry={"total": 0})
        begin = monotonic()
        with sending_lineage(Observer(), settings_of(["127.0.0.1:1"], tmp_path)) as told:
            for _ in range(3):
                told.planned(PLAN, None)
                told.committed(REPORT)
        assert monotonic() - begin < 30
    # The library may tell, too, of the receiver that is gone by now.
    [warning] = [each.getMessage() for each in caplog.records if each.name.startswith("dcp")]
    assert warning.endswith("the run goes on: 2 wait for the receiver already")


def test_without_the_client_nothing_is_sent_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    observer, settings = Observer(), settings_of(["127.0.0.1:1"], tmp_path)
    with sending_lineage(observer, settings) as told:
        assert told is observer, "the environment asks for no events"
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with sending_lineage(observer, settings) as told:
        assert told is observer
    # A client of another test may still tell, by its library, of a receiver that is gone.
    [warning] = [each.getMessage() for each in caplog.records if each.name.startswith("dcp")]
    assert warning.endswith(f"; run {how_to_install('lineage')}")


def test_a_wrong_configuration_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _send_to(monkeypatch, type="pigeon")
    with (
        pytest.raises(ConfigError, match=r"OpenLineage's configuration.*pigeon"),
        sending_lineage(Observer(), settings_of(["127.0.0.1:1"], tmp_path)),
    ):
        pass


@pytest.mark.parametrize(
    ("location", "name"),
    [
        (LakeLocation(root="/data/lake"), ("file", "/data/lake/docs")),
        (LakeLocation(root="file:///data/lake%20one"), ("file", "/data/lake one/docs")),
        (LakeLocation(root="s3a://bucket/lakes/one/"), ("s3://bucket", "lakes/one/docs")),
        (LakeLocation(root="abfss://c@a.dfs/one"), ("abfss://c@a.dfs", "one/docs")),
        (LakeLocation(schema="travel"), ("spark_catalog", "travel.docs")),
        (LakeLocation(schema="main.travel"), ("main", "travel.docs")),
    ],
)
def test_tables_are_named_as_others_name_them(
    location: LakeLocation, name: tuple[str, str]
) -> None:
    assert table_name(location, "docs") == name


def _places(event: dict[str, Any]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    inputs, outputs = (
        [{"namespace": each["namespace"], "name": each["name"]} for each in event[side]]
        for side in ("inputs", "outputs")
    )
    return inputs, outputs


def _send_to(monkeypatch: pytest.MonkeyPatch, **transport: object) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))

"""``dcplake run --http``: page, figures, metrics and health over a real socket."""

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dcp.client.addresses import NodeAddress
from dcp.errors import ConfigError, SetupError
from dcp.lake.config.settings import LakeSettings, RoundSettings, Settings
from dcp.lake.monitor.page import page_html
from dcp.lake.monitor.run_server import RunServer, http_address
from dcp.lake.monitor.run_watch import RunWatch
from dcp.lake.rounds.observer import NEXT_ROUND, Observer, RoundProgress, StreamProgress, Wait
from dcp.lake.rounds.round_plan import Idle, RoundPlan, TaskBudget

ROUNDS = RoundSettings(
    target_seconds=20, node_deadline_seconds=10, minimum_interval_seconds=5, quiet_seconds=1
)
LIMIT = 20 + 10 + 5 + 60
IDLE = Idle("lake-1", 1, ())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> RunWatch:
    return RunWatch(Observer(), ROUNDS, clock)


def settings_in(folder: Path) -> Settings:
    return Settings(lake=LakeSettings(root=str(folder)))


@pytest.fixture
def server(watch: RunWatch, tmp_path: Path) -> Iterator[RunServer]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = NodeAddress("127.0.0.1", port)
    with RunServer(address, settings_in(tmp_path / "lake"), watch) as server:
        yield server


def get(server: RunServer, path: str) -> tuple[int, str, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_health_is_progress_not_life(server: RunServer, watch: RunWatch, clock: Clock) -> None:
    def health() -> tuple[int, str, str]:
        status, kind, text = get(server, "/health")
        told = json.loads(text)
        assert (kind, told["limit_seconds"]) == ("application/json", LIMIT)
        return status, told["status"], told["reason"]

    assert health() == (200, "ok", "its first round")
    clock.now = LIMIT
    assert health() == (503, "stalled", "its first round")
    watch.idle(IDLE)
    watch.waiting(5.0, NEXT_ROUND)
    assert health() == (200, "ok", "")
    watch.waiting(5.0, Wait("the cluster: none of 1 seeds answers", is_trouble=True))
    assert health() == (503, "stalled", "the cluster: none of 1 seeds answers")
    watch.idle(IDLE)
    assert health() == (200, "ok", "")
    clock.now += LIMIT - 1
    assert health()[0] == 200
    clock.now += 1
    assert health()[0] == 503
    watch.waiting(5.0, Wait("dcplake resume", is_trouble=False))
    assert health() == (200, "ok", "dcplake resume"), "a pause is somebody's will"


def test_a_round_that_brings_more_is_well_however_long_it_takes(
    watch: RunWatch, clock: Clock, tmp_path: Path
) -> None:
    progress = RoundProgress(str(tmp_path))
    plan = RoundPlan("lake-1", 1, (), (), TaskBudget(1, 20.0))
    watch.idle(IDLE)
    watch.planned(plan, progress)
    for frame_bytes in (1000, 2000, 2000):
        clock.now += LIMIT - 1
        progress.note(0, StreamProgress(0, frame_bytes))
        assert watch.health().is_well
    clock.now += 1
    assert not watch.health().is_well, "it has brought nothing since"


def test_what_there_is_and_what_there_is_not(server: RunServer) -> None:
    assert get(server, "/?again=1") == (200, "text/html; charset=utf-8", page_html())
    for path in ("/metrics", "/figures.json"):
        status, _, text = get(server, path)
        assert status == 503
        assert "no Delta table" in json.loads(text)["reason"], "the first round is not committed"
    status, _, text = get(server, "/lake")
    assert (status, json.loads(text)["reason"]) == (
        404,
        "expected one of /, /figures.json, /metrics, /health",
    )


def test_an_address_is_of_this_machine_alone_unless_a_host_is_named(
    server: RunServer, watch: RunWatch, tmp_path: Path
) -> None:
    assert http_address("8091") == NodeAddress("127.0.0.1", 8091)
    assert http_address("[::]:8080") == NodeAddress("::", 8080)
    assert http_address("lake-1.example:80") == NodeAddress("lake-1.example", 80)
    for wrong in ("80x", "", "0", "65536", "couchbase://x:80", "::1:80", "x y:80", "٣"):
        with pytest.raises(ConfigError, match=r"--http: found '.*', expected a port of 1 to 65535"):
            http_address(wrong)
    taken = NodeAddress("127.0.0.1", server.port)
    with pytest.raises(SetupError, match=rf"--http {taken}: cannot listen there: .*name another"):
        RunServer(taken, settings_in(tmp_path), watch)


def test_a_page_with_figures_in_it_cannot_be_left_by_them() -> None:
    page = page_html({"bucket": "</script><script>alert(1)</script>", "n": 2**64 - 1})
    begin = page.index('<script id="figures" type="application/json">')
    held = page[begin:].split(">", 1)[1].split("</script>", 1)[0]
    assert json.loads(held) == {"bucket": "</script><script>alert(1)</script>", "n": 2**64 - 1}

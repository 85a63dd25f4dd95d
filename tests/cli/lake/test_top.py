"""``dcplake top`` and the connections of ``dcplake status``, against what really goes on."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest

from dcp.cli.displays.node_connections import NodeFigures, node_shown
from dcp.cli.displays.running_tasks import board_text
from dcp.cli.main import main
from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.seed_lookup import HttpAnswer
from dcp.client.settings import ConnectionSettings
from dcp.lake.config.flow_control_settings import FlowControlSettings, WindowPlan
from dcp.lake.config.memory import worker_bytes
from dcp.lake.monitor.lake_figures import task_lines
from dcp.lake.task_board.task_stats import Connection, TaskStats
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.position import Position
from dcp.quantities import bar, memory_text, size_text
from dcp.relay_figures import RelayFigures
from dcp.server.bucket.node_figures import ConnectionFigures
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import Opcode
from tests.cli.conftest import World
from tests.producer.raw_client import RawClient
from tests.producer.tls import CERTIFICATE, TLS_FILES
from tests.quick_spark import QUICK_CONF, spark_conf_toml

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "secret-of-the-test"


def look_json(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)
    return found


def test_without_a_run_top_says_so_and_metrics_have_no_samples(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([], ["--json"], ["--metrics"]):
        assert main(["top", "--config", str(world.config), *words]) == 7
        told = capsys.readouterr()
        assert f"{world.lake}: found no lake there" in told.err and not told.out
    (world.lake / "changes").mkdir(parents=True)
    assert main(["top", "--config", str(world.config)]) == 0
    assert capsys.readouterr().out == "no task is running\n"
    assert main(["top", "--config", str(world.config), "--json"]) == 0
    found = look_json(capsys.readouterr().out)
    assert found.keys() == {"at", "tasks"} and found["tasks"] == []
    assert datetime.now(UTC) - datetime.fromisoformat(found["at"]) < timedelta(minutes=5)
    assert main(["top", "--config", str(world.config), "--metrics"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line.startswith("# ") for line in lines)


@contextmanager
def stalled_consumer(world: World, window_bytes: int) -> Iterator[NodeConnection]:
    """A DCP client that takes nothing, so that its window fills."""
    for number in range(2000):
        world.cluster.set(b"key-%d" % number, b'{"pad":"%s"}' % (b"x" * 200))
    owned = next(
        v for v in range(8) if world.cluster.high_seqno(v) and world.cluster.vbucket_owner(v) == 0
    )
    connection = NodeConnection(
        NodeAddress.parse(world.cluster.seeds[0]),
        ConnectionSettings("default", window_bytes=window_bytes),
        Credentials("tester", Secret(SECRET)),
        'stalled:"consumer"',
    )
    connection.open()
    try:
        connection.open_stream(owned, Position.beginning())
        end = monotonic() + 90
        while connection.stats(monotonic()).received_bytes < window_bytes:
            assert monotonic() < end
            sleep(0.05)
        yield connection
    finally:
        connection.close()


def test_top_shows_what_a_producer_tells_of_its_connections(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--user", "tester", "--producer", world.cluster.http_seeds[0]]
    with stalled_consumer(world, 10_000) as connection:
        assert main(["top", *where, "--json"]) == 0
        told = look_json(capsys.readouterr().out)
        assert datetime.fromisoformat(told["at"]) <= datetime.now(UTC)
        (found,) = told["connections"]
        assert found["name"] == connection.name
        assert found["window_bytes"] == 10_000
        assert 10_000 <= found["outstanding_bytes"] < 10_500
        assert found["outstanding_bytes"] == connection.stats(monotonic()).received_bytes
        assert (found["acked_bytes"], found["streams"]) == (0, 1)
        assert found["paused"] == "BufferLogFull"
        assert main(["top", *where]) == 0
        text = capsys.readouterr().out
        assert "1 DCP connection\n" in text
        assert "[##########+ 9.8 KiB" in text
        assert "BufferLogFull" in text
        assert "\x1b" not in text


def test_a_consumer_that_acknowledges_too_much_is_told_of(
    world: World, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """On its connection, and on a stream that has ended since."""
    where = ["--user", "tester", "--producer", world.cluster.http_seeds[0]]

    def told() -> int:
        assert main(["top", *where, "--metrics"]) == 0
        name = 'dcp_server_over_acked_bytes_total{connection="twice"} '
        lines = capsys.readouterr().out.splitlines()
        (value,) = [line.removeprefix(name) for line in lines if line.startswith(name)]
        return int(float(value))

    def acknowledge(opaque: int, frame_bytes: int) -> None:
        client.send(encode(m.BufferAck(frame_bytes), Opcode.DCP_BUFFER_ACK, opaque=opaque))
        client.ok(m.Empty(), Opcode.NOOP)

    vbucket = next(v for v in range(8) if world.cluster.vbucket_owner(v) == 0)
    with RawClient(world.cluster.seeds[0]) as client:
        client.log_in(user="tester", password=SECRET)
        client.open_dcp(b"twice", window=100_000, stream_buffer_size="100000")
        assert told() == 0
        assert main(["top", *where]) == 0
        assert "more than was outstanding" not in capsys.readouterr().out
        stream = client.request_stream(vbucket).opaque
        acknowledge(stream, 2**20)
        of_stream = told()
        assert 0 < of_stream <= 2**20
        assert client.call(m.Empty(), Opcode.DCP_CLOSE_STREAM, vbucket=vbucket).status == 0
        assert told() == of_stream, "the stream's count stays"
        acknowledge(0, 2**30)
        both = told()
        assert of_stream + 2**30 - 2**20 < both <= of_stream + 2**30
        stats = client.statistics("dcp")
        assert stats["eq_dcpq:twice:over_acked_bytes"] == str(both)
        assert main(["top", *where]) == 0
        assert "\ntwice: acknowledged 1.0 GiB more than was outstanding" in capsys.readouterr().out
    (line,) = [line for line in caplog.messages if "found an acknowledgement of" in line]
    assert line.startswith("eq_dcpq:twice: found an acknowledgement of 1048576 bytes, expected at")


HOSTILE_NAME = b"e\x1b[2J\nvil\r\\"
SHOWN_NAME = r"e\x1b[2J\x0avil\x0d\\"


def test_the_name_of_a_consumer_moves_no_cursor(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--user", "tester", "--producer", world.cluster.http_seeds[0]]
    with RawClient(world.cluster.seeds[0]) as client:
        client.log_in(user="tester", password=SECRET).open_dcp(HOSTILE_NAME)
        assert main(["top", *where]) == 0
        text = capsys.readouterr().out
        (row,) = [line for line in text.splitlines() if "vil" in line]
        assert row.startswith(f"{SHOWN_NAME}  off")
        assert "\x1b" not in text
        assert main(["top", *where, "--json"]) == 0
        assert look_json(capsys.readouterr().out)["connections"][0]["name"] == SHOWN_NAME
        assert main(["top", *where, "--metrics"]) == 0
        lines = capsys.readouterr().out.split("\n")
        label = SHOWN_NAME.replace("\\", "\\\\")
        assert f'dcp_server_streams{{connection="{label}"}} 0.0' in lines


def test_names_that_a_server_tells_as_they_are_move_no_cursor() -> None:
    name = HOSTILE_NAME.decode()
    figures = NodeFigures(
        connections=(ConnectionFigures(name),),
        relay=RelayFigures(disk_trouble=f"{name}\nejections  0"),
    )
    lines = node_shown(figures, metrics=False, as_json=False).split("\n")
    assert all(line.isprintable() for line in lines)
    assert not [line for line in lines if line.startswith(("vil", "ejections  0"))]


def test_what_a_server_refuses_with_moves_no_cursor() -> None:
    waits_for = "reconnecting: refused: \x1b[2J\nlake: fine"
    windows = WindowPlan.of(FlowControlSettings(), 1)
    waiting = Connection("node:1", "", waits_for)
    task = TaskStats("t0", 1, "host", 1, connections=(waiting,), windows=windows)
    told = list(task_lines([task]))
    assert len(told) == 3
    assert all(line.isprintable() for line in told)
    assert all(line.isprintable() for line in board_text([task]).split("\n"))
    assert "lake: fine" not in {line.lstrip()[:10] for line in board_text([task]).split("\n")}


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--producer", "nonsense:x"], 2, "write host:port"),
        (["--producer", "127.0.0.1:11210"], 2, "found port 11210, the data service's"),
        (["--relay", "127.0.0.1:1"], 4, "Connection refused"),
    ],
)
def test_a_producer_that_cannot_be_asked_is_one_sentence(
    words: list[str], code: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--user", "tester", *words]) == code
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--once"], ["--once", "--json"], ["--metrics"]])
def test_a_producer_is_no_relay(
    world: World, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (first, _) = world.cluster.http_seeds
    assert main(["top", "--user", "tester", "--relay", first, *more]) == 4
    printed = capsys.readouterr()
    assert f"{first}: found a producer" in printed.err and "--producer shows it" in printed.err
    assert printed.out == ""


def test_the_password_is_sent_as_it_is_only_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def note(node: NodeAddress, *_: object) -> HttpAnswer:
        asked.append(str(node))
        return HttpAnswer("URL", 404, b"")

    monkeypatch.setattr("dcp.cli.displays.node_connections.ask_over_http", note)
    for here in ("127.0.0.1:8091", "[::1]:8091", "localhost:9000", "localhost"):
        assert main(["top", "--producer", here]) == 4
    assert asked == ["127.0.0.1:8091", "[::1]:8091", "localhost:9000", "localhost:8091"]
    assert "URL: found status 404 (''), expected a relay" in capsys.readouterr().err
    words = ["top", "--relay", "relay1.example"]
    assert main(words) == 2
    assert "sends the password as it is, expected --tls" in capsys.readouterr().err
    assert asked[4:] == []
    assert main([*words, "--tls"]) == main([*words, "--set", "source.allow_plain=true"]) == 4
    assert asked[4:] == ["relay1.example:18091", "relay1.example:8091"]


def test_a_producer_is_asked_within_tls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", SECRET)
    settings = ClusterSettings(vbuckets=2, users={"tester": SECRET}, tls=TLS_FILES)
    with ProducerCluster(settings) as cluster:
        where = ["--producer", cluster.https_seeds[0]]
        assert main(["top", "--user", "tester", *where, "--ca-file", CERTIFICATE]) == 0
        assert main(["top", "--user", "tester", *where, "--tls"]) == 4
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
        assert main(["top", "--user", "other", *where, "--ca-file", CERTIFICATE]) == 4
        assert "status 401" in capsys.readouterr().err


def test_on_a_terminal_it_goes_on_until_it_is_interrupted(world: World) -> None:
    (world.lake / "changes").mkdir(parents=True)
    ours, theirs = pty.openpty()
    words = ["-m", "dcp.cli.main", "top", "--config", str(world.config)]
    # A job in a shell's background ignores SIGINT, and so would all that it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen([sys.executable, *words], stdout=theirs, stderr=theirs)
    signal.signal(signal.SIGINT, before)
    os.close(theirs)
    seen = b""
    end = monotonic() + 60
    try:
        while seen.count(b"no task is running") < 2:
            assert monotonic() < end, seen
            seen += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0
    finally:
        process.kill()
        process.wait()
    try:
        while more := os.read(ours, 4096):
            seen += more
    except OSError:  # how a terminal says that its other side is gone
        pass
    os.close(ours)
    assert seen.startswith(b"\x1b[?1049h")
    assert seen.endswith(b"\x1b[?25h\x1b[?1049l"), "the terminal is left as it was"


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 10, "[..........]"),
        (5, 10, "[#####.....]"),
        (11, 10, "[##########+"),
        (1, 0, "[..........]"),
        (-(10**18), 1, "[..........]"),
    ],
)
def test_bars(part: int, whole: int, shown: str) -> None:
    assert bar(part, whole) == shown


def test_sizes() -> None:
    sizes = [0, 1023, 1024, 10 * 2**20, 5 * 2**40, 5 * 2**50]
    assert [size_text(size) for size in sizes] == [
        "0 B", "1023 B", "1.0 KiB", "10.0 MiB", "5.0 TiB", "5120.0 TiB",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_round_that_stands_still_is_seen_by_status_top_and_metrics(
    world: World, tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    """A task of a run in another process waits behind its second batch, as if Spark did."""
    for number in range(3000):
        world.cluster.set(b"key-%d" % number, b'{"pad":"%s"}' % (b"x" * 200))
    pause = tmp_path / "pause"
    with world.config.open("a") as config:
        config.write("[flow_control]\nwindow_bytes = 20000\nbatch_bytes = 5000\n")
        config.write("[round]\ntarget_seconds = 120.0\n" + spark_conf_toml(QUICK_CONF))
    options = ["--config", str(world.config)]
    environment = os.environ | {"DCPLAKE_STOP_AT": f"round.received:2=pause@{pause}"}
    run = subprocess.Popen(
        [sys.executable, "-m", "dcp.cli.main", "run", *options, "--once"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    assert run.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend(run.stdout or ()))
    reader.start()
    try:
        tasks = _until_stalled(world, run, lines, capsys)
        # Two of the task's connections may wait at once: what stands still is the task.
        connection = next(each for each in _stalled(tasks[0]) if each["bottleneck"] == "spark")
        assert connection["waits_for"] == "Spark (buffer full)"
        assert main(["top", *options, "--once"]) == 0
        text = capsys.readouterr().out
        assert re.search(r"^1 task of round 1: [\d,]+ rows so far", text)
        assert "Spark (buffer full)" in text
        assert main(["status", *options]) == 0
        status = capsys.readouterr().out
        assert "connections of round 1:" in status
        bound_bytes = worker_bytes(len(tasks[0]["connections"]), 20000, 5000)
        assert tasks[0]["bound_bytes"] == bound_bytes
        assert re.search(rf"RSS \d+ of at most {bound_bytes / 2**20:,.0f} MiB", status)
        assert f"{connection['node']}: waits for Spark (buffer full)" in status
        assert main(["status", *options, "--json"]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert [task.keys() for task in told["tasks"]] == [task.keys() for task in tasks]
        nodes = {each["node"] for task in told["tasks"] for each in task["connections"]}
        assert connection["node"] in nodes
        assert main(["top", *options, "--metrics"]) == 0
        metrics = capsys.readouterr().out
        label = tasks[0]["task"].split("-")[-1].split(".")[0]
        node = connection["node"]
        assert f'fc_bottleneck{{node="{node}",stage="spark",task="{label}"}} 1.0' in metrics
        assert f'dcp_window_bytes{{node="{node}",task="{label}"}} 20000.0' in metrics
        assert SECRET not in json.dumps(tasks) + text + status + metrics
    finally:
        code = _go_on(run, pause)
        reader.join()
        run.stdout.close()
    assert code == 0, lines[-30:]
    told = r"flow control: buffer full \d+ % of the time \(waiting for Spark\)"
    assert re.search(told, "".join(lines))
    assert main(["top", *options]) == 0
    assert capsys.readouterr().out == "no task is running\n"


def _go_on(run: subprocess.Popen[str], pause: Path) -> int:
    """Let every process go on that pauses, until the run ends; one that does not is killed."""
    end = monotonic() + 200
    while run.poll() is None and monotonic() < end:
        pause.unlink(missing_ok=True)
        sleep(0.2)
    run.kill()
    return run.wait()


def _until_stalled(
    world: World,
    run: subprocess.Popen[str],
    lines: list[str],
    capsys: pytest.CaptureFixture[str],
) -> list[dict[str, Any]]:
    end = monotonic() + 300  # Spark may take long to start
    while True:
        assert monotonic() < end and run.poll() is None, lines[-30:]
        if not (world.lake / "changes").exists():
            sleep(0.2)
            continue
        assert main(["top", "--config", str(world.config), "--json"]) == 0
        tasks: list[dict[str, Any]] = look_json(capsys.readouterr().out)["tasks"]
        # The other task may wait in passing; this one stays.
        still = len(tasks) == 1 and tasks[0]["seconds"] > 5
        if still and any(each["bottleneck"] == "spark" for each in _stalled(tasks[0])):
            return tasks
        sleep(0.2)


def _stalled(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in task["connections"] if each["bottleneck"]]


def test_a_board_of_tasks_without_flow_control_is_shown_too() -> None:
    from tests.lake.task_board.test_board_files import READY, watcher

    task: TaskStats = watcher([READY]).stats()
    without = TaskStats.from_json(json.loads(json.dumps(task.to_json())) | {"connections": []})
    assert list(task_lines([without])) == ["connections of round 7:", f"  t2: {_memory_of(task)}"]
    assert "1 task of round 7" in board_text([without])
    assert f"t2: {_memory_of(task)}\n" in board_text([without])
    assert list(task_lines([task]))[2].startswith(
        "  t2 node.example:11210: waits for Spark (buffer full)"
    )


def _memory_of(task: TaskStats) -> str:
    assert task.resident_bytes > 20 * 2**20  # this process's
    return f"RSS {task.resident_bytes / 2**20:,.0f} of at most 540 MiB"


@pytest.mark.parametrize(
    ("resident_bytes", "bound_bytes", "shown"),
    [
        (312 * 2**20, 540 * 2**20, "RSS 312 of at most 540 MiB"),
        (312 * 2**20, 0, "RSS 312 MiB"),
        (0, 540 * 2**20, "RSS not known of at most 540 MiB"),
        (0, 0, "RSS not known"),
    ],
)
def test_memory_beside_its_bound(resident_bytes: int, bound_bytes: int, shown: str) -> None:
    assert memory_text(resident_bytes, bound_bytes) == shown

"""The task board: what is written, who may read it, what is no news; and what a task says."""

import json
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dcp.cli.displays.running_tasks import board_text
from dcp.client.addresses import NodeAddress
from dcp.client.stats import ConnectionStats, StageStats, WindowStats
from dcp.errors import ConfigError
from dcp.lake.config.flow_control_settings import FlowControlSettings, WindowPlan
from dcp.lake.config.settings import LakeSettings, Settings
from dcp.lake.task_board.board_files import TaskWatcher, read_board, shown_on_board
from dcp.lake.task_board.board_folder import BoardFolder
from dcp.lake.task_board.task_metrics import task_exposition
from dcp.lake.task_board.task_stats import NodeStreams, TaskStats, connection_of

NODE = NodeAddress("node.example", 11210)
WINDOW = WindowStats(1000, 1100, 3.0, overshoot_bytes=150)
HALF = WindowStats(1000, 500, 3.0, overshoot_bytes=150)
STAGES = [StageStats("buffers", 4, 3), StageStats("batches", 1, 1)]
SHARED = WindowPlan("aggressive", 1_200_000_000, 7, 10_485_760, 10_485_760)
READY = ConnectionStats(
    node=NODE,
    name="dcplake-x",
    is_ready=True,
    window=WINDOW,
    longest_bytes=9000,
    unreleased_limit_bytes=2000,
    received_bytes=5000,
    taken_bytes=4400,
    given_bytes=4400,
    released_bytes=4000,
    acknowledged_bytes=3900,
    acks=7,
    quiet_seconds=5.0,
)


WAITS = [
    (ConnectionStats(NODE), NodeStreams(), "reconnecting: not tried yet"),
    (ConnectionStats(NODE, error="refused"), NodeStreams(), "reconnecting: refused"),
    (
        ConnectionStats(NODE, "n", waits_for="the answer to HELLO", error="it broke"),
        NodeStreams(),
        "bootstrap: the answer to HELLO (before: it broke)",
    ),
    (READY, NodeStreams(3, 1), "Spark (buffer full)"),
    (
        replace(READY, window=HALF, stream_window_bytes=100, full_stream_windows=2),
        NodeStreams(3, 1),
        "Spark (buffers of 2 streams full)",
    ),
    (replace(READY, window=HALF, quiet_seconds=0.5), NodeStreams(3, 1), "reading"),
    (replace(READY, window=HALF), NodeStreams(), "a stream"),
    (replace(READY, window=HALF), NodeStreams(3, 1), "the end of a snapshot"),
    (replace(READY, window=HALF, quiet_seconds=None), NodeStreams(3, 0), "new changes"),
]


@pytest.mark.parametrize(("stats", "streams", "waits_for"), WAITS)
def test_what_a_connection_waits_for(
    stats: ConnectionStats, streams: NodeStreams, waits_for: str
) -> None:
    assert connection_of(stats, STAGES, streams).waits_for == waits_for


@pytest.mark.parametrize(
    ("released", "given", "taken", "offered", "bottleneck"),
    [
        (3900, 4200, 4400, 1, "spark"),
        (3900, 3901, 4400, 0, "spark"),
        (5000, 5000, 5000, 1, "spark"),  # a batch of another connection, or without bytes
        (4200, 4200, 4400, 0, "batch"),
        (4200, 4200, 4200, 0, "handover"),
        (5000, 5000, 5000, 0, "acknowledgement"),
    ],
)
def test_the_last_stage_that_holds_anything_is_the_bottleneck(
    released: int, given: int, taken: int, offered: int, bottleneck: str
) -> None:
    stats = replace(READY, released_bytes=released, given_bytes=given, taken_bytes=taken)
    stages = [StageStats("buffers", 4, 3), StageStats("batches", 1, offered)]
    found = connection_of(stats, stages, NodeStreams(), batch_bytes=500)
    assert found.bottleneck == bottleneck
    assert [(stage.name, stage.size, stage.in_use) for stage in found.stages] == [
        ("frame", 9000, 0),
        ("handover", 2000, 5000 - taken),
        ("batch", 500, taken - given),
        ("spark", 500, given - released),
    ]


def watcher(
    connections: list[ConnectionStats], name: str = "dcplake-0a1b2c3d-r7-t2.0"
) -> TaskWatcher:
    told = tuple(connection_of(each, STAGES, NodeStreams(3, 1), 500) for each in connections)

    def stats() -> TaskStats:
        return TaskStats(
            name,
            7,
            vbuckets=8,
            open_vbuckets=3,
            rows=120,
            bytes=9000,
            connections=told,
            stages=tuple(STAGES),
            windows=SHARED,
            resident_bytes=psutil.Process().memory_info().rss,
            bound_bytes=540 * 2**20,
        )

    return TaskWatcher(stats)


def test_a_look_is_read_as_it_was_written() -> None:
    stats = watcher([READY, ConnectionStats(NODE, error="gone")]).stats()
    assert TaskStats.from_json(json.loads(json.dumps(stats.to_json()))) == stats
    assert (stats.label, stats.top_bottleneck, stats.rows) == ("t2", "spark", 120)
    assert stats.connections[0].bytes_per_second > 0


@pytest.mark.parametrize(
    "found", [None, [], {}, {"format": 2}, {"format": 3}, {"format": 3, "x": 1}]
)
def test_what_is_no_look_is_refused(found: object) -> None:
    with pytest.raises(ValueError, match="expected a sample of a task"):
        TaskStats.from_json(found)


def test_window_full_is_a_share_of_the_time_of_all_windows() -> None:
    stats = replace(watcher([READY, READY]).stats(), seconds=12.0)
    assert stats.window_full_share == pytest.approx(0.25)
    assert replace(stats, connections=()).window_full_share == 0.0


@pytest.fixture
def board(tmp_path: Path) -> BoardFolder:
    return BoardFolder("lake", str(tmp_path))


def wait_for(board: BoardFolder, count: int) -> list[TaskStats]:
    end = monotonic() + 90
    while len(all_stats := read_board(board)) != count:
        assert monotonic() < end, all_stats
        sleep(0.05)
    return all_stats


def test_a_board_shows_a_task_while_it_runs(board: BoardFolder) -> None:
    with shown_on_board(board, "task", watcher([READY]).stats):
        first = wait_for(board, 1)[0]
        while read_board(board)[0].at == first.at:
            sleep(0.05)
        assert not list(board.folder.glob("*.new")) or wait_for(board, 1)
    assert read_board(board) == []
    assert list(board.folder.iterdir()) == []


def test_stats_of_tasks_that_are_gone_or_silent_are_removed(board: BoardFolder) -> None:
    folder = board.make()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stats = watcher([READY]).stats()
    news = {
        "here": stats,
        "dead": replace(stats, pid=ended.pid),
        "silent": stats,
        "elsewhere": replace(stats, host="another-host", pid=ended.pid, task="elsewhere"),
    }
    for name, each in news.items():
        put(folder, name, each, seconds_ago=31 if name == "silent" else 0)
    (folder / "torn.task.json").write_text('{"format": 3, "tas')
    os.utime(folder / "torn.task.json", (0, 0))
    (folder / "newer.task.json").write_text('{"format": 4}')
    (folder / "other.txt").write_text("not ours")
    assert [each.task for each in read_board(board)] == [stats.task, "elsewhere"]
    left = {file.name for file in folder.iterdir()}
    assert left == {"here.task.json", "elsewhere.task.json", "newer.task.json", "other.txt"}


@pytest.mark.parametrize("skew_seconds", [-86_400, -31, 31, 86_400])
def test_machines_that_share_a_board_need_not_agree_on_the_time(
    board: BoardFolder, skew_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' clocks, then our own: none says how old a file is."""
    folder = board.make()
    stats = watcher([READY]).stats()
    skewed = datetime.now(UTC) + timedelta(seconds=skew_seconds)
    theirs = replace(stats, host="another-host", at=skewed)
    put(folder, "theirs", theirs)
    put(folder, "ours", replace(stats, task="ours", at=skewed))
    for _ in range(2):
        assert [each.task for each in read_board(board)] == [stats.task, "ours"]
        monkeypatch.setattr("dcp.lake.task_board.board_files.time", lambda: time() - skew_seconds)
    assert {file.name for file in folder.iterdir()} == {"theirs.task.json", "ours.task.json"}


@pytest.mark.parametrize(
    ("host", "seconds_ago", "is_left"),
    [("another-host", 31, True), ("another-host", 3700, False), (socket.gethostname(), 31, False)],
)
def test_a_silent_task_is_no_news_and_another_machines_file_stays(
    board: BoardFolder, host: str, seconds_ago: float, is_left: bool
) -> None:
    file = put(board.make(), "x", replace(watcher([]).stats(), host=host), seconds_ago)
    assert read_board(board) == []
    assert file.exists() == is_left


def test_who_may_only_read_a_board_goes_by_the_own_clock(
    board: BoardFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    folder = board.make()
    put(folder, "old", watcher([]).stats(), seconds_ago=31)
    put(folder, "new", replace(watcher([]).stats(), task="new"))
    assert [each.task for each in read_board(board)] == ["new"]


def put(folder: Path, name: str, stats: TaskStats, seconds_ago: float = 0) -> Path:
    """Write a task's file, as old as that by its file system's clock."""
    file = folder / f"{name}.task.json"
    file.write_text(json.dumps(stats.to_json()))
    written_at = file.stat().st_mtime - seconds_ago
    os.utime(file, (written_at, written_at))
    return file


@pytest.mark.parametrize(
    "damage",
    [
        {"rows": math.inf},
        {"rows": 10**400},
        {"pid": 10**30},
        {"task": 5},
        {"task": None},
        {"at": "x"},
        {"at": 1.0},
        {"at": "2026-01-31T10:00:00"},
        {"bytes_per_second": math.nan},
        {"bytes_per_second": "x"},
        {"bottleneck_seconds": [1]},
        {"bottleneck_seconds": {"spark": "x"}},
        {"connections": [{"node": "n", "name": "c", "waits_for": "", "bottleneck": ["a"]}]},
    ],
    ids=str,
)
def test_a_damaged_file_hides_no_other_task(board: BoardFolder, damage: dict[str, Any]) -> None:
    folder, good = board.make(), watcher([]).stats()
    put(folder, "good", good)
    (folder / "bad.task.json").write_text(json.dumps(good.to_json() | damage))
    os.mkfifo(folder / "pipe.task.json")
    assert [each.task for each in read_board(board)] == [good.task]


def test_a_folder_of_an_unknown_user_is_refused_by_the_settings_name() -> None:
    with pytest.raises(ConfigError, match=r"flow_control\.stats_folder: found '~nobody-here/x'"):
        read_board(BoardFolder("lake", "~nobody-here/x"))


def test_a_task_that_begins_removes_what_killed_ones_left(board: BoardFolder) -> None:
    """Nobody may ever look; each run would leave one file more."""
    folder = board.make()
    stats = watcher([READY]).stats()
    put(folder, "dead", stats, seconds_ago=31)
    put(folder, "here", stats)
    for name, seconds_ago in (("killed", 31), ("writing", 0)):
        unfinished = folder / f"{name}.task.new"
        unfinished.write_text('{"format"')
        os.utime(unfinished, (time() - seconds_ago, time() - seconds_ago))
    with shown_on_board(board, "new", watcher([READY]).stats):
        left = {file.name for file in folder.iterdir() if not file.name.startswith("new-")}
        assert left == {"here.task.json", "writing.task.new"}


def test_a_board_that_cannot_be_written_stops_no_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with shown_on_board(BoardFolder("lake", str(tmp_path / "file")), "task", watcher([]).stats):
        pass
    assert "what this task sees is shown nowhere" in caplog.text
    board = BoardFolder("lake", str(tmp_path))

    def broken() -> TaskStats:
        raise RuntimeError("a bug in what is shown")

    with shown_on_board(board, "task", broken):
        sleep(0.7)
        assert read_board(board) == []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path


def test_the_machines_own_folder_is_private(machine: Path) -> None:
    board = BoardFolder("lake")
    assert read_board(board) == []
    folder = board.make()
    assert folder == machine / f"dcplake-stats-{os.getuid()}" / "lake"
    assert [each.stat().st_mode & 0o777 for each in (folder, folder.parent)] == [0o700, 0o700]
    folder.parent.chmod(0o777)
    for attempt in (board.make, lambda: read_board(board)):
        with pytest.raises(ConfigError, match="expected our own with 0o700"):
            attempt()


def test_a_folder_that_another_user_linked_is_refused(machine: Path) -> None:
    (machine / "theirs").mkdir(mode=0o700)
    (machine / f"dcplake-stats-{os.getuid()}").symlink_to(machine / "theirs")
    with pytest.raises(ConfigError, match="expected our own"):
        BoardFolder("lake").make()


def test_each_lake_has_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def of(root: str = "lake", schema: str = "") -> BoardFolder:
        flow = FlowControlSettings(stats_folder="/shared")
        return BoardFolder.of(
            Settings(lake=LakeSettings(root=root, schema=schema), flow_control=flow)
        )

    assert of(root="here/lake") == of(root=str(tmp_path / "here" / "lake"))
    others = [
        of(root="lake"),
        of(root="s3a://b/lake"),
        of(schema="lake"),
        of(schema="s3a://b/lake"),
    ]
    assert len({each.lake for each in others}) == 4
    assert str(others[0].folder).startswith("/shared/dcplake-stats-")


METRICS = """\
dcplake_task_memory_bound_bytes{task="t2"} 566231040
dcp_window_bytes{task="t2",node="node.example:11210"} 1000
dcp_window_overflow_bytes_max{task="t2",node="node.example:11210"} 150
dcp_recv_bytes_total{task="t2",node="node.example:11210"} 5000
dcp_released_bytes_total{task="t2",node="node.example:11210"} 4000
dcp_acked_bytes_total{task="t2",node="node.example:11210"} 3900
dcp_unacked_bytes{task="t2",node="node.example:11210"} 1100
dcp_ack_total{task="t2",node="node.example:11210"} 7
dcp_window_full_seconds_total{task="t2",node="node.example:11210"} 3
credit_used{task="t2",node="node.example:11210",stage="spark",kind="bytes"} 400
credit_limit{task="t2",node="node.example:11210",stage="spark",kind="bytes"} 500
credit_used{task="t2",node="node.example:11210",stage="handover",kind="bytes"} 600
credit_limit{task="t2",stage="batches",kind="batches"} 1
credit_used{task="t2",stage="buffers",kind="buffers"} 3
fc_bottleneck{task="t2",node="node.example:11210",stage="spark"} 1
window_policy{task="t2",policy="aggressive"} 1
window_quota_bytes{task="t2"} 1200000000
window_connections{task="t2"} 7
window_shared_bytes{task="t2"} 73400320
dcplake_task_round{task="t2"} 7
"""


def samples_of(text: str) -> list[Sample]:
    return [each for family in text_string_to_metric_families(text) for each in family.samples]


def test_metrics_are_one_exposition_with_bounded_labels() -> None:
    older = watcher([READY], "dcplake-0a1b2c3d-r6-t2.0").stats()
    newer = replace(watcher([READY]).stats(), at=older.at + timedelta(seconds=1))
    text = task_exposition([newer, older])
    found = samples_of(text)
    for sample in samples_of(METRICS):
        assert sample in found
    series = [(each.name, tuple(sorted(each.labels.items()))) for each in found]
    assert len(series) == len(set(series)), "each series once, whatever tasks are called"
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert {each.name for each in found} <= set(types)
    resident = Sample("dcplake_task_resident_bytes", {"task": "t2"}, newer.resident_bytes)
    assert newer.resident_bytes and resident in found
    assert text.endswith("\n")
    assert task_exposition([]).count("# TYPE") == len(types)


def test_what_a_node_does_not_count_is_not_outstanding() -> None:
    """A window that was switched off and on is forgotten; without one nothing is counted."""
    again = watcher([replace(READY, window=replace(WINDOW, in_use=300))]).stats()
    assert 'dcp_unacked_bytes{node="node.example:11210",task="t2"} 300.0\n' in task_exposition(
        [again]
    )
    none = watcher([replace(READY, window=None)]).stats()
    assert "dcp_unacked_bytes{" not in task_exposition([none])


def test_a_window_that_waits_for_its_acknowledgement_is_shown_as_any_other() -> None:
    freed = replace(READY, taken_bytes=5000, given_bytes=5000, released_bytes=5000)
    waits = connection_of(freed, (), NodeStreams())
    looked = TaskWatcher(
        lambda: TaskStats("dcplake-0a1b2c3d-r7-t2.0", 7, connections=(waits,), windows=SHARED)
    ).stats()
    stats = replace(looked, seconds=10.0, bottleneck_seconds={"acknowledgement": 4.0})
    assert [each.bottleneck for each in stats.connections] == ["acknowledgement"]
    text = task_exposition([stats])
    labels = 'node="node.example:11210",stage="acknowledgement",task="t2"'
    assert f"fc_bottleneck{{{labels}}} 1.0\n" in text
    assert 'fc_bottleneck_seconds_total{stage="acknowledgement",task="t2"} 4.0\n' in text
    assert ["t2", "acknowledgement", "-", "-", "40%"] in [
        line.split() for line in board_text([stats]).splitlines()
    ]


def test_what_the_driver_planned_can_be_seen() -> None:
    stats = watcher([READY]).stats()
    told = "t2: aggressive gives 7 connections of the executor windows of 70.0 MiB in all"
    assert told in board_text([stats]).splitlines()
    same = replace(stats, windows=replace(SHARED, policy="static"))
    assert " gives " not in board_text([same])


def test_two_that_look_at_once_count_the_time_once() -> None:
    """The board's thread looks, and the task itself when it ends."""
    inside: list[int] = []
    together = threading.Event()

    def state() -> TaskStats:
        inside.append(1)
        if len(inside) > 1:
            together.set()
        together.wait(0.3)
        inside.pop()
        told = connection_of(READY, STAGES, NodeStreams(3, 1))
        return TaskStats("task", 7, rows=120, bytes=9000, connections=(told,), windows=SHARED)

    watched = TaskWatcher(state)
    all_stats: list[TaskStats] = []
    threads = [threading.Thread(target=lambda: all_stats.append(watched.stats())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not together.is_set()
    last = max(all_stats, key=lambda stats: stats.seconds)
    assert last.bottleneck_seconds["spark"] == pytest.approx(last.seconds)
    assert last.bytes == 9000, "what the task says that it took"


def test_a_label_cannot_break_out_of_its_quotes() -> None:
    stats = watcher([READY]).stats()
    odd = replace(stats, connections=(replace(stats.connections[0], node='a"b\\c\nd'),))
    assert r'node="a\"b\\c\nd"' in task_exposition([odd])
    assert socket.gethostname() not in task_exposition([odd])

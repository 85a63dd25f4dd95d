"""Tasks of one executor share their windows, as processes that know nothing of each other."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import IO

import pytest

from dcp.cli.live_view import board_text
from dcp.client.windows import SameWindows
from dcp.lake.executor_windows import (
    DEATH_SECONDS,
    LOOK_SECONDS,
    STALLED_SECONDS,
    ExecutorWindows,
    register_folder,
    share_of,
    task_windows,
)
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.live_look import TaskLook, WindowShare
from dcp.lake.live_metrics import exposition
from dcp.lake.window_register import WindowRegister
from dcp.protocol.window_policies import Policy, PolicySettings

ROOT = Path(__file__).resolve().parents[2]
AGGRESSIVE = PolicySettings(policy=Policy.AGGRESSIVE)
FLOW = FlowControlSettings(window_policy="aggressive", window_quota_bytes=1_200_000_000)
"""kv_engine's numbers (case K15): 52,428,800 alone, then 30, 20, 15, 12 MB, then the least."""


class TaskProcess:
    """A process that joins the register and does what it is told, line by line."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.lake.window_task", str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, command: str, *names: str) -> dict[str, int]:
        _write(self._process.stdin, [command, *names])
        line = self._process.stdout.readline() if self._process.stdout else ""
        return dict(json.loads(line))

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        self._process.communicate(timeout=90)


def _write(stream: "IO[str] | None", words: list[str]) -> None:
    assert stream is not None
    stream.write(json.dumps(words) + "\n")
    stream.flush()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mine" / "windows-0"


@pytest.fixture
def new_task(folder: Path) -> Iterator[Callable[[], TaskProcess]]:
    tasks: list[TaskProcess] = []

    def start() -> TaskProcess:
        tasks.append(TaskProcess(folder))
        return tasks[-1]

    yield start
    for task in tasks:
        task.end()


def test_three_processes_share_and_the_others_grow_when_one_is_killed(
    folder: Path, new_task: Callable[[], TaskProcess]
) -> None:
    first, second, third = (new_task() for _ in range(3))
    assert first.tell("declare", "a") == {"a": 52_428_800}
    assert second.tell("declare", "b") == {"a": 30_000_000, "b": 30_000_000}
    assert third.tell("declare", "c", "d") == dict.fromkeys("abcd", 15_000_000)
    changes = first.tell("changes")["changes"]
    assert first.tell("look") == dict.fromkeys("abcd", 15_000_000)
    assert first.tell("changes")["changes"] == changes, "looking changes nothing"
    third.kill()
    assert first.tell("look") == dict.fromkeys("ab", 30_000_000)
    assert second.tell("changes")["changes"] == changes + 1
    assert len(list(folder.glob("task-*"))) == 2
    second.tell("leave")
    assert first.tell("look") == {"a": 52_428_800}
    first.tell("leave")
    assert not folder.exists(), "the last one cleans up"


def test_a_register_outlives_a_death_inside_any_of_its_steps(folder: Path) -> None:
    """Which connections there are is said by the living tasks alone; sizes may be lost or old."""
    register = WindowRegister(folder, AGGRESSIVE, 1_200_000_000)
    register.declare(["a", "b"])
    for text in ("", "{", '{"a": 1', '{"gone": 52428800}', '{"a": 5, "b": 5, "c": 5}'):
        (folder / "sizes.json").write_text(text)
        found = register.look()
        assert set(found) == {"a", "b"}
        assert register.declare(["a", "b"]) == found
    (folder / "task-1-dead").write_text('["x", "y"')  # not locked: its process is gone
    (folder / "sizes.json.new").write_text("{")
    assert set(register.declare(["a"])) == {"a"}
    assert not (folder / "task-1-dead").exists()
    register.leave()
    assert not folder.exists()


def test_the_sum_of_dynamic_is_that_of_all_tasks(folder: Path) -> None:
    policy = PolicySettings(policy=Policy.DYNAMIC)
    tasks = [WindowRegister(folder, policy, 2_000_000_000) for _ in range(11)]
    for number, task in enumerate(tasks):
        granted = task.declare([str(number)])[str(number)]
        assert granted == (20_000_000 if number < 10 else 10_485_760), "case K08"
    tasks[0].leave()
    sizes = tasks[1].look()
    assert "0" not in sizes
    assert sizes["10"] == 10_485_760, "never revisited"
    for task in tasks[1:]:
        task.leave()


def test_folders_of_executors_that_are_gone_are_removed(tmp_path: Path) -> None:
    parent = tmp_path / "mine"
    living = WindowRegister(parent / "windows-living", AGGRESSIVE, 10**9)
    dead = parent / "windows-dead"
    dead.mkdir()
    (dead / "register").write_bytes(b"")
    (dead / "task-7-x").write_text('["a"]')
    (parent / "windows-begun").mkdir()
    other = parent / "something else"
    other.mkdir()
    register = WindowRegister(parent / "windows-new", AGGRESSIVE, 10**9)
    assert sorted(path.name for path in parent.iterdir()) == [
        "something else",
        "windows-living",
        "windows-new",
    ]
    register.leave()
    living.leave()


@pytest.mark.parametrize("what", ["open to others", "a link", "a file"])
def test_a_folder_that_others_may_use_is_refused(tmp_path: Path, what: str) -> None:
    parent = tmp_path / "mine"
    if what == "open to others":
        parent.mkdir(mode=0o755)
    elif what == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        parent.symlink_to(tmp_path / "theirs")
    else:
        parent.write_text("")
    with pytest.raises(OSError, match="mine"):
        WindowRegister(parent / "windows-0", AGGRESSIVE, 10**9)


def test_a_lock_that_is_kept_is_an_error_that_names_it(folder: Path) -> None:
    register = WindowRegister(folder, AGGRESSIVE, 10**9)
    stopped = os.open(folder / "register", os.O_RDWR)
    fcntl.flock(stopped, fcntl.LOCK_EX)
    named = r"windows-0/register: locked by another task"
    with pytest.raises(TimeoutError, match=named):
        register.declare(["a"], 0.05)
    with pytest.raises(TimeoutError, match=named):
        register.look()
    with pytest.raises(TimeoutError, match=named):
        WindowRegister(folder, AGGRESSIVE, 10**9, 0.05)
    assert len(list(folder.glob("task-*"))) == 1
    os.close(stopped)
    assert register.declare(["a"]) == {"a": 50_000_000}
    register.leave()


def test_a_task_that_cannot_leave_in_time_counts_no_more(folder: Path) -> None:
    """A Spark worker outlives its task: the kernel would keep the task's lock until it ends."""
    one, two = (WindowRegister(folder, AGGRESSIVE, 10**9) for _ in range(2))
    one.declare(["a"])
    assert set(two.declare(["b"])) == {"a", "b"}
    stopped = os.open(folder / "register", os.O_RDWR)
    fcntl.flock(stopped, fcntl.LOCK_EX)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(TimeoutError):
        one.leave(0.05)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before - 2
    os.close(stopped)
    assert two.look() == {"b": 50_000_000}
    two.leave()


# --- what a task does with it


@contextlib.contextmanager
def stopped_holder(folder: Path, ends_by: signal.Signals) -> Iterator[None]:
    """Have another process stop inside the register's lock; afterwards it goes on, or is killed."""
    script = (
        "import fcntl, os, signal, sys\n"
        "register = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.flock(register, fcntl.LOCK_EX)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(folder / "register")])
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield
    finally:
        process.send_signal(ends_by)
        process.wait(90)


@pytest.mark.parametrize("ends_by", [signal.SIGCONT, signal.SIGKILL])
def test_a_task_stopped_inside_the_lock_costs_the_others_size_but_no_time(
    folder: Path, ends_by: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = ExecutorWindows(FLOW, folder), ExecutorWindows(FLOW, folder)
    assert one.opened("a") == 52_428_800
    assert two.opened("b") == 30_000_000
    assert one.changes(0.0) == {"a": 30_000_000}
    with stopped_holder(folder, ends_by):
        began = monotonic()
        for step in range(100):
            assert one.changes(10.0 + step * LOOK_SECONDS) == {}, "it keeps what it has"
        third = ExecutorWindows(FLOW, folder)
        for number in range(20):
            assert two.opened(f"c{number}") == FLOW.least_window_bytes
            assert third.opened(f"d{number}") == FLOW.least_window_bytes
        for number in range(1, 20):
            two.closed(f"c{number}")
            third.closed(f"d{number}")
        two.closed("b")
        assert two.changes(10.0) == third.changes(10.0) == {}
        assert monotonic() - began < 30.0, "three waits of a second; before, five for each call"
    assert "locked by another task" in caplog.text
    assert two.changes(10.0 + LOOK_SECONDS / 2) == {}, "too early"
    assert two.changes(10.0 + LOOK_SECONDS) == {"c0": 30_000_000}
    assert third.changes(10.0 + LOOK_SECONDS) == {"d0": 20_000_000}
    assert one.changes(100.0) == {"a": 20_000_000}
    assert two.changes(100.0) == {"c0": 20_000_000}
    for each in (one, two, third):
        each.leave()
    assert not folder.exists()


def test_a_register_that_another_task_uses_just_now_is_no_trouble(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = ExecutorWindows(FLOW, folder), ExecutorWindows(FLOW, folder)
    one.opened("a")
    assert one.changes(100.0) == {}
    two.opened("b")
    used = os.open(folder / "register", os.O_RDWR)
    fcntl.flock(used, fcntl.LOCK_EX)
    assert one.changes(100.0 + LOOK_SECONDS) == {}
    os.close(used)
    assert one.changes(100.0 + 2 * LOOK_SECONDS) == {"a": 30_000_000}
    assert not caplog.records
    used = os.open(folder / "register", os.O_RDWR)
    fcntl.flock(used, fcntl.LOCK_EX)
    for now in (200.0, 200.0 + STALLED_SECONDS - 0.1):
        assert one.changes(now) == {}
    assert not caplog.records
    for now in (200.0 + STALLED_SECONDS + 0.2, 300.0):
        assert one.changes(now) == {}
    os.close(used)
    [record] = caplog.records
    assert "locked by another task" in record.message
    for each in (one, two):
        each.leave()


def test_a_register_that_could_not_be_used_is_joined_later(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("no folder")
    windows = ExecutorWindows(FLOW, tmp_path / "mine" / "windows-0")
    assert windows.opened("a") == FLOW.least_window_bytes
    assert windows.changes(1.0) == {}
    (tmp_path / "mine").unlink()
    assert windows.changes(1.0 + DEATH_SECONDS) == {"a": 52_428_800}
    windows.leave()
    assert windows.changes(10.0) == {}
    assert windows.opened("b") == FLOW.least_window_bytes, "it has left"
    assert not (tmp_path / "mine" / "windows-0").exists()


def test_a_task_looks_rarely_and_hears_of_all_that_changed(folder: Path) -> None:
    one, two = ExecutorWindows(FLOW, folder), ExecutorWindows(FLOW, folder)
    assert one.opened("a") == 52_428_800
    assert one.changes(100.0) == {}
    assert two.opened("b") == 30_000_000
    assert one.changes(100.0 + LOOK_SECONDS / 2) == {}, "too early"
    assert one.changes(100.0 + LOOK_SECONDS) == {"a": 30_000_000}
    assert one.changes(100.0 + 2 * LOOK_SECONDS) == {}
    assert two.opened("c") == 20_000_000
    assert two.changes(200.0) == {"b": 20_000_000}, "its own are no exception"
    two.closed("c")
    two.closed("c")
    two.leave()
    two.leave()
    assert two.changes(300.0) == {}
    assert one.changes(300.0 + DEATH_SECONDS) == {"a": 52_428_800}
    one.leave()
    assert not folder.exists()


def test_what_is_shared_can_be_seen(folder: Path) -> None:
    one, two = ExecutorWindows(FLOW, folder), ExecutorWindows(FLOW, folder)
    one.opened("a")
    for number in range(6):
        two.opened(f"b{number}")
    one.changes(1.0)
    share = share_of(one)
    assert share == WindowShare(
        policy="aggressive",
        quota_bytes=1_200_000_000,
        connections=7,
        windows_bytes=7 * 10_485_760,
        excess_bytes=7 * 10_485_760 - 60_000_000,
        resizes=1,
    )
    look = TaskLook("dcplake-01234567-r1-t0.0", 1, "host", 7, 0.0, windows=share)
    assert TaskLook.from_json(json.loads(json.dumps(look.to_json()))) == look
    told = exposition([look])
    assert 'window_policy{task="t0",policy="aggressive"} 1\n' in told
    assert 'window_floor_excess_bytes{task="t0"} 13400320\n' in told
    assert "aggressive gives 7 connections of the executor windows of 70.0 MiB" in board_text(
        [look]
    )
    assert share_of(SameWindows(1)) is None
    two.leave()
    one.leave()


def test_nothing_is_read_but_a_number_while_nothing_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = ExecutorWindows(FLOW, folder)
    windows.opened("a")
    windows.changes(0.0)
    looks: list[int] = []

    def look(_: WindowRegister) -> dict[str, int]:
        looks.append(1)
        return {"a": 52_428_800}

    monkeypatch.setattr(WindowRegister, "look", look)
    for step in range(1, 40):
        windows.changes(step * DEATH_SECONDS / 10)
    assert len(looks) == 3
    monkeypatch.undo()
    windows.leave()


def test_a_register_that_cannot_be_used_costs_size_not_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine").write_text("no folder")
    windows = ExecutorWindows(FLOW, tmp_path / "mine" / "windows-0")
    assert windows.opened("a") == windows.opened("b") == FLOW.window_bytes
    assert windows.changes(1.0) == {}
    windows.closed("a")
    windows.leave()
    [record] = caplog.records
    assert "cannot be shared out" in record.message
    assert str(FLOW.window_bytes) in record.message


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("task-", b'["x", "y"'),
        ("task-", b"5"),
        ("task-", b"[1]"),
        ("task-", b"\xff\xfe"),
        ("sizes.json", b"5"),
        ("sizes.json", b'{"a": "large"}'),
        ("sizes.json", b"\xff"),
    ],
)
def test_one_broken_file_stops_no_task(folder: Path, file: str, text: bytes) -> None:
    one, two = ExecutorWindows(FLOW, folder), ExecutorWindows(FLOW, folder)
    before = set(folder.glob("task-*"))
    one.opened("a")
    assert two.opened("b") == 30_000_000
    for path in [folder / file] if file == "sizes.json" else before:
        path.write_bytes(text)
    one.changes(1.0)
    assert two.opened("c") >= FLOW.window_bytes
    one.closed("a")
    assert one.opened("d") == 20_000_000, "all have said again what they have"
    one.leave()
    two.leave()
    assert not folder.exists()


def test_a_counter_that_cannot_be_read_stops_no_task(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    windows = ExecutorWindows(FLOW, folder)
    assert windows.opened("a") == 52_428_800
    assert windows.changes(0.0) == {}
    assert windows._register is not None
    os.close(windows._register._register)
    assert windows.changes(LOOK_SECONDS) == {}
    assert windows.changes(DEATH_SECONDS) == {}
    [record] = caplog.records
    assert "cannot be shared out" in record.message


def test_a_list_of_connections_that_is_cut_short_is_never_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (WindowRegister(folder, AGGRESSIVE, 10**9) for _ in range(2))
    one.declare(["a"])
    write = os.write
    monkeypatch.setattr(os, "write", lambda where, text: write(where, text[:3]))
    with pytest.raises(OSError, match="wrote 3 of 10 bytes"):
        one.declare(["a", "b"])
    monkeypatch.undo()
    assert two.look() == {"a": 50_000_000}
    assert len(list(folder.glob("task-*"))) == 2
    one.leave()
    two.leave()
    assert not folder.exists()


def test_ratio_never_gives_less_than_the_least_window(folder: Path) -> None:
    flow = FlowControlSettings(
        window_policy="ratio",
        window_quota_bytes=1 << 20,
        window_shared_percent=1.0,
        window_bytes=8192,
        batch_bytes=4096,
    )
    windows = ExecutorWindows(flow, folder)
    assert [windows.opened(name) for name in "abc"] == [10485, 5242, 4096]
    assert windows.changes(1.0) == {"a": 4096, "b": 4096}
    windows.leave()


@pytest.mark.parametrize("policy", list(Policy))
def test_only_policies_that_look_at_others_have_a_register(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    flow = FlowControlSettings(window_policy=str(policy), allow_no_flow_control=True)
    with task_windows(flow) as windows:
        size = windows.opened("a")
        alone = policy in (Policy.NONE, Policy.STATIC)
        assert isinstance(windows, SameWindows) == alone
        assert register_folder(flow).exists() != alone
    assert not register_folder(flow).exists()
    assert size == {"none": 0, "static": 10_485_760, "dynamic": 10_737_418}.get(policy, size)


def test_executors_and_other_numbers_have_registers_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {register_folder(FLOW)}
    for folders in ("/tmp/blockmgr-1", "/tmp/blockmgr-2"):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folders)
        found.add(register_folder(FLOW))
    found.add(register_folder(FlowControlSettings(window_policy="aggressive")))
    assert len(found) == 4
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/mnt/disk1")  # set on the machine: says nothing
    assert register_folder(FLOW) in found

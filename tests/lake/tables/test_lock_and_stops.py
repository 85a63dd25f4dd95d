"""The small parts of a run: lock file, stop points, stop signals, typed errors across Spark."""

import ast
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcp.errors import (
    AuthenticationError,
    ConfigError,
    DcplakeError,
    FencedError,
    RemoteProtocolError,
    SetupError,
    StoppedError,
)
from dcp.lake.adapters.opening import spark_of
from dcp.lake.apply.applier import Pending, is_apply_due
from dcp.lake.change_log import stop_points
from dcp.lake.change_log.stop_points import STEPS, VARIABLE, reached
from dcp.lake.config.lake_root import local_root
from dcp.lake.config.settings import ApplySettings, ApplyWhen, Settings, SourceSettings
from dcp.lake.run.stop_after_round import stop_on_signals
from dcp.lake.spark import session
from dcp.lake.spark.task_errors import TaskError, original_error
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.lock import LOCK_NAME, locked
from dcp.lake.tables.collections import replicas_of

HOLD = """
import sys, pathlib
from dcp.lake.store.lock import locked
with locked(pathlib.Path(sys.argv[1]), "holder", makes_lake=True):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("root", "folder"),
    [
        ("lake", Path("lake")),
        ("/a/lake", Path("/a/lake")),
        ("file:/a/b%20c", Path("/a/b c")),
        ("file:///a/b", Path("/a/b")),
        ("s3a://bucket/lake", None),
        ("hdfs://host/lake", None),
        ("abfss://x@y/lake", None),
    ],
)
def test_only_local_roots_have_a_lock_file(root: str, folder: Path | None) -> None:
    assert local_root(root) == folder


def test_a_lake_is_where_its_lock_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for root in ("~/lake", "lake", "./a:b", str(tmp_path / "x")):
        folder = local_root(root)
        assert folder is not None
        assert LakeLocation(root=root).path("docs") == str(folder.absolute() / "docs")
    assert LakeLocation(root="~/lake").path("docs") == str(tmp_path / "home" / "lake" / "docs")
    assert LakeLocation(root="s3a://bucket/~/x/").path("docs") == "s3a://bucket/~/x/docs"


def test_a_held_lock_names_its_holder_and_ends_with_its_process(tmp_path: Path) -> None:
    root = tmp_path / "new" / "lake"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    with (
        pytest.raises(FencedError, match=f'"pid": {holder.pid}.*holder'),
        locked(root, "second", makes_lake=True),
    ):
        pytest.fail("the lock was given twice")
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    with locked(root, "third", makes_lake=False):
        assert f'"pid": {os.getpid()}' in (root / LOCK_NAME).read_text()


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SetupError, match=r"lock file .*file/_dcplake\.lock: cannot open"),
        locked(tmp_path / "file", "x", makes_lake=True),
    ):
        pytest.fail("locked a file")


def test_a_stop_point_acts_at_its_count_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: killed.append(number))
    monkeypatch.setattr(stop_points, "_reached", {})
    monkeypatch.setenv(VARIABLE, "round.committed:2=kill")
    for step in ("round.planned", "round.committed", "round.read_back"):
        reached(step)
    assert killed == []
    reached("round.committed")
    reached("round.committed")
    assert killed == [signal.SIGKILL]
    # With a file, the first process that makes it is the only one to act.
    monkeypatch.setattr(stop_points, "_reached", {})
    monkeypatch.setenv(VARIABLE, f"round.committed:2=kill@{tmp_path / 'made'}")
    (tmp_path / "made").write_text("")
    reached("round.committed")
    reached("round.committed")
    assert killed == [signal.SIGKILL]
    monkeypatch.setenv(VARIABLE, "round.committed:0=kill")
    reached("round.committed")
    reached("round.committed")
    assert killed == [signal.SIGKILL] * 3


def test_a_paused_step_goes_on_when_its_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_points, "_reached", {})
    monkeypatch.setenv(VARIABLE, "apply.planned=pause")
    with pytest.raises(ConfigError, match="pause@<file>"):
        reached("apply.planned")
    file = tmp_path / "pause"
    monkeypatch.setenv(VARIABLE, f"apply.planned=pause@{file}")
    monkeypatch.setattr(stop_points, "_reached", {})
    waiting = threading.Thread(target=reached, args=("apply.planned",))
    waiting.start()
    end = time.monotonic() + 90
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert waiting.is_alive()
    file.unlink()
    waiting.join(90)
    assert not waiting.is_alive()


@pytest.mark.parametrize("wanted", ["nowhere=kill", "round.planned=stop", "round.planned:x=kill"])
def test_an_unknown_stop_is_refused(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, wanted)
    with pytest.raises(ConfigError, match=r"expected <step>.*round\.planned"):
        reached("round.planned")


def test_the_first_signal_asks_and_the_second_acts() -> None:
    acted: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: acted.append(number))
    try:
        with stop_on_signals(90) as event:
            os.kill(os.getpid(), signal.SIGTERM)
            assert event.wait(90)
            assert acted == []
            os.kill(os.getpid(), signal.SIGTERM)
            end = time.monotonic() + 90
            while not acted:
                assert time.monotonic() < end
                time.sleep(0.01)
        assert acted == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_error_crosses_spark_as_itself() -> None:
    error = AuthenticationError('127.0.0.1:1: user "u" refused\nsecond line')
    text = (
        f"Job aborted\n  Traceback ...\ndcp.lake.task_errors.TaskError: {TaskError(error)}\n  at x"
    )
    found = original_error(text)
    assert isinstance(found, AuthenticationError)
    assert str(found) == str(error)
    assert original_error("something else") is None
    odd = original_error('dcplake-task-error:{"type": "os", "message": "m"}')
    assert type(odd) is DcplakeError


@pytest.mark.parametrize(
    ("rule", "pending", "due"),
    [
        (ApplySettings(), Pending(1, 10, 0), True),
        (
            ApplySettings(when=ApplyWhen.PENDING_FRACTION, pending_fraction=0.1),
            Pending(9, 100, 99),
            False,
        ),
        (
            ApplySettings(when=ApplyWhen.PENDING_FRACTION, pending_fraction=0.1),
            Pending(10, 100, 0),
            True,
        ),
        (ApplySettings(when=ApplyWhen.PENDING_FRACTION), Pending(1, 0, 0), True),
        (ApplySettings(when=ApplyWhen.AGE, age_seconds=60), Pending(5, 0, 59.9), False),
        (ApplySettings(when=ApplyWhen.AGE, age_seconds=60), Pending(5, 0, 60.0), True),
        (ApplySettings(when=ApplyWhen.NEVER), Pending(5, 0, 1e9), False),
    ],
)
def test_when_an_apply_is_due(rule: ApplySettings, pending: Pending, due: bool) -> None:
    assert is_apply_due(rule, pending) is due


def test_replicas_of_a_manifest() -> None:
    manifest = (
        b'{"uid":"3","scopes":[{"name":"_default","uid":"0","collections":'
        b'[{"name":"_default","uid":"0"},{"name":"users","uid":"1a"}]},'
        b'{"name":"s","uid":"8","collections":[]}]}'
    )
    assert [(each.name, each.collection_id) for each in replicas_of(manifest)] == [
        ("docs", 0),
        ("docs___default__users__1a", 26),
    ]
    assert [each.name for each in replicas_of(None)] == ["docs"]


@pytest.mark.parametrize(
    "manifest",
    [
        b'{"scopes":[{"name":"x","collections":[{"name":"y"}]}]}',
        *(b"[]", b'"x"', b"5", b"null", b'{"scopes":[5]}', b'{"scopes":5}'),
        b'{"scopes":[{"name":"x","collections":[{"name":5,"uid":"9"}]}]}',
        b'{"scopes":[{"name":"x","collections":[{"name":"y","uid":"-9"}]}]}',
        b'{"scopes":[{"name":"x","collections":[{"name":"y","uid":"fffffffff9"}]}]}',
        b'{"scopes":[{"name":"x","collections":[{"name":"y","uid":"9"},{"name":"y","uid":"9"}]}]}',
    ],
)
def test_what_is_no_manifest_is_refused(manifest: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="collections manifest"):
        replicas_of(manifest)


def test_every_named_step_is_a_step_of_the_code() -> None:
    """A step that the list lacks could not be killed at; one that nothing reaches proves nothing.

    Each statement that commits data of a round or an apply is followed by one. The adapters in
    ``dcp/lake/adapters`` commit what the modules above them ask for.
    """
    reached_steps: Counter[str] = Counter()
    committing: dict[str, bool] = {}
    for path in sorted(Path(stop_points.__file__).parents[1].rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reached":
                [step] = node.args
                assert isinstance(step, ast.Constant), f"{path.name}: a step must be a literal"
                reached_steps[str(step.value)] += 1
        if path.parent.name != "adapters":
            committing |= _commits(path.name, tree)
    assert set(reached_steps) == set(STEPS)
    assert max(reached_steps.values()) == 1
    assert committing == {
        "changes.py:append_round": True,
        "commit.py:_commit": True,
        "audit.py:_append": True,
        "horizon_guard.py:beat": False,  # adds and takes no row: nothing can be half done
    }


def _commits(name: str, tree: ast.Module) -> dict[str, bool]:
    """Return the functions that commit under a transaction id, and whether they name a step."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
            if any(map(_is_commit, calls)):
                names = [getattr(each.func, "id", "") for each in calls]
                found[f"{name}:{node.name}"] = "reached" in names
    return found


def _is_commit(call: ast.Call) -> bool:
    # An `Append` is a function; all else are methods.
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    # Others of the last two names have fewer arguments: they take no transaction.
    return name in ("transaction", "append_found", "renew") or (
        name in ("append", "merge") and len(call.args) > 2
    )


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGINT interrupt, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_a_signal_while_spark_starts_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = threading.Event()
    starting.set()
    monkeypatch.setattr(session, "_starting", starting)
    with pytest.raises(KeyboardInterrupt), stop_on_signals(90) as event:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            assert event.wait(90)


@pytest.mark.usefixtures("interrupts")
def test_a_stop_that_waits_for_an_answer_that_never_comes_is_interrupted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, silent = socket.socketpair()
    with ours, silent, pytest.raises(KeyboardInterrupt), stop_on_signals(0.2) as event:
        signal.raise_signal(signal.SIGINT)
        assert event.wait(90)
        ours.recv(1)
    asked, given_up = caplog.messages
    assert asked.startswith("SIGINT: the round or apply under way ends first")
    assert "is given up, the next run does it again" in given_up


LOOKING = """\
import os, signal, threading
from dcp.lake.run.stop_after_round import stop_on_signals
for _ in range(30):
    with stop_on_signals(90) as event:
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM)).start()
        while not event.wait(0):
            pass
"""


def test_a_signal_that_interrupts_a_look_at_the_stop_itself_is_heard() -> None:
    subprocess.run([sys.executable, "-c", LOOKING], check=True, timeout=120)


@pytest.mark.usefixtures("interrupts")
def test_a_stop_that_ends_in_time_is_neither_interrupted_nor_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with stop_on_signals(0.2) as event:
        signal.raise_signal(signal.SIGINT)
        assert event.wait(90)
    time.sleep(1.5)
    assert caplog.messages == []


def test_who_was_asked_to_stop_starts_no_spark() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError, match="before Spark had started"):
        spark_of(Settings(SourceSettings()), stop=stop)()

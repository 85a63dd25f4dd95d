"""The output of a run: each state once, and a line for the round under way that always ends."""

import re
import sys
import threading
from pathlib import Path

import pytest

from dcp.cli.displays import run_output
from dcp.cli.displays.run_output import PlainObserver
from dcp.client.addresses import NodeAddress
from dcp.lake.config.flow_control_settings import FlowControlSettings, WindowPlan
from dcp.lake.rounds.observer import NEXT_ROUND, StreamProgress, Wait, round_progress
from dcp.lake.rounds.round_plan import Idle, LeftOut, RoundPlan, StreamPlan, TaskBudget, TaskPlan
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.protocol.position import Position
from tests.client.drained import wait_for

QUIET = Idle("lake", 3, ())
ROLLED_BACK = Idle("lake", 3, (LeftOut(5, "rollback", "the producer ordered a rollback"),))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(run_output, "monotonic", lambda: now[0])
    return now


def test_a_quiet_bucket_does_not_fill_a_log(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    observer = PlainObserver()
    for _ in range(1000):
        observer.idle(QUIET)
        observer.waiting(10.0, NEXT_ROUND)
        clock[0] += 10.0
    assert capsys.readouterr().out.splitlines() == [str(QUIET)]
    observer.idle(Idle("lake", 4, ()))
    assert "after round 4" in capsys.readouterr().out


def test_what_is_left_out_is_told_again_once_a_minute(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    observer = PlainObserver()
    for _ in range(18):
        observer.idle(ROLLED_BACK)
        clock[0] += 10.0
    assert capsys.readouterr().out.count("vbuckets 5: rollback") == 3


def test_a_cluster_out_of_reach_is_told(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    observer = PlainObserver()
    for seconds in range(12):
        observer.waiting(10.0, Wait(f"the cluster: waited 0.{seconds} s", is_trouble=True))
        clock[0] += 10.0
    assert capsys.readouterr().out.splitlines() == [
        "waiting for the cluster: waited 0.0 s",
        "waiting for the cluster: waited 0.6 s",
    ]


WINDOWS = WindowPlan.of(FlowControlSettings(), 1)


def plan_of(target_seqno: int) -> RoundPlan:
    state = LakeVbucketState(0, 0, Position.beginning())
    stream = StreamPlan(state, NodeAddress("a", 1), target_seqno)
    return RoundPlan("lake", 7, (TaskPlan(0, (stream,), (), WINDOWS),), (), TaskBudget(1000, 10.0))


def pass_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard error be one, whatever starts the tests."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")


def test_the_line_of_a_round_ends_with_a_failed_round(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_for_a_terminal(monkeypatch)
    before = threading.active_count()
    observer = PlainObserver()
    observer.planned(plan_of(12_345), None)
    assert threading.active_count() > before
    observer.ended()
    wait_for("the end of its thread", lambda: threading.active_count() == before)
    observer.ended()
    assert "round 7: 1 vbuckets, 12,345 seqnos behind" in capsys.readouterr().err


def test_the_bar_of_a_round_is_filled_by_its_tasks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_for_a_terminal(monkeypatch)
    observer = PlainObserver()
    with round_progress(is_local=True) as progress:
        assert progress is not None
        progress.note(0, StreamProgress(100, 5_000_000))
        progress.note(1, StreamProgress(20, 1_000_000))
        progress.note(0, StreamProgress(30, 2_000_000))  # the task was tried again
        observer.planned(plan_of(200), progress)
        shown = ""

        def has_figures() -> bool:
            nonlocal shown
            shown += capsys.readouterr().err
            return "50/200" in shown and "MB/s" in shown

        wait_for("a bar", has_figures)
        observer.ended()
        folder = Path(progress.folder)
    assert not folder.exists()
    with round_progress(is_local=False) as elsewhere:
        assert elsewhere is None


def test_in_a_log_lines_tell_how_far_a_round_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dcp.cli.terminal.progress._TELL_SECONDS", 0.1)
    observer = PlainObserver()
    with round_progress(is_local=True) as progress:
        assert progress is not None
        observer.planned(plan_of(200), progress)
        wait_for("a line", lambda: "round 7: 0 of 200 seqnos" in capsys.readouterr().out)
        progress.note(0, StreamProgress(50, 2_000_000))
        shown = ""

        def tells() -> bool:
            nonlocal shown
            shown += capsys.readouterr().out
            return "round 7: 50 of 200 seqnos" in shown

        wait_for("a line with figures", tells)
        progress.note(0, StreamProgress(250, 2_000_000))  # more was written meanwhile
        wait_for("a line", lambda: "round 7: 250 seqnos, " in capsys.readouterr().out)
        observer.ended()
    line = next(line for line in shown.splitlines() if "50 of" in line)
    told = re.fullmatch(
        r"round 7: 50 of 200 seqnos, ([\d,]+) a second, ([\d.]+) MB/s, (\d+) s left", line
    )
    assert told is not None, line
    a_second, megabytes, left = (float(each) for each in told.groups())
    assert left == pytest.approx(150 / a_second, abs=1.0)
    assert megabytes == pytest.approx(a_second / 50 * 2, rel=0.3)

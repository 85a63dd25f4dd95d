"""The thread that applies beside a run: what it is handed, what it skips, and how it ends."""

import threading

import pytest

from dcp.errors import FencedError, LakeError
from dcp.lake.apply.thread import ApplyThread
from tests.client.drained import wait_for


class Applied:
    """Notes what it is called with; each call lasts until the test lets it end."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.leaves = 0
        self.may_end = threading.Semaphore(0)

    def __call__(self, to_round: int) -> None:
        self.rounds.append(to_round)
        assert self.may_end.acquire(timeout=60.0)

    def leave_the_rest(self) -> None:
        self.leaves += 1


def nothing() -> None:
    pass


def test_it_applies_the_newest_of_what_came_while_it_was_busy() -> None:
    applied = Applied()
    with ApplyThread(applied, applied.leave_the_rest) as applying:
        assert not applying.is_busy()
        applying.submit(1)
        assert applying.is_busy()
        wait_for("the first", lambda: applied.rounds == [1])
        for number in (2, 3, 4):
            applying.submit(number)
        applied.may_end.release()
        wait_for("the newest", lambda: applied.rounds == [1, 4])
        applied.may_end.release()
        wait_for("nothing to do", lambda: not applying.is_busy())


def test_what_was_handed_over_is_applied_before_it_ends() -> None:
    applied = Applied()
    with ApplyThread(applied, applied.leave_the_rest) as applying:
        applying.submit(1)
        wait_for("the first", lambda: applied.rounds == [1])
        applying.submit(2)
        applied.may_end.release(2)
    assert applied.rounds == [1, 2]


def test_after_a_failure_of_the_run_only_the_apply_under_way_is_waited_for() -> None:
    applied = Applied()
    with (
        pytest.raises(FencedError, match="another driver"),
        ApplyThread(applied, applied.leave_the_rest) as applying,
    ):
        applying.submit(1)
        wait_for("the first", lambda: applied.rounds == [1])
        applying.submit(2)
        applied.may_end.release()
        raise FencedError("another driver")
    assert (applied.rounds, applied.leaves) == ([1], 1)


def test_a_failure_of_both_is_told_twice(caplog: pytest.LogCaptureFixture) -> None:
    begun, failed = threading.Event(), threading.Event()

    def fails(_: int) -> None:
        begun.set()
        assert failed.wait(60.0)
        raise LakeError("foreign rows")

    with pytest.raises(FencedError, match="another driver"), ApplyThread(fails, nothing) as both:
        both.submit(1)
        assert begun.wait(60.0)
        failed.set()
        raise FencedError("another driver")
    assert caplog.messages == ["an apply failed, too: foreign rows"]


def test_a_process_that_is_to_end_at_once_waits_for_nothing() -> None:
    applied = Applied()
    with pytest.raises(KeyboardInterrupt), ApplyThread(applied, applied.leave_the_rest) as applying:
        applying.submit(1)
        wait_for("the first", lambda: applied.rounds == [1])
        raise KeyboardInterrupt
    applied.may_end.release()


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_an_apply_raises_ends_the_run(goes_on: bool) -> None:
    def fails(_: int) -> None:
        raise FencedError("another driver")

    with pytest.raises(FencedError, match="another driver"), ApplyThread(fails, nothing) as one:
        one.submit(1)
        if goes_on:
            for _ in range(600):
                threading.Event().wait(0.1)
                one.check()
            pytest.fail("the run went on for a minute")

"""The receipt of a delivery: each step counts its bytes once, whoever takes it, and how often."""

import sys
import threading
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from dcp.client.delivery import Receipt, ReceiptState
from dcp.protocol.window import FlowControl, Window
from dcp.protocol.window_policies import FlowSettings

QUEUED, TAKEN, GIVEN, RELEASED = ReceiptState
COUNTED = {QUEUED: (0, 0, 0), TAKEN: (1, 0, 0), GIVEN: (1, 1, 0), RELEASED: (1, 1, 1)}
"""Which of taken, given and released has the bytes."""
WAYS: dict[ReceiptState, list[str]] = {
    QUEUED: [],
    TAKEN: ["take"],
    GIVEN: ["take", "give"],
    RELEASED: ["release"],
}
TABLE = {
    QUEUED: {"take": TAKEN, "give": QUEUED, "release": RELEASED},
    TAKEN: {"take": TAKEN, "give": GIVEN, "release": RELEASED},
    GIVEN: {"take": GIVEN, "give": GIVEN, "release": RELEASED},
    RELEASED: {"take": RELEASED, "give": RELEASED, "release": RELEASED},
}


class Connection:
    """The windows of a connection and of its stream 1; ``receive`` hands over 100 and 60 bytes."""

    def __init__(self) -> None:
        self.flow = FlowControl(FlowSettings(window_bytes=1000), 0.0)
        self.flow.offer_streams(500)
        self.flow.resume_stream_acks(())
        self.woken: list[bool] = []
        self._lock = threading.Lock()

    def receive(self) -> Receipt:
        self.flow.receive(100, 0.0)
        self.flow.receive_streams(np.array([1], np.uint32), np.array([60]), {1}, 0.0)
        return Receipt(self.flow.deliver(), self.flow, self._lock, self.woken.append)


def steps(window: Window) -> tuple[int, int, int]:
    return window.taken, window.given, window.released


@pytest.mark.parametrize("state", TABLE)
@pytest.mark.parametrize("action", ["take", "give", "release"])
def test_each_step_moves_the_counters_of_all_windows_once(state: ReceiptState, action: str) -> None:
    connection = Connection()
    receipt = connection.receive()
    for step in WAYS[state]:
        getattr(receipt, step)()
    assert receipt.state is state
    getattr(receipt, action)()
    after = TABLE[state][action]
    assert receipt.state is after
    stream = connection.flow.streams[1]
    assert receipt.windows == [connection.flow.connection, stream]
    for window, frame_bytes in ((connection.flow.connection, 100), (stream, 60)):
        assert steps(window) == tuple(frame_bytes * part for part in COUNTED[after])
    assert len(connection.woken) == (after is RELEASED), "the reader is told once"


def test_a_stream_that_is_over_gets_nothing_back() -> None:
    connection = Connection()
    receipt = connection.receive()
    connection.flow.end_stream(1)
    receipt.release()
    assert connection.flow.acknowledge(99.0) == [(0, 100)]


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns so often that what lacks a lock is found out."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_releases_from_many_threads_count_once_while_the_reader_acknowledges(
    quick_switches: None,
) -> None:
    connection = Connection()
    receipts = [connection.receive() for _ in range(300)]
    begin, failures = threading.Barrier(5), list[BaseException]()
    acked = dict.fromkeys((0, 1), 0)

    def work(seed: int) -> None:
        mine = Random(seed).sample(receipts, len(receipts))
        begin.wait()
        try:
            for receipt in mine:
                receipt.take()
                receipt.give()
                receipt.release()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    begin.wait()
    while any(thread.is_alive() for thread in threads):
        for opaque, acked_bytes in connection.flow.acknowledge(0.0):
            acked[opaque] += acked_bytes
    for opaque, acked_bytes in connection.flow.acknowledge(99.0):
        acked[opaque] += acked_bytes
    assert failures == []
    assert acked == {0: 300 * 100, 1: 300 * 60}
    assert steps(connection.flow.connection) == (300 * 100,) * 3
    assert steps(connection.flow.streams[1]) == (300 * 60,) * 3
    assert len(connection.woken) == 300

"""Read buffers that are lent and come back: how many there are, and when they go."""

import threading

from dcp.client.buffer_pool import BufferPool
from dcp.client.stats import StageStats
from tests.client.drained import PATIENCE_SECONDS, wait_for


def test_buffers_are_used_again_and_given_back_when_nobody_reads() -> None:
    pool = BufferPool(100, most=2)
    with pool.lend() as first:
        first[:3] = b"abc"
        with pool.lend() as second:
            assert second is not first
            pool.rest()
            assert pool.lent == 2
    buffers = {id(first), id(second)}
    with pool.lend() as again:
        pool.rest()
        with pool.lend() as other:
            assert {id(again), id(other)} == buffers, "somebody reads: it may be needed at once"
    pool.rest()
    with pool.lend() as new:
        assert id(new) not in buffers


def test_a_reader_waits_while_all_buffers_are_lent_and_an_error_gives_one_back() -> None:
    pool = BufferPool(10, most=1)
    got, leave = threading.Event(), threading.Event()

    def read() -> None:
        with pool.lend():
            got.set()
            leave.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=read)
    try:
        with pool.lend():
            thread.start()
            assert not got.wait(0.1)
            assert pool.stats() == StageStats("buffers", 1, 1)
            raise OSError("broken")
    except OSError:
        pass
    wait_for("the second reader's buffer", got.is_set)
    assert pool.lent == 1
    leave.set()
    thread.join()
    assert pool.lent == 0

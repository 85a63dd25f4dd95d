import threading
from contextlib import ExitStack
from time import monotonic

from dcp.client.buffer_pool import BufferPool
from tests.client.drained import PATIENCE_SECONDS, wait_for


def test_buffers_are_used_again_and_given_back_when_nobody_reads() -> None:
    pool = BufferPool(100, most=2)
    with pool.lend() as first:
        first[:3] = b"abc"
        with pool.lend() as second:
            assert second is not first
            pool.rest()
            assert (pool.lent, pool.spare) == (2, 0)
    assert (pool.lent, pool.spare, pool.look(0.0).peak) == (0, 2, 2)
    with pool.lend() as again:
        assert again is first or again is second
        pool.rest()
        assert pool.spare == 1, "somebody reads: it may be needed at once"
    pool.rest()
    assert (pool.lent, pool.spare) == (0, 0)


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
            look = pool.look(monotonic())
            assert (look.name, look.size, look.in_use, look.is_full) == ("buffers", 1, 1, True)
            assert look.full_seconds > 0.05
            raise OSError("broken")
    except OSError:
        pass
    wait_for("the second reader's buffer", got.is_set)
    assert (pool.lent, pool.look(0.0).peak) == (1, 1)
    leave.set()
    thread.join()
    assert (pool.lent, pool.spare) == (0, 1)


def test_once_all_are_lent_nobody_gets_one_before_half_are_back() -> None:
    """Four are lent: with one back two readers still wait, with two back both have theirs."""
    pool = BufferPool(10, most=4)
    got = threading.Semaphore(0)
    leave = threading.Event()

    def read() -> None:
        with pool.lend():
            got.release()
            leave.wait(60)

    readers = [threading.Thread(target=read) for _ in range(2)]
    with ExitStack() as two, ExitStack() as third, ExitStack() as fourth:
        for stack in (two, two, third, fourth):
            stack.enter_context(pool.lend())
        for each in readers:
            each.start()
        third.close()
        assert not got.acquire(timeout=0.2)
        look = pool.look(monotonic())
        assert (look.in_use, look.is_full) == (3, True)
        fourth.close()
        assert got.acquire(timeout=60)
        assert got.acquire(timeout=60)
        assert pool.lent == 4
        leave.set()
        for each in readers:
            each.join(60)
    assert (pool.lent, pool.spare) == (0, 4)

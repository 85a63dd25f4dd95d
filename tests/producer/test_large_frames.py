"""Large frames under way: what all of them hold is bounded, and nobody waits for ever."""

import asyncio
import time
from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.large_frames import LEAST_BYTES, FrameRoom, LargeFrames
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.framing import LARGE_FRAME_BYTES
from dcp.wire.vocabulary import MAX_FRAME_BYTES, Opcode, Status
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
QUOTA = MAX_FRAME_BYTES
VALUE_BYTES = 16 * 1024 * 1024
"""Of two such values only one has room."""
FRAME = encode(m.Store(b"\0key", b"x" * VALUE_BYTES), Opcode.SET, opaque=7).to_bytes()
SENT_BYTES = len(FRAME) - 1024


async def _turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@given(st.lists(st.tuples(st.integers(1, QUOTA), st.booleans()), max_size=12))
def test_the_quota_is_kept_and_all_get_room_in_order(frames: list[tuple[int, bool]]) -> None:
    async def run() -> None:
        room, order = LargeFrames(30.0, QUOTA), list[int]()

        async def client(number: int, frame_bytes: int) -> None:
            await room.hold(frame_bytes)
            order.append(number)
            assert room.held_bytes <= QUOTA
            await asyncio.sleep(0)
            room.release(frame_bytes)

        asked = list(enumerate(frames))
        tasks = [asyncio.ensure_future(client(number, size)) for number, (size, _) in asked]
        await asyncio.sleep(0)
        gone = [number for number, (_, goes) in asked if goes and number not in order]
        for number in gone:
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [number for number, _ in asked if number in order]
        assert {*order, *gone} == set(range(len(frames)))
        assert (room.held_bytes, room.is_waited_for) == (0, False)

    asyncio.run(run())


def test_who_holds_up_others_must_bring_something() -> None:
    async def run() -> None:
        frames = LargeFrames(30.0, QUOTA)
        first, second = FrameRoom(frames), FrameRoom(frames)
        await first.wait_for(LARGE_FRAME_BYTES, lambda: 0.0)
        _wait_until_held(frames, 0)
        await first.wait_for(QUOTA, lambda: 0.0)
        assert not first.is_overdue(1000.0)  # nobody waits
        waiting = asyncio.ensure_future(second.wait_for(QUOTA, lambda: 100.0))
        await _turn()
        first.brought(LEAST_BYTES - 1, 20.0)
        assert (first.is_overdue(29.9), first.is_overdue(30.0)) == (False, True)
        first.brought(1, 25.0)
        assert (first.is_overdue(54.9), first.is_overdue(55.0)) == (False, True)
        assert not waiting.done()
        first.let_go()
        await waiting
        assert (first.is_overdue(1000.0), frames.held_bytes) == (False, QUOTA)
        second.let_go()
        _wait_until_held(frames, 0)

    asyncio.run(run())


def test_a_quota_must_take_any_frame() -> None:
    with pytest.raises(ValueError, match="quota of large frames"):
        LargeFrames(30.0, MAX_FRAME_BYTES - 1)


def _wait_until_held(frames: LargeFrames, held_bytes: int) -> None:
    give_up_at = time.monotonic() + 60.0
    while frames.held_bytes != held_bytes:
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def _pushes_back(client: RawClient, data: bytes) -> bytes:
    """Send until nothing is taken any more; return what is left."""
    client.socket.settimeout(1.0)
    view = memoryview(data)
    try:
        while view:
            view = view[client.socket.send(view) :]
    except TimeoutError:
        pass
    client.socket.settimeout(60.0)
    return bytes(view)


@pytest.mark.parametrize("patience_seconds", [inf, 0.0])
def test_a_client_beyond_the_quota_is_not_read_until_there_is_room(
    make_cluster: Callable[..., ProducerCluster], connect: Connect, patience_seconds: float
) -> None:
    cluster = make_cluster()
    frames = cluster.bucket.large_frames = LargeFrames(patience_seconds, QUOTA)
    first, second = (connect(cluster).log_in() for _ in range(2))
    first.socket.settimeout(60.0)
    first.socket.sendall(FRAME[:SENT_BYTES])
    _wait_until_held(frames, len(FRAME))
    left = _pushes_back(second, FRAME)
    if patience_seconds:
        assert left
        assert frames.held_bytes == len(FRAME)
        first.socket.sendall(FRAME[SENT_BYTES:])
        assert first.answer().status == Status.SUCCESS
    else:
        assert first.is_closed()
    second.socket.sendall(left)
    assert second.answer().status == Status.SUCCESS
    _wait_until_held(frames, 0)

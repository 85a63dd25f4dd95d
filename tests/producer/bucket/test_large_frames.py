"""Large frames under way: what all of them hold is bounded, and nobody waits for ever."""

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.server.bucket.large_frames import (
    LEAST_BYTES,
    LEAST_PATIENCE_SECONDS,
    QUOTA_BYTES,
    FrameRoom,
    LargeFrames,
)
from dcp.wire.framing import LARGE_FRAME_BYTES
from dcp.wire.vocabulary import MAX_FRAME_BYTES

MIB = 1024 * 1024
READ_BYTES = 256 * 1024
STEP_SECONDS = 0.5
"""In which a client that goes on is read once; and how often it is looked who is overdue."""
PATIENCE_SECONDS = 10.0


@dataclass
class Client:
    """Sends the first ``willing_bytes`` of a frame at full speed, then a few in each step."""

    frame_bytes: int
    willing_bytes: int
    drip_bytes: int = 0
    arrived_bytes: int = 24
    done_at: float | None = None
    closed_at: float | None = None
    room: FrameRoom = field(init=False)

    @property
    def is_honest(self) -> bool:
        return self.willing_bytes >= self.frame_bytes

    @property
    def is_over(self) -> bool:
        return self.done_at is not None or self.closed_at is not None


def honest(mib: int) -> Client:
    return Client(mib * MIB, mib * MIB)


class Server:
    """Reads from clients in turn; they never hold more than they may."""

    def __init__(self, quota_bytes: int = QUOTA_BYTES) -> None:
        self.frames = LargeFrames(PATIENCE_SECONDS, quota_bytes)
        self.clients: list[Client] = []
        self.now = 100.0
        self._quota_bytes = quota_bytes

    def connect(self, *clients: Client) -> None:
        for client in clients:
            client.room = FrameRoom(self.frames, lambda: None)
        self.clients += clients

    def step(self, client: Client) -> None:
        if client.is_over or client.room.is_waiting:
            return
        left = client.willing_bytes - client.arrived_bytes
        count = min(READ_BYTES, left) if left > 0 else client.drip_bytes
        if not count:
            return
        client.arrived_bytes = min(client.frame_bytes, client.arrived_bytes + count)
        client.room.brought(client.arrived_bytes, client.frame_bytes, self.now)
        self.finish()

    def finish(self) -> None:
        """Act on the frames that are whole; each gives room to others, that may be whole then."""
        for client in self.clients:
            whole = client.arrived_bytes == client.frame_bytes and not client.room.is_waiting
            if whole and not client.is_over:
                client.room.whole(self.now)
                assert not client.room.is_overdue(self.now)
                client.room.let_go(self.now)
                client.done_at = self.now
        self.check()

    def check(self) -> None:
        rooms = [client.room for client in self.clients]
        assert self.frames.granted_bytes == sum(room.granted_bytes for room in rooms)
        assert self.frames.granted_bytes <= self._quota_bytes
        waiting = sum(room.is_waiting for room in rooms)
        assert self.frames.waiting == waiting
        going_on = [room for room in rooms if room.granted_bytes and not room.is_waiting]
        assert going_on or not waiting  # else nobody could ever go on

    def round(self) -> None:
        for client in self.clients:
            self.step(client)
        self.now += STEP_SECONDS
        for client in self.clients:
            if not client.is_over and client.room.is_overdue(self.now):
                client.room.let_go(self.now)
                client.closed_at = self.now
                self.finish()

    def run_until_done(self, *clients: Client, most_seconds: float) -> None:
        give_up_at = self.now + most_seconds
        while not all(client.is_over for client in clients):
            assert self.now < give_up_at, [client for client in self.clients if not client.is_over]
            self.round()


@pytest.mark.parametrize(
    ("willing_bytes", "drip_bytes", "most_seconds"),
    [
        pytest.param(24, 0, 2.5, id="a header each"),
        pytest.param(24, 1, 2.5, id="a byte now and then"),
        pytest.param(24, 4096, 2.5, id="some more"),
        pytest.param(1 * MIB, 0, 2.5, id="a MiB each, and no more"),
        pytest.param(2 * MIB, 0, 2.5, id="more than all have room for, and no more"),
        pytest.param(27 * MIB, 0, 2.5, id="all but the last MiB, and no more"),
        pytest.param(27 * MIB, 4096, 2.5, id="all but the last MiB, and little of that"),
        pytest.param(28 * MIB, 0, 2.5, id="all, one after another"),
    ],
)
@pytest.mark.parametrize("is_one_by_one", [False, True])
def test_an_honest_frame_is_prompt_beside_many_half_ones(
    willing_bytes: int, drip_bytes: int, most_seconds: float, *, is_one_by_one: bool
) -> None:
    """1 MiB takes four steps, alone in the world."""
    server = Server()
    for _ in range(30):
        hostile = Client(28 * MIB, willing_bytes, drip_bytes)
        server.connect(hostile)
        while is_one_by_one and not hostile.is_over and hostile.arrived_bytes < willing_bytes:
            if hostile.room.is_waiting:
                break
            server.step(hostile)
    for _ in range(10):
        server.round()
    small = honest(1)
    server.connect(small)
    server.run_until_done(small, most_seconds=most_seconds)
    assert small.done_at is not None


def test_small_frames_do_not_starve_a_large_one_nor_it_them() -> None:
    server = Server(MAX_FRAME_BYTES)  # one at a time
    clients = [honest(20) for _ in range(3)]
    server.connect(*clients)
    server.round()
    server.round()
    assert all(client.room.is_waiting for client in clients[1:])
    small = [honest(1) for _ in range(20)]
    server.connect(*small)
    server.run_until_done(*clients, most_seconds=150.0)
    assert sum(client.is_over for client in small) == 1  # between the two that had waited longest
    server.run_until_done(*small, most_seconds=60.0)


_CLIENTS = st.builds(
    Client,
    st.integers(LARGE_FRAME_BYTES // 2, MAX_FRAME_BYTES),
    st.sampled_from([24, MIB, 3 * MIB, 10 * MIB, MAX_FRAME_BYTES]),
    st.sampled_from([0, 1, 4096]),
)


@given(st.lists(_CLIENTS, max_size=12), st.sampled_from([MAX_FRAME_BYTES, QUOTA_BYTES]))
def test_all_that_go_on_get_through_and_the_quota_is_kept(
    clients: list[Client], quota_bytes: int
) -> None:
    """However many others stop half-way: who holds up others is closed, and nobody else."""
    server = Server(quota_bytes)
    server.connect(*clients)
    good = [client for client in clients if client.is_honest]
    server.run_until_done(*good, most_seconds=12 * (60 + PATIENCE_SECONDS))
    assert all(client.closed_at is None for client in good)
    for client in clients:
        if not client.is_over:
            client.room.let_go(server.now)  # it closed
            client.closed_at = server.now
            server.finish()
    assert server.frames.granted_bytes == server.frames.shared_bytes == 0


def _holder_and_waiting(waiting: int) -> tuple[LargeFrames, FrameRoom, list[FrameRoom]]:
    frames = LargeFrames(PATIENCE_SECONDS, MAX_FRAME_BYTES)
    holder, *others = rooms = [FrameRoom(frames, lambda: None) for _ in range(1 + waiting)]
    for room in rooms:
        room.brought(LARGE_FRAME_BYTES + 1, MAX_FRAME_BYTES, 100.0)
    assert not holder.is_waiting
    assert all(room.is_waiting for room in others)
    return frames, holder, others


@pytest.mark.parametrize(
    ("waiting", "patience"), [(0, inf), (1, 5.0), (4, 2.0), (30, LEAST_PATIENCE_SECONDS)]
)
def test_who_holds_up_others_is_closed_the_sooner_the_more_wait(
    waiting: int, patience: float
) -> None:
    """And only when it is told twice."""
    _, holder, others = _holder_and_waiting(waiting)
    overdue_at = 100.0 + min(patience, 1000.0)
    assert not holder.is_overdue(overdue_at - 0.1)
    assert not holder.is_overdue(overdue_at - 0.1)
    assert not holder.is_overdue(overdue_at)
    assert holder.is_overdue(overdue_at) is bool(waiting)
    assert not any(room.is_overdue(2000.0) or room.is_overdue(2000.0) for room in others)


@pytest.mark.parametrize(("count", "is_overdue"), [(LEAST_BYTES - 1, True), (LEAST_BYTES, False)])
def test_who_goes_on_fast_enough_is_not_closed(count: int, *, is_overdue: bool) -> None:
    _, holder, _ = _holder_and_waiting(1)
    assert not holder.is_overdue(105.0)  # told once: what waits at its socket is read then
    holder.brought(LARGE_FRAME_BYTES + count, MAX_FRAME_BYTES, 105.0)
    assert holder.is_overdue(105.5) is is_overdue


def test_time_spent_waiting_is_not_the_clients() -> None:
    _, holder, (other,) = _holder_and_waiting(1)
    holder.let_go(1000.0)
    third = FrameRoom(other._frames, lambda: None)
    third.brought(LARGE_FRAME_BYTES + 1, MAX_FRAME_BYTES, 1000.0)
    assert third.is_waiting
    assert not other.is_waiting
    assert [other.is_overdue(1004.9) for _ in range(2)] == [False, False]
    assert [other.is_overdue(1005.0) for _ in range(2)] == [False, True]


def test_a_frame_that_is_whole_waits_for_us() -> None:
    _, holder, _ = _holder_and_waiting(9)
    holder.whole(200.0)
    assert [holder.is_overdue(209.9) for _ in range(2)] == [False, False]
    assert [holder.is_overdue(210.0) for _ in range(2)] == [False, True]


def test_a_quota_must_take_any_frame() -> None:
    with pytest.raises(ValueError, match="quota of large frames"):
        LargeFrames(30.0, MAX_FRAME_BYTES - 1)

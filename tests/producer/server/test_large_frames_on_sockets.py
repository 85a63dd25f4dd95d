"""Large frames over sockets: half ones of others hold up nobody, and who holds up others goes."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.bucket import large_frames
from dcp.server.bucket.large_frames import LargeFrames
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.framing import LARGE_FRAME_BYTES
from dcp.wire.vocabulary import MAX_FRAME_BYTES, Opcode, Status
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MIB = 1024 * 1024
HOSTILE = 30


def _set(mib: int) -> bytes:
    return encode(m.Store(b"\0key", b"x" * (mib * MIB)), Opcode.SET, opaque=7).to_bytes()


def _wait_until_granted(frames: LargeFrames, granted_bytes: int) -> None:
    give_up_at = time.monotonic() + 60.0
    while frames.granted_bytes != granted_bytes:
        assert time.monotonic() < give_up_at, (frames.granted_bytes, frames.waiting)
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


@pytest.mark.parametrize("sent_bytes", [36, 300 * 1024])
def test_half_frames_of_others_hold_up_nobody(
    make_cluster: Callable[..., ProducerCluster], connect: Connect, sent_bytes: int
) -> None:
    """Nor is anybody closed for them: nobody waits. They may send on, a few bytes at a time."""
    cluster = make_cluster(large_frame_seconds=0.0)
    hostile = [connect(cluster).log_in() for _ in range(HOSTILE)]
    frame = _set(20)
    for client in hostile:
        client.socket.sendall(frame[:sent_bytes])
    granted_bytes = HOSTILE * max(0, sent_bytes - LARGE_FRAME_BYTES)
    _wait_until_granted(cluster.bucket.clients.large_frames, granted_bytes)
    good = connect(cluster).log_in()
    for _ in range(5):
        for client in hostile:
            client.socket.sendall(b"x")
        good.socket.sendall(_set(1))
        assert good.answer().status == Status.SUCCESS
    for client in hostile:
        client.socket.close()
    _wait_until_granted(cluster.bucket.clients.large_frames, 0)


def test_many_large_frames_at_once_get_through(
    make_cluster: Callable[..., ProducerCluster],
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients = 5
    held: list[int] = []
    leave = LargeFrames.leave

    def left(self: LargeFrames, room: large_frames.FrameRoom, now: float) -> None:
        held.append(self.granted_bytes)
        leave(self, room, now)

    monkeypatch.setattr(LargeFrames, "leave", left)
    cluster = make_cluster(record_branches=False)
    frame = _set(20)

    def store(client: RawClient) -> int:
        client.socket.settimeout(60.0)
        client.socket.sendall(frame)
        return client.answer().status

    with ThreadPoolExecutor(clients) as pool:
        logged_in = [connect(cluster).log_in() for _ in range(clients)]
        assert set(pool.map(store, logged_in)) == {Status.SUCCESS}
    _wait_until_granted(cluster.bucket.clients.large_frames, 0)
    assert len(held) == clients
    assert max(held) <= large_frames.QUOTA_BYTES


@pytest.mark.parametrize("patience_seconds", [1000.0, 0.0])
def test_who_finds_no_room_is_not_read_until_there_is_some(
    make_cluster: Callable[..., ProducerCluster],
    connect: Connect,
    patience_seconds: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With 0 seconds the client that holds up the other one is closed, and that is logged."""
    cluster = make_cluster()
    frames = cluster.bucket.clients.large_frames = LargeFrames(patience_seconds, MAX_FRAME_BYTES)
    frame = _set(16)
    sent_bytes = len(frame) - 1024
    first, second = (connect(cluster).log_in() for _ in range(2))
    first.socket.settimeout(60.0)
    with caplog.at_level(logging.WARNING, "dcp.server.node.accepted_connection"):
        first.socket.sendall(frame[:sent_bytes])
        _wait_until_granted(frames, sent_bytes - LARGE_FRAME_BYTES)
        left = _pushes_back(second, frame)
        if patience_seconds:
            assert left
            assert frames.granted_bytes == sent_bytes - LARGE_FRAME_BYTES
            first.socket.sendall(frame[sent_bytes:])
            assert first.answer().status == Status.SUCCESS
        else:
            assert first.is_closed()
        second.socket.sendall(left)
        assert second.answer().status == Status.SUCCESS
    _wait_until_granted(frames, 0)
    expected = [] if patience_seconds else [f"its frame of {len(frame)} bytes lacks 1024"]
    assert [
        record.getMessage().split(": ")[1].split(", ")[0] for record in caplog.records
    ] == expected

"""A connection that is gone lets go of its streams a few at a time: others do not wait for all."""

from collections.abc import Callable

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.bucket import dcp_connection
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_info
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
STREAMS, ROUND = 25, 10


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many streams each round of a connection that had some left."""
    found: list[int] = []
    drop = DcpConnection.drop_some_streams

    def dropped(self: DcpConnection) -> bool:
        is_more = drop(self)
        found.append(len(self.streams))
        assert is_more is (found[-1] > 0)
        return is_more

    monkeypatch.setattr(dcp_connection, "DROPPED_STREAMS_AT_ONCE", ROUND)
    monkeypatch.setattr(DcpConnection, "drop_some_streams", dropped)
    return found


def test_streams_of_a_name_that_is_taken_anew_go_in_rounds(
    cluster: ProducerCluster, connect: Connect, left: list[int]
) -> None:
    """The newer connection has its own meanwhile: no cursor of theirs is taken for another."""
    bucket = cluster.bucket
    checkpoints = bucket.vbuckets[0].data.checkpoints
    older, newer = (connect(cluster).log_in() for _ in range(2))
    older.open_dcp(name=b"same", enable_stream_id="true")
    for stream_id in range(1, STREAMS + 1):
        older.request_stream(0, value=b'{"sid":%d}' % stream_id)
    with bucket.lock:
        assert len([name for name in checkpoints.cursors if "same" in name]) == STREAMS
    newer.open_dcp(name=b"same", enable_stream_id="true")
    for stream_id in range(1, 1 + STREAMS):
        answer = newer.request_stream(0, value=b'{"sid":%d}' % stream_id)
        assert answer.status == Status.SUCCESS
    other = connect(cluster).log_in()
    while bucket.dcp_connections.shared.stream_quotas[0].streams != STREAMS or not left or left[-1]:
        other.ok(m.Empty(), Opcode.NOOP)
    assert left == [15, 5, 0]
    assert list(cluster.counters().connections) == [(0, "same")]
    with bucket.lock:
        assert len([name for name in checkpoints.cursors if "same" in name]) == STREAMS
    cluster.set(b"k", b"v")
    assert newer.stream_frame().opcode == Opcode.DCP_SNAPSHOT_MARKER
    newer.socket.close()
    while cluster.counters().connections:
        other.ok(m.Empty(), Opcode.NOOP)
    with bucket.lock:
        assert not [name for name in checkpoints.cursors if "same" in name]


@pytest.mark.parametrize("ends", ["by its client", "by the server"])
def test_streams_go_in_rounds(
    cluster: ProducerCluster, connect: Connect, left: list[int], ends: str
) -> None:
    """Also those that have only to tell their end, behind a window that is full."""
    dcp = connect(cluster).log_in()
    dcp.open_dcp(
        name=b"bad",
        window=1,
        enable_stream_id="true",
        send_stream_end_on_client_close_stream="true",
    )
    for stream_id in range(1, STREAMS + 1):
        answer = dcp.request_stream(0, value=b'{"sid":%d}' % stream_id)
        assert answer.status == Status.SUCCESS
    cluster.set(b"k", b"v")  # whose marker fills the window
    dcp.stream_frame()
    extras = stream_id_info(STREAMS)
    dcp.send(Frame(Magic.ALT_REQUEST, Opcode.DCP_CLOSE_STREAM, framing_extras=extras))
    assert dcp.answer().status == Status.SUCCESS
    if ends == "by its client":
        dcp.socket.close()
    else:
        dcp.send(Frame(Magic.REQUEST, Opcode.DCP_NOOP))  # which no client may say
    other = connect(cluster).log_in()
    while cluster.counters().connections:
        other.ok(m.Empty(), Opcode.NOOP)
    assert left == [15, 5, 0]
    bucket = cluster.bucket
    assert bucket.dcp_connections.shared.stream_quotas[0].streams == 0
    assert not [name for name in bucket.vbuckets[0].data.checkpoints.cursors if "bad" in name]
    again = connect(cluster).log_in().open_dcp(name=b"bad")
    assert again.request_stream(0).status == Status.SUCCESS

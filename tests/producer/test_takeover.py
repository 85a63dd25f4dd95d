"""Takeover streams over real sockets: a vbucket is handed over without losing a write."""

from collections.abc import Callable

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.documents import DocumentError
from dcp.types import FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import EndReason, Magic, Opcode, Status, StreamFlag, VbucketState
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
ACKED = 0x0D
"""Of the first memory marker: memory, checkpoint, and to be answered."""


def _item(seqno: int) -> m.Mutation:
    return m.Mutation(b"\0k%d" % seqno, b"1", seqno, 1, cache_hint=2)


def _take_over(dcp: RawClient) -> None:
    assert dcp.request_stream(0, flags=StreamFlag.TAKEOVER).status == Status.SUCCESS


def _answer(dcp: RawClient, frame: Frame, status: int = Status.SUCCESS) -> None:
    answer = m.Empty() if status == Status.SUCCESS else m.Refusal(b"")
    dcp.send(encode(answer, frame.opcode, magic=Magic.RESPONSE, opaque=frame.opaque, status=status))


def _next(dcp: RawClient, expected: m.Body) -> Frame:
    frame = dcp.stream_frame()
    assert decode(frame) == expected
    return frame


def test_a_whole_takeover(cluster: ProducerCluster, connect: Connect) -> None:
    """What is written until the client is pending goes along; after that nothing is written."""
    log: FailoverLog = cluster.failover_log(0)
    cluster.set(b"k1", b"1")
    other = connect(cluster).log_in().open_dcp(name=b"other")
    other.request_stream(0)
    other.messages_to(1)
    dcp = connect(cluster).log_in().open_dcp()
    _take_over(dcp)
    marker = _next(dcp, m.SnapshotMarker(0, 1, ACKED))
    _next(dcp, _item(1))
    assert dcp.is_quiet()  # the marker was not answered
    _answer(dcp, marker)
    pending = _next(dcp, m.SetVbucketState(VbucketState.PENDING))
    cluster.set(b"k2", b"1")
    marker = _next(dcp, m.SnapshotMarker(2, 2, 0x09))
    _next(dcp, _item(2))
    _answer(dcp, marker)
    assert dcp.is_quiet()
    _answer(dcp, pending)
    active = _next(dcp, m.SetVbucketState(VbucketState.ACTIVE))
    with pytest.raises(DocumentError, match="DEAD"):
        cluster.set(b"k3", b"1")
    other.messages_to(2)
    assert other.message() == m.StreamEnd(EndReason.STATE_CHANGED)
    assert dcp.request_stream(0).status == Status.NOT_MY_VBUCKET
    _answer(dcp, active)
    _next(dcp, m.StreamEnd(EndReason.OK))
    assert cluster.failover_log(0) == log
    assert dcp.is_quiet()


def test_what_came_while_the_client_became_pending(
    cluster: ProducerCluster, connect: Connect
) -> None:
    """It is sent when the vbucket is dead already, before the client is told to be active."""
    dcp = connect(cluster).log_in().open_dcp(window=1)
    _take_over(dcp)
    pending = _next(dcp, m.SetVbucketState(VbucketState.PENDING))  # fills the window
    cluster.set(b"k1", b"1")
    _answer(dcp, pending)
    assert dcp.is_quiet()
    dcp.ok(m.DcpControl(b"connection_buffer_size", b"0"), Opcode.DCP_CONTROL)
    marker = _next(dcp, m.SnapshotMarker(0, 1, ACKED))
    _next(dcp, _item(1))
    assert dcp.is_quiet()
    _answer(dcp, marker)
    _next(dcp, m.SetVbucketState(VbucketState.ACTIVE))


def test_answers_that_hand_over_nothing(cluster: ProducerCluster, connect: Connect) -> None:
    cluster.set(b"k1", b"1")
    cluster.bucket.vbuckets[0].data.checkpoints.expel()
    dcp = connect(cluster).log_in().open_dcp()
    _take_over(dcp)
    marker = _next(dcp, m.SnapshotMarker(0, 1, 6))  # one from disk needs no answer
    _next(dcp, _item(1))
    pending = _next(dcp, m.SetVbucketState(VbucketState.PENDING))
    _answer(dcp, pending, Status.ETMPFAIL)
    _answer(dcp, marker)
    _answer(dcp, Frame(Magic.REQUEST, Opcode.DCP_SET_VBUCKET_STATE, opaque=99))
    assert dcp.is_quiet()
    assert cluster.set(b"k2", b"1").seqno == 2
    _next(dcp, m.SnapshotMarker(2, 2, ACKED))
    _next(dcp, _item(2))
    cluster.set_vbucket_state(0, VbucketState.REPLICA)
    _next(dcp, m.StreamEnd(EndReason.STATE_CHANGED))

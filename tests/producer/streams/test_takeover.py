"""Takeover streams over real sockets: a vbucket is handed over without losing a write."""

from collections.abc import Callable

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.model.refused_error import RefusedError
from dcp.types import FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import (
    EndReason,
    Magic,
    Opcode,
    SnapshotFlag,
    Status,
    StreamFlag,
    VbucketState,
)
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
ACKED = int(SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT | SnapshotFlag.ACK)
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
    with pytest.raises(RefusedError, match="DEAD"):
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


@pytest.mark.parametrize("flags", [0, StreamFlag.ACTIVE_VB_ONLY])
def test_others_may_not_take_over(
    make_cluster: Callable[..., ProducerCluster], connect: Connect, flags: int
) -> None:
    """Who is no administrator harms nobody; the vbucket stays active."""
    users = {"Administrator": "password", "guest": "secret-of-guest"}
    cluster = make_cluster(vbuckets=1, users=users)
    dcp = connect(cluster).log_in(user="guest", password="secret-of-guest").open_dcp()
    refused = dcp.request_stream(0, flags=flags | StreamFlag.TAKEOVER)
    assert (refused.status, b"DcpConsumer" in refused.value) == (Status.EACCESS, True)
    assert dcp.request_stream(0, flags=flags).status == Status.SUCCESS
    order = dcp.call(m.IoctlSet(b"node.failover", b"1"), Opcode.IOCTL_SET)
    assert (order.status, b"Administrator" in order.value) == (Status.EACCESS, True)
    question = dcp.call(m.IoctlGet(b"nodes"), Opcode.IOCTL_GET)
    assert (question.status, b"Administrator" in question.value) == (Status.EACCESS, True)
    assert cluster.set(b"k", b"1").seqno == 1


def test_who_takes_over_is_a_setting(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    users = {"Administrator": "password", "mover": "secret-of-mover"}
    cluster = make_cluster(vbuckets=1, users=users, administrators=frozenset({"mover"}))
    _take_over(connect(cluster).log_in(user="mover", password="secret-of-mover").open_dcp())
    dcp = connect(cluster).log_in().open_dcp()
    assert dcp.request_stream(0, flags=StreamFlag.TAKEOVER).status == Status.EACCESS


def test_a_replica_cannot_be_taken_over(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    cluster = make_cluster(nodes=2, vbuckets=1, replicas=1)
    cluster.set(b"k", b"1")
    cluster.wait_until_replicated()
    dcp = connect(cluster, 1).log_in().open_dcp()
    refused = dcp.request_stream(0, flags=StreamFlag.TAKEOVER)
    assert refused.status == Status.NOT_MY_VBUCKET
    assert dcp.request_stream(0).status == Status.SUCCESS
    assert cluster.set(b"k", b"2").seqno == 2


def test_what_was_handed_over_is_not_again(cluster: ProducerCluster, connect: Connect) -> None:
    """Two streams take over; the one that is answered second finds it gone."""
    first = connect(cluster).log_in().open_dcp(name=b"first")
    second = connect(cluster).log_in().open_dcp(name=b"second")
    told: list[Frame] = []
    for dcp in (first, second):
        _take_over(dcp)
        told.append(_next(dcp, m.SetVbucketState(VbucketState.PENDING)))
    _answer(first, told[0])
    _next(first, m.SetVbucketState(VbucketState.ACTIVE))
    _next(second, m.StreamEnd(EndReason.STATE_CHANGED))
    _answer(second, told[1])
    assert second.is_quiet()

"""Several streams of one vbucket on one connection, told apart by ids, over real sockets."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.server.streams.stream_id_frames import with_stream_id
from dcp.types import U16_MAX
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_info
from dcp.wire.system_event import CollectionBegun, encode_system_event
from dcp.wire.vocabulary import EndReason, Magic, Opcode, Status, VbucketState
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
CLOSE = m.Empty(), Opcode.DCP_CLOSE_STREAM
mutations = st.builds(
    lambda key, value, cas: encode(
        m.Mutation(key, value, 7, 1), Opcode.DCP_MUTATION, vbucket=3, cas=cas
    ),
    st.binary(min_size=1, max_size=251),
    st.binary(max_size=300),
    st.integers(0, 2**64 - 1),
)


@given(st.lists(mutations, min_size=1, max_size=6), st.integers(0, U16_MAX))
def test_frames_are_those_that_an_encoder_makes(frames: list[Frame], stream_id: int) -> None:
    wires = [frame.to_bytes() for frame in frames]
    ends = np.cumsum([0, *map(len, wires)])
    data, new_ends = with_stream_id(b"".join(wires), ends, stream_id)
    infos = stream_id_info(stream_id)
    named = [frame._replace(magic=Magic.ALT_REQUEST, framing_extras=infos) for frame in frames]
    assert data == b"".join(frame.to_bytes() for frame in named)
    assert new_ends.tolist() == np.cumsum([0, *(len(one.to_bytes()) for one in named)]).tolist()


@pytest.fixture
def dcp(cluster: ProducerCluster, connect: Connect) -> RawClient:
    """A connection with stream ids to a vbucket of two collections."""
    cluster.create_collection("", "a")
    with cluster.batch():
        cluster.set(b"k", b"1", collection=8)
        cluster.set(b"k", b"2")
        cluster.set(b"l", b"3", collection=8)
        cluster.delete(b"l", collection=8)
    client = connect(cluster).log_in()
    return client.open_dcp(enable_stream_id="true", send_stream_end_on_client_close_stream="true")


def _asked(dcp: RawClient, stream_id: int, names: bytes = b"") -> int:
    value = b'{"sid":%d%s}' % (stream_id, names and b',"collections":["%s"]' % names)
    return dcp.request_stream(0, value=value).status


def _messages(dcp: RawClient, ends: dict[int, int]) -> dict[int, list[m.Body]]:
    """What each stream is sent up to its seqno, by ids; every frame must bear its stream's."""
    found: dict[int, list[m.Body]] = {stream_id: [] for stream_id in ends}
    left = dict(ends)
    while left:
        frame = dcp.stream_frame()
        assert frame.magic is Magic.ALT_REQUEST
        stream_id = int.from_bytes(frame.framing_extras[1:])
        assert frame.framing_extras == stream_id_info(stream_id)
        body = decode(frame)
        found[stream_id].append(body)
        if getattr(body, "by_seqno", getattr(body, "seqno", None)) == left.get(stream_id):
            del left[stream_id]
    return found


@pytest.mark.parametrize("from_disk", [True, False])
def test_streams_of_one_vbucket(cluster: ProducerCluster, dcp: RawClient, from_disk: bool) -> None:
    if from_disk:
        cluster.bucket.vbuckets[0].data.checkpoints.expel()
    assert [_asked(dcp, 1, b"8"), _asked(dcp, 2, b"0"), _asked(dcp, 9)] == [Status.SUCCESS] * 3
    last = 5 if from_disk else 3
    found = _messages(dcp, {1: 5, 2: last, 9: 5})
    marker = m.SnapshotMarker(0, 5, 6 if from_disk else 5)
    event = encode_system_event(CollectionBegun(1, 0, 8, b"a"), 1)
    of_a = [
        event,
        m.Mutation(b"\x08k", b"1", 2, 1, cache_hint=2),
        m.Deletion(b"\x08l", 5, 2, b"", nmeta=0),
    ]
    default = m.Mutation(b"\0k", b"2", 3, 1, cache_hint=2)
    assert found == {
        1: [marker, *of_a],
        2: [replace(marker, end=last), default, *([m.SeqnoAdvanced(5)] if from_disk else [])],
        9: [marker, *of_a[:2], default, of_a[2]],
    }
    cluster.set(b"m", b"4", collection=8)
    later = [m.SnapshotMarker(6, 6, 5 if from_disk else 1)]
    later_item = m.Mutation(b"\x08m", b"4", 6, 1, cache_hint=2)
    assert _messages(dcp, {1: 6, 9: 6}) == {1: [*later, later_item], 9: [*later, later_item]}


def test_flow_control_counts_the_ids(cluster: ProducerCluster, connect: Connect) -> None:
    with cluster.batch():
        for number in range(20):
            cluster.set(b"k%d" % number, bytes(100))
    dcp = connect(cluster).log_in().open_dcp(enable_stream_id="true", window=1000)
    assert _asked(dcp, 1) == Status.SUCCESS
    sent, frames = 0, 0
    while sent < 1000:
        sent += len(dcp.stream_frame().to_bytes())
        frames += 1
    assert dcp.is_quiet()
    (connection,) = cluster.bucket.dcp_connections.values()
    assert (connection.flow.outstanding_bytes, frames) == (sent, 7)


def test_refusals(dcp: RawClient, cluster: ProducerCluster, connect: Connect) -> None:
    """As 05c-stream-ids.jsonl where that asks the same."""
    assert dcp.request_stream(0).status == Status.DCP_STREAM_ID_INVALID
    assert _asked(dcp, 2) == Status.SUCCESS
    assert _asked(dcp, 2, b"8") == Status.KEY_EEXISTS
    assert _asked(dcp, 0) == Status.DCP_STREAM_ID_INVALID
    assert dcp.call(*CLOSE).status == Status.DCP_STREAM_ID_INVALID
    assert dcp.call(*CLOSE, framing_extras=stream_id_info(1)).status == Status.DCP_STREAM_ID_INVALID
    missing = dcp.call(*CLOSE, vbucket=1, framing_extras=stream_id_info(2))
    assert missing.status == Status.KEY_ENOENT
    assert dcp.call(*CLOSE, framing_extras=b"\x21\0").status == Status.EINVAL
    assert dcp.call(*CLOSE, framing_extras=stream_id_info(2)).status == Status.SUCCESS
    plain = connect(cluster).log_in().open_dcp(name=b"plain")
    assert _asked(plain, 1) == Status.DCP_STREAM_ID_INVALID
    plain.send(encode(*CLOSE, magic=Magic.ALT_REQUEST, framing_extras=stream_id_info(1)))
    assert plain.is_closed()  # it may not use framing extras at all


def test_ends(cluster: ProducerCluster, dcp: RawClient) -> None:
    """A close ends one stream, a change of state all of them."""
    for stream_id in (1, 2, 3):
        assert _asked(dcp, stream_id) == Status.SUCCESS
    _messages(dcp, {1: 5, 2: 5, 3: 5})
    assert dcp.call(*CLOSE, framing_extras=stream_id_info(2)).status == Status.SUCCESS
    (connection,) = cluster.bucket.dcp_connections.values()
    cluster.set_vbucket_state(0, VbucketState.DEAD)
    ends = [dcp.stream_frame() for _ in range(3)]
    found = {int.from_bytes(end.framing_extras[1:]): decode(end) for end in ends}
    changed = m.StreamEnd(EndReason.STATE_CHANGED)
    assert found == {2: m.StreamEnd(EndReason.CLOSED), 1: changed, 3: changed}
    assert dcp.is_quiet()
    assert not connection.streams

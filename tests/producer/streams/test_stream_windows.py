"""Windows of single streams beside the connection's: the document's walk-throughs, and every ack.

All without sockets: the bytes that a session lets out are counted, message by message.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.send_window import UNLIMITED
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.server.streams.stream_windows import StreamWindows
from dcp.types import U32_MAX
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import HelloFeature, Magic, Opcode, Status
from tests.producer.dcp_session import DcpSession, frame_bytes
from tests.producer.raw_client import PLAIN_FEATURES, RawClient

KIB = 1024
MARKER = 44
MUTATION_HEAD = 55
END = 28
ONE, TWO = 11, 22
"""Opaques of the streams of vbuckets 0 and 1."""


@pytest.fixture
def new_cluster() -> Iterator[Callable[..., ProducerCluster]]:
    """Clusters that do not run: nothing here needs a thread or a port."""
    with ExitStack() as stack:

        def make(vbuckets: int = 2, **settings: Any) -> ProducerCluster:
            cluster = ProducerCluster(ClusterSettings(vbuckets=vbuckets, seed=1, **settings))
            stack.callback(cluster.stop)
            return cluster

        yield make


def _keys(cluster: ProducerCluster, vbucket: int) -> Iterator[bytes]:
    keys = (b"k%05d" % number for number in range(100_000))
    return (key for key in keys if cluster.vbucket_of(key) == vbucket)


def fill(cluster: ProducerCluster, count: int, message_bytes: int = KIB) -> None:
    """Store in each vbucket what its stream sends as ``count`` times so many bytes.

    The first of them are the marker and a document that is so much shorter.
    """
    with cluster.batch():
        for vbucket in range(cluster.settings.vbuckets):
            keys = _keys(cluster, vbucket)
            for number in range(count):
                key = next(keys)
                head = MUTATION_HEAD + len(key) + (0 if number else MARKER)
                cluster.set(key, b"x" * (message_bytes - head))


def streaming(cluster: ProducerCluster, **controls: object) -> DcpSession:
    """Return a client with a stream of each of the first two vbuckets; nothing was sent yet."""
    client = DcpSession(cluster, enable_noop="true", **controls)
    for vbucket, opaque in enumerate((ONE, TWO)):
        assert client.request_stream(vbucket, opaque).status == Status.SUCCESS
    return client


# --- the document's walk-throughs


@pytest.mark.parametrize("rules", ["document", "server"])
def test_a_connection_of_100_kb_that_acknowledges_40_kb(
    new_cluster: Callable[..., ProducerCluster], rules: str
) -> None:
    cluster = new_cluster(rules=rules)
    fill(cluster, 200)
    client = streaming(cluster, connection_buffer_size=102_400)
    first = client.sent_bytes(turn_bytes=4 * KIB)
    assert sum(first.values()) == 102_400
    assert first.keys() == {ONE, TWO}
    for _ in range(3):
        assert client.sent() == []
        assert client.ack(40_960) == []
        assert client.outstanding(0) == 61_440
        assert sum(client.sent_bytes().values()) == 40_960
        assert client.outstanding(0) == 102_400


def test_streams_of_10_kb_that_acknowledge_5_kb(
    new_cluster: Callable[..., ProducerCluster],
) -> None:
    cluster = new_cluster()
    fill(cluster, 40)
    client = streaming(cluster, stream_buffer_size=10_240)
    assert client.sent_bytes() == {ONE: 10_240, TWO: 10_240}
    for _ in range(3):
        assert client.sent() == []
        assert client.ack(5_120, ONE) == []
        assert (client.outstanding(ONE), client.outstanding(TWO)) == (5_120, 10_240)
        assert client.sent_bytes() == {ONE: 5_120}, "the other stream sends no new data"
        assert client.outstanding(ONE) == 10_240
    assert client.ack(5_120, TWO) == []
    assert client.sent_bytes() == {TWO: 5_120}


# --- one stream's window


def test_a_window_is_overshot_by_one_message(new_cluster: Callable[..., ProducerCluster]) -> None:
    cluster = new_cluster()
    fill(cluster, 20)
    client = streaming(cluster, stream_buffer_size=10_241)
    assert client.sent_bytes() == {ONE: 11 * KIB, TWO: 11 * KIB}
    client.ack(1_023, ONE)
    assert client.sent() == [], "exactly full is full"
    client.ack(1, ONE)
    assert client.sent_bytes() == {ONE: KIB}
    assert cluster.counters().peak_stream_unacked_bytes == 11 * KIB


def test_a_message_larger_than_the_window_passes(
    new_cluster: Callable[..., ProducerCluster],
) -> None:
    cluster = new_cluster()
    fill(cluster, 3, message_bytes=KIB * KIB)
    client = streaming(cluster, stream_buffer_size=KIB)
    assert client.sent_bytes() == {ONE: KIB * KIB, TWO: KIB * KIB}
    client.ack(KIB * KIB - KIB + 1, TWO)
    assert client.sent_bytes() == {TWO: KIB * KIB}


def test_a_full_stream_holds_up_no_other_and_no_answer(
    new_cluster: Callable[..., ProducerCluster],
) -> None:
    cluster = new_cluster()
    fill(cluster, 20)
    client = streaming(cluster, stream_buffer_size=KIB)
    client.sent()
    assert client.dcp.paused_reason == "BufferLogFull"
    for turn in range(15):
        client.ack(KIB, TWO)
        assert client.sent_bytes() == {TWO: KIB}, turn
        assert client.ask(encode(m.Empty(), Opcode.NOOP)).status == Status.SUCCESS
    key = next(_keys(cluster, 0))
    cluster.set(key, b"a write wakes streams that are full, too")
    client.dcp.vbuckets_changed(cluster.bucket.changes.collect())
    assert client.sent() == []


def test_an_end_waits_for_its_streams_window(new_cluster: Callable[..., ProducerCluster]) -> None:
    cluster = new_cluster()
    fill(cluster, 3)
    client = streaming(
        cluster, stream_buffer_size=KIB, send_stream_end_on_client_close_stream="true"
    )
    client.sent()
    assert client.close_stream(0).status == Status.SUCCESS
    assert client.sent() == []
    client.ack(1, ONE)
    (end,) = client.sent()
    assert (end.opaque, decode(end)) == (ONE, m.StreamEnd(1))


def test_what_is_no_message_of_a_stream_is_not_counted(
    new_cluster: Callable[..., ProducerCluster],
) -> None:
    cluster = new_cluster()
    client = streaming(cluster, stream_buffer_size=KIB, connection_buffer_size=KIB)
    client.control("set_noop_interval", "0.1")
    assert client.request_stream(0, ONE).status == Status.KEY_EEXISTS
    client.ask(encode(m.Empty(), Opcode.NOOP))
    assert [frame.opcode for frame in client.sent(now=10.0)] == [Opcode.DCP_NOOP]
    assert [client.outstanding(opaque) for opaque in (0, ONE, TWO)] == [0, 0, 0]


# --- both windows at once


@pytest.mark.parametrize(
    ("connection", "stream", "sent", "stops"),
    [
        (100 * KIB, 10 * KIB, {ONE: 10 * KIB, TWO: 10 * KIB}, "streams"),
        (8 * KIB, 10 * KIB, {ONE: 4 * KIB, TWO: 4 * KIB}, "connection"),
        (20 * KIB, 10 * KIB, {ONE: 10 * KIB, TWO: 10 * KIB}, "both"),
    ],
)
def test_a_stream_sends_while_both_windows_have_room(
    new_cluster: Callable[..., ProducerCluster],
    connection: int,
    stream: int,
    sent: dict[int, int],
    stops: str,
) -> None:
    cluster = new_cluster()
    fill(cluster, 40)
    client = streaming(cluster, connection_buffer_size=connection, stream_buffer_size=stream)
    assert client.sent_bytes(turn_bytes=KIB) == sent
    client.ack(2 * KIB, ONE)
    assert bool(client.sent()) is (stops == "streams")
    client.ack(2 * KIB)
    # where the connection stopped them, both streams had room: they take turns
    assert sum(client.sent_bytes(turn_bytes=KIB).values()) == (0 if stops == "streams" else 2 * KIB)


def test_an_acknowledgement_counts_for_one_window_only(
    new_cluster: Callable[..., ProducerCluster],
) -> None:
    cluster = new_cluster()
    fill(cluster, 40)
    client = streaming(cluster, connection_buffer_size=100 * KIB, stream_buffer_size=10 * KIB)
    client.sent()
    client.ack(4 * KIB, ONE)
    assert [client.outstanding(at) for at in (0, ONE, TWO)] == [20 * KIB, 6 * KIB, 10 * KIB]
    client.ack(5 * KIB)
    assert [client.outstanding(at) for at in (0, ONE, TWO)] == [15 * KIB, 6 * KIB, 10 * KIB]


# --- every acknowledgement


@pytest.mark.parametrize(
    ("controls", "opaque", "count", "left", "status"),
    [
        ({}, 0, 1000, (6144, 3072), None),  # without windows nothing is taken back
        ({}, ONE, 1000, (6144, 3072), None),
        ({}, 99, 1000, (6144, 3072), None),
        ({"connection_buffer_size": 9999}, 0, 1000, (5144, 3072), None),
        ({"connection_buffer_size": 9999}, ONE, 1000, (5144, 3072), None),
        ({"connection_buffer_size": 9999}, 99, 1000, (5144, 3072), None),  # as servers do
        ({"connection_buffer_size": 9999}, 0, 0, (6144, 3072), None),
        ({"connection_buffer_size": 9999}, 0, U32_MAX, (0, 3072), None),
        ({"stream_buffer_size": 9999}, 0, 1000, (6144, 3072), None),
        ({"stream_buffer_size": 9999}, ONE, 1000, (6144, 2072), None),
        ({"stream_buffer_size": 9999}, ONE, 3073, (6144, 0), None),
        ({"stream_buffer_size": 9999}, ONE, U32_MAX, (6144, 0), None),
        ({"stream_buffer_size": 9999}, TWO, 1000, (6144, 3072), None),
        ({"stream_buffer_size": 9999}, 99, 1000, (6144, 3072), Status.KEY_ENOENT),
        ({"stream_buffer_size": 9999}, U32_MAX, 1, (6144, 3072), Status.KEY_ENOENT),
    ],
)
def test_acknowledgements(
    new_cluster: Callable[..., ProducerCluster],
    controls: dict[str, object],
    opaque: int,
    count: int,
    left: tuple[int, int],
    status: Status | None,
) -> None:
    """Where the connection and stream ONE are left at, from 6 and 3 KiB; and the answer."""
    cluster = new_cluster()
    fill(cluster, 3)
    client = streaming(cluster, **controls)
    client.sent()
    answers = client.ack(count, opaque)
    assert [answer.status for answer in answers] == ([] if status is None else [status])
    assert (client.outstanding(0), client.outstanding(ONE)) == left
    assert not client.is_closing


def test_an_unknown_opaque_is_told_in_words(new_cluster: Callable[..., ProducerCluster]) -> None:
    client = streaming(new_cluster(), stream_buffer_size=KIB)
    (answer,) = client.ack(7, 0xABC)
    told = json.loads(answer.value)["error"]["context"]
    assert told == (
        "DCP_BUFFER_ACK: expected 0 for the connection or the opaque of a stream, found 2748"
    )
    assert answer.opaque == 0xABC


@pytest.mark.parametrize("extras", [b"", b"xx", b"\0" * 5, b"\0\0\0\1\0\0\0\0"])
@pytest.mark.parametrize("opaque", [0, ONE, 99])
def test_malformed_acknowledgements_are_answered_and_change_nothing(
    new_cluster: Callable[..., ProducerCluster], extras: bytes, opaque: int
) -> None:
    """Eight bytes too: no count is larger than 32 bits."""
    cluster = new_cluster()
    fill(cluster, 3)
    client = streaming(cluster, stream_buffer_size=KIB, connection_buffer_size=KIB)
    client.sent()
    before = [client.outstanding(at) for at in (0, ONE, TWO)]
    bad = Frame(Magic.REQUEST, Opcode.DCP_BUFFER_ACK, extras=extras, opaque=opaque)
    answer = client.ask(bad)
    assert (answer.status, answer.opaque) == (Status.EINVAL, opaque)
    assert [client.outstanding(at) for at in (0, ONE, TWO)] == before
    assert not client.is_closing


@pytest.mark.parametrize("announces", ["true", "false"])
def test_a_stream_that_ended_returns_its_bytes_and_late_acknowledgements_are_fine(
    new_cluster: Callable[..., ProducerCluster], announces: str
) -> None:
    cluster = new_cluster()
    fill(cluster, 3)
    client = streaming(
        cluster,
        stream_buffer_size=8 * KIB,
        connection_buffer_size=100 * KIB,
        send_stream_end_on_client_close_stream=announces,
    )
    client.sent()
    client.close_stream(0)
    client.sent()
    assert client.dcp.stream_windows.flow(ONE) is None
    assert client.ack(3 * KIB, ONE) == []
    ended_bytes = END if announces == "true" else 0
    assert client.outstanding(0) == 6 * KIB + ended_bytes, "those are acknowledged by themselves"
    assert client.request_stream(0, ONE).status == Status.SUCCESS, "the opaque is free again"
    assert client.sent_bytes() == {ONE: 3 * KIB}
    assert client.outstanding(ONE) == 3 * KIB


def test_what_ended_streams_were_given_back_too_much_stays_counted() -> None:
    windows = StreamWindows()
    windows.set_window(KIB)
    windows.opened(ONE)
    windows.charge(ONE, 400)
    assert windows.acknowledge(ONE, 400)
    assert windows.over_acked_bytes == 0
    assert windows.acknowledge(ONE, 30)
    windows.ended(ONE)
    assert windows.acknowledge(ONE, 1000), "late ones of ended streams are fine"
    windows.opened(TWO)
    assert windows.acknowledge(TWO, 5)
    assert windows.over_acked_bytes == 35


def test_only_so_many_ended_streams_are_remembered() -> None:
    windows = StreamWindows()
    windows.set_window(100)
    for opaque in range(1, 16 * KIB + 2):
        windows.opened(opaque)
        windows.ended(opaque)
    assert not windows.acknowledge(1, 1)
    assert windows.acknowledge(2, 1)
    assert windows.streams == 0


def test_opaque_0_names_no_stream_with_a_window(
    new_cluster: Callable[..., ProducerCluster],
) -> None:
    cluster = new_cluster()
    fill(cluster, 20)
    client = DcpSession(cluster)
    assert client.request_stream(0, 0).status == Status.SUCCESS
    client.control("stream_buffer_size", "2048")
    refused = client.request_stream(1, 0)
    assert refused.status == Status.EINVAL
    assert b"Opaque 0 names the connection" in refused.value
    assert client.sent_bytes() == {0: 20 * KIB}, "nobody could acknowledge what it holds"
    assert client.request_stream(1, TWO).status == Status.SUCCESS
    assert client.sent_bytes() == {TWO: 2 * KIB}


def test_streams_that_share_an_opaque_share_its_window(
    new_cluster: Callable[..., ProducerCluster],
) -> None:
    cluster = new_cluster()
    fill(cluster, 20)
    client = DcpSession(cluster, stream_buffer_size=4 * KIB)
    for vbucket in range(2):
        assert client.request_stream(vbucket, ONE).status == Status.SUCCESS
    assert client.sent_bytes(turn_bytes=KIB) == {ONE: 4 * KIB}
    client.close_stream(0)
    assert client.outstanding(ONE) == 4 * KIB, "the other one has it still"
    client.ack(4 * KIB, ONE)
    assert client.sent_bytes() == {ONE: 4 * KIB}


# --- changes while data flows


def test_sizes_change_at_any_time(new_cluster: Callable[..., ProducerCluster]) -> None:
    cluster = new_cluster()
    fill(cluster, 40)
    client = streaming(cluster, stream_buffer_size=4 * KIB)
    assert client.sent_bytes() == {ONE: 4 * KIB, TWO: 4 * KIB}
    client.control("stream_buffer_size", str(6 * KIB))
    assert client.sent_bytes() == {ONE: 2 * KIB, TWO: 2 * KIB}
    client.control("stream_buffer_size", str(2 * KIB))
    client.ack(4 * KIB, ONE)
    assert client.sent() == [], "what is outstanding is still as much as the window"
    client.ack(1 * KIB, ONE)
    assert client.sent_bytes() == {ONE: KIB}
    client.control("connection_buffer_size", str(KIB))
    client.control("stream_buffer_size", str(20 * KIB))
    assert client.sent() == [], "the connection's window came later: all that was sent counts"
    client.control("connection_buffer_size", str(15 * KIB))
    assert sum(client.sent_bytes(turn_bytes=KIB).values()) == 2 * KIB


def test_0_switches_off_and_clears_what_was_counted(
    new_cluster: Callable[..., ProducerCluster],
) -> None:
    cluster = new_cluster()
    fill(cluster, 40)
    client = streaming(cluster, stream_buffer_size=4 * KIB, connection_buffer_size=10 * KIB)
    client.sent()
    client.control("stream_buffer_size", "0")
    assert (client.outstanding(ONE), client.outstanding(TWO)) == (0, 0)
    assert sum(client.sent_bytes().values()) == 2 * KIB, "up to the connection's window"
    counted = client.outstanding(ONE)
    assert client.ack(KIB, ONE) == [], "one that was under way is not taken for the connection's"
    assert [client.outstanding(at) for at in (0, ONE)] == [10 * KIB, counted]
    client.control("connection_buffer_size", "0")
    assert client.outstanding(0) == 0
    assert sum(client.sent_bytes().values()) == 70 * KIB


def test_windows_that_come_late_begin_with_what_was_sent(
    new_cluster: Callable[..., ProducerCluster],
) -> None:
    cluster = new_cluster()
    fill(cluster, 5)
    client = streaming(cluster)
    client.sent()
    client.control("stream_buffer_size", str(4 * KIB))
    assert client.outstanding(ONE) == 5 * KIB
    cluster.set(next(_keys(cluster, 0)), b"new")
    client.dcp.vbuckets_changed(cluster.bucket.changes.collect())
    assert client.sent() == []
    client.ack(5 * KIB, ONE)
    assert [frame.opaque for frame in client.sent()] == [ONE, ONE]


def test_servers_have_no_windows_of_streams(new_cluster: Callable[..., ProducerCluster]) -> None:
    cluster = new_cluster(rules="server")
    fill(cluster, 20)
    client = DcpSession(cluster, connection_buffer_size=8 * KIB)
    for value in ("1", "0", "x", "4294967296"):
        assert client.control("stream_buffer_size", value).status == Status.NOT_SUPPORTED
    assert client.request_stream(0, ONE).status == Status.SUCCESS
    assert client.sent_bytes() == {ONE: 8 * KIB}
    assert client.ack(KIB, 99) == [], "nobody looks at the opaque"
    assert client.sent_bytes() == {ONE: KIB}


def test_statistics_tell_each_streams_window(
    make_cluster: Callable[..., ProducerCluster], connect: Callable[..., RawClient]
) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 20)
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(stream_buffer_size="5000")
    opaques = [dcp.request_stream(vbucket).opaque for vbucket in range(2)]
    seen = dict.fromkeys(opaques, 0)
    while min(seen.values()) < 5000:
        frame = dcp.stream_frame()
        seen[frame.opaque] += frame_bytes(frame)
    assert dcp.is_quiet()
    dcp.send(encode(m.BufferAck(100), Opcode.DCP_BUFFER_ACK, opaque=opaques[0]))
    told = connect(cluster).log_in((HelloFeature.XERROR,)).statistics("dcp")
    stream = "eq_dcpq:raw:stream_0_"
    assert told[stream + "max_buffer_bytes"] == "5000"
    assert told[stream + "unacked_bytes"] == str(seen[opaques[0]] - 100)
    assert told[stream + "total_acked_bytes"] == "100"


# --- what a prepare is charged


@pytest.mark.parametrize("from_disk", [True, False])
@pytest.mark.parametrize(("extra_bytes", "charged"), [(0, 60), (2, 62), (1000, 1060)])
def test_what_a_prepare_is_charged(
    new_cluster: Callable[..., ProducerCluster], extra_bytes: int, charged: int, from_disk: bool
) -> None:
    """55 bytes, a key of 4 and a value of one; the window counts what is charged, to the byte."""
    cluster = new_cluster(vbuckets=1, prepare_extra_bytes=extra_bytes)
    content = Content(b"1", opcode=Opcode.DCP_PREPARE, sync=SyncWrite(level=1))
    document = Content(b"1")
    versions = [
        Version(0, b"k%03d" % seqno, document if seqno == 3 else content, seqno=seqno, rev=1, cas=1)
        for seqno in range(1, 10)
    ]
    cluster.take_versions(0, versions)
    if from_disk:
        cluster.bucket.vbuckets[0].data.checkpoints.expel()
    window = MARKER + charged
    client = DcpSession(
        cluster,
        enable_sync_writes="true",
        connection_buffer_size=window + 1,
        stream_buffer_size=window,
    )
    assert client.request_stream(0, ONE).status == Status.SUCCESS
    sent = client.sent()
    assert [frame_bytes(frame) for frame in sent] == [MARKER, 60]
    assert [client.outstanding(at) for at in (0, ONE)] == [MARKER + charged] * 2
    client.ack(MARKER + charged, ONE)
    client.ack(MARKER + charged)
    client.control("stream_buffer_size", "0")
    client.control("connection_buffer_size", str(2 * charged + 60))
    assert [frame.opcode for frame in client.sent()] == [
        Opcode.DCP_PREPARE,
        Opcode.DCP_MUTATION,
        Opcode.DCP_PREPARE,
    ], "the document is charged as it is"
    assert client.outstanding(0) == 2 * charged + 60


# --- against a model


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 3), st.integers(1, 400)),
        st.tuples(st.just("ack"), st.integers(0, 4), st.integers(0, 600)),
        st.tuples(st.just("open"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("end"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("window"), st.just(0), st.sampled_from([0, 0, 100, 500])),
        st.tuples(st.just("look"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_windows_agree_with_sums_of_what_was_sent(steps: list[tuple[str, int, int]]) -> None:
    windows, window = StreamWindows(), 0
    outstanding: dict[int, int] = {}
    known: set[int] = set()
    for step, opaque, count in [*steps, ("look", 0, 0)]:
        if step == "open" and opaque not in outstanding:
            windows.opened(opaque)
            outstanding[opaque] = 0
            known.add(opaque)
        elif step == "end" and opaque in outstanding:
            windows.ended(opaque)
            del outstanding[opaque]
        elif step == "send" and outstanding.get(opaque, window) < (window or 10**9):
            if opaque in outstanding:
                windows.charge(opaque, count)
                outstanding[opaque] += count
        elif step == "ack":
            assert windows.acknowledge(opaque, count) is (opaque in known)
            if window and opaque in outstanding:
                outstanding[opaque] = max(0, outstanding[opaque] - count)
        elif step == "window":
            windows.set_window(count)
            window = count
            if not window:
                outstanding = dict.fromkeys(outstanding, 0)
        assert windows.streams == len(outstanding)
        for each, total in outstanding.items() if step == "look" else ():
            flow = windows.flow(each)
            assert flow is not None
            assert flow.outstanding_bytes == total
            expected = window - total if window else UNLIMITED
            assert windows.room_bytes(each) == expected

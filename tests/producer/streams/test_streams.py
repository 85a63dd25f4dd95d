"""Streams over real sockets: markers, de-duplication, resuming, bounds, shapes of items."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.model.versions import Content, Version
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import (
    Datatype,
    EndReason,
    HelloFeature,
    Opcode,
    OpenFlag,
    SnapshotFlag,
    Status,
    StreamFlag,
)
from dcp.wire.xattr import join_xattrs
from tests.producer.conftest import Clock
from tests.producer.one_vbucket import seqnos_of
from tests.producer.raw_client import FEATURES, PLAIN_FEATURES, RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
DISK = int(SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT)
FIRST_MEMORY = int(SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT)
MEMORY = int(SnapshotFlag.MEMORY)
PRODUCER = int(OpenFlag.PRODUCER)
XATTRS = int(OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS)
DELETED_XATTRS = int(OpenFlag.INCLUDE_DELETED_USER_XATTRS)
KEYS = int(OpenFlag.PRODUCER | OpenFlag.NO_VALUE)
KEYS_AND_DATATYPES = int(OpenFlag.PRODUCER | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE)
DELETE_TIMES = int(OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES)


def _fill(cluster: ProducerCluster, first: int, last: int) -> None:
    with cluster.batch():
        for number in range(first, last + 1):
            cluster.set(b"k%d" % number, b"%d" % number)


def test_a_stream_from_zero_near_the_end_reads_memory(
    cluster: ProducerCluster, connect: Connect
) -> None:
    _fill(cluster, 1, 5)
    dcp = connect(cluster).log_in().open_dcp()
    answer = dcp.request_stream(0)
    assert decode(answer) == m.FailoverLogAnswer(cluster.failover_log(0).entries)
    messages = dcp.messages_to(5)
    assert messages[0] == m.SnapshotMarker(0, 5, FIRST_MEMORY)
    assert messages[1] == m.Mutation(b"\0k1", b"1", 1, 1, cache_hint=2)
    assert seqnos_of(messages) == [1, 2, 3, 4, 5]
    cluster.set(b"later", b"{}")
    assert dcp.message() == m.SnapshotMarker(6, 6, MEMORY)
    assert dcp.message() == m.Mutation(b"\0later", b"{}", 6, 1, cache_hint=2)


def test_every_message_bears_opaque_and_vbucket_of_its_stream(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    cluster = make_cluster()
    _fill(cluster, 1, 40)
    dcp = connect(cluster).log_in().open_dcp()
    opaques = {}
    for vbucket in range(4):
        opaques[vbucket] = dcp.request_stream(vbucket, flags=int(StreamFlag.TO_LATEST)).opaque
    seen = [dcp.stream_frame() for _ in range(40 + 2 * 4)]
    assert all(frame.opaque == opaques[frame.vbucket] for frame in seen)
    ends = [frame for frame in seen if frame.opcode == Opcode.DCP_STREAM_END]
    assert sorted(frame.vbucket for frame in ends) == [0, 1, 2, 3]


def test_a_stream_far_behind_reads_disk_then_memory(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=1, checkpoint_items=9)
    _fill(cluster, 1, 10)
    dcp = connect(cluster).log_in().open_dcp()
    dcp.request_stream(0)
    assert dcp.messages_to(10)[0] == m.SnapshotMarker(0, 10, DISK)
    _fill(cluster, 11, 12)
    assert dcp.message() == m.SnapshotMarker(11, 12, FIRST_MEMORY)
    assert seqnos_of(dcp.messages_to(12)) == [11, 12]
    _fill(cluster, 13, 40)  # far behind again, but memory keeps what this stream lacks
    markers = [b for b in dcp.messages_to(40) if isinstance(b, m.SnapshotMarker)]
    assert markers == [  # one for each checkpoint; the stream was in the first of them already
        m.SnapshotMarker(13, 18, MEMORY),
        m.SnapshotMarker(19, 27, FIRST_MEMORY),
        m.SnapshotMarker(28, 36, FIRST_MEMORY),
        m.SnapshotMarker(37, 40, FIRST_MEMORY),
    ]


def test_disk_markers_have_version_2_2_where_asked(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=1, checkpoint_items=0)
    _fill(cluster, 1, 3)
    dcp = connect(cluster).log_in().open_dcp(max_marker_version="2.2")
    dcp.request_stream(0)
    assert dcp.message() == m.SnapshotMarker(0, 3, DISK, 2, 3, 0, None, 0, 0)


def test_a_key_comes_once_per_snapshot(cluster: ProducerCluster, connect: Connect) -> None:
    with cluster.batch():
        cluster.set(b"a", b"1")
        cluster.set(b"b", b"2")
        cluster.set(b"a", b"3")
        cluster.delete(b"b")
    dcp = connect(cluster).log_in().open_dcp()
    dcp.request_stream(0)
    marker, a, b = (dcp.message() for _ in range(3))
    assert marker == m.SnapshotMarker(0, 4, FIRST_MEMORY)
    assert a == m.Mutation(b"\0a", b"3", 3, 2, cache_hint=2)
    assert b == m.Deletion(b"\0b", 4, 2, b"", 0)
    with cluster.batch():
        cluster.set(b"a", b"5")
        cluster.set(b"a", b"6")
    assert dcp.message() == m.SnapshotMarker(6, 6, MEMORY)
    assert dcp.message() == m.Mutation(b"\0a", b"6", 6, 4, cache_hint=2)


def test_resuming_inside_a_snapshot_gives_a_longer_one(
    cluster: ProducerCluster, connect: Connect
) -> None:
    _fill(cluster, 1, 47)
    uuid = cluster.failover_log(0).current_uuid
    dcp = connect(cluster).log_in().open_dcp()
    assert dcp.request_stream(0, 12, vb_uuid=uuid, snapshot=(0, 25)).status == Status.SUCCESS
    messages = dcp.messages_to(47)
    assert messages[0] == m.SnapshotMarker(0, 47, FIRST_MEMORY)
    assert seqnos_of(messages) == list(range(13, 48))


def test_resuming_at_a_complete_snapshot_begins_there(
    cluster: ProducerCluster, connect: Connect
) -> None:
    _fill(cluster, 1, 30)
    uuid = cluster.failover_log(0).current_uuid
    dcp = connect(cluster).log_in().open_dcp()
    dcp.request_stream(0, 25, vb_uuid=uuid, snapshot=(0, 25))
    assert dcp.message() == m.SnapshotMarker(25, 30, FIRST_MEMORY)


def test_bounded_streams_end(cluster: ProducerCluster, connect: Connect) -> None:
    _fill(cluster, 1, 10)
    end = m.StreamEnd(EndReason.OK)
    dcp = connect(cluster).log_in().open_dcp()
    dcp.request_stream(0, flags=int(StreamFlag.TO_LATEST))
    assert seqnos_of(dcp.messages_until(lambda body: body == end)) == list(range(1, 11))
    dcp.request_stream(0, end=4)
    messages = dcp.messages_until(lambda body: body == end)
    assert messages[0] == m.SnapshotMarker(0, 10, FIRST_MEMORY)
    assert seqnos_of(messages) == list(
        range(1, 11)
    )  # past the end asked for: no whole state is less
    dcp.request_stream(0, end=4, flags=int(StreamFlag.DISK_ONLY))
    messages = dcp.messages_until(lambda body: body == end)
    assert messages[0] == m.SnapshotMarker(0, 10, DISK)
    assert seqnos_of(messages) == list(range(1, 11))
    uuid = cluster.failover_log(0).current_uuid
    dcp.request_stream(0, 10, vb_uuid=uuid, end=10)
    assert dcp.message() == end
    dcp.request_stream(0, 10, vb_uuid=uuid, end=12)
    _fill(cluster, 11, 12)
    assert seqnos_of(dcp.messages_until(lambda body: body == end)) == [11, 12]


def test_an_end_in_a_deduplicated_tail_is_reached(
    cluster: ProducerCluster, connect: Connect
) -> None:
    cluster.start_vbucket_at(0, seqno=100)
    dcp = connect(cluster).log_in().open_dcp()
    dcp.request_stream(0, end=100)
    assert dcp.message() == m.StreamEnd(EndReason.OK)


@pytest.mark.parametrize(("announced", "reason"), [("true", EndReason.CLOSED), ("false", None)])
def test_closing_a_stream(
    cluster: ProducerCluster, connect: Connect, announced: str, reason: EndReason | None
) -> None:
    dcp = connect(cluster).log_in()
    dcp.open_dcp(send_stream_end_on_client_close_stream=announced)
    dcp.request_stream(0)
    assert dcp.call(m.Empty(), Opcode.DCP_CLOSE_STREAM).status == Status.SUCCESS
    if reason is not None:
        assert dcp.message() == m.StreamEnd(reason)
    assert dcp.call(m.Empty(), Opcode.DCP_CLOSE_STREAM).status == Status.KEY_ENOENT
    cluster.set(b"k", b"1")
    assert dcp.is_quiet()
    assert dcp.request_stream(0).status == Status.SUCCESS
    assert dcp.message() == m.SnapshotMarker(0, 1, FIRST_MEMORY)


@pytest.mark.parametrize(
    ("flags", "control", "deletion", "expiration"),
    [
        (PRODUCER, "true", m.Deletion(b"d", 3, 2, b"", 0), m.Deletion(b"e", 4, 2, b"", 0)),
        (
            DELETE_TIMES,
            "true",
            m.Deletion(b"d", 3, 2, b"", None, 1_700_000_000, 0),
            m.Expiration(b"e", 4, 2, 1_700_000_005),
        ),
        (
            DELETE_TIMES,
            "false",
            m.Deletion(b"d", 3, 2, b"", None, 1_700_000_000, 0),
            m.Deletion(b"e", 4, 2, b"", None, 1_700_000_005, 0),
        ),
    ],
)
def test_forms_of_deletions(
    cluster: ProducerCluster,
    connect: Connect,
    clock: Clock,
    flags: int,
    control: str,
    deletion: m.Body,
    expiration: m.Body,
) -> None:
    cluster.set(b"d", b"1")
    cluster.set(b"e", b"1", expiry=5)
    cluster.delete(b"d")
    clock.now += 5
    assert cluster.expire_due() == 1
    dcp = connect(cluster).log_in(PLAIN_FEATURES)
    dcp.open_dcp(flags=flags, enable_expiry_opcode=control)
    dcp.request_stream(0)
    assert dcp.message() == m.SnapshotMarker(0, 4, FIRST_MEMORY)
    assert [dcp.message(), dcp.message()] == [deletion, expiration]


SECTION = join_xattrs([(b"_sync", b"{}"), (b"meta", b"1")], b"")
SYSTEM = join_xattrs([(b"_sync", b"{}")], b"")
BODY = b'{"a":1}'


class Shape(NamedTuple):
    """How a connection sees a document that has xattrs, and its tombstone."""

    open_flags: int
    features: tuple[HelloFeature, ...]
    value: bytes
    datatype: int
    tombstone: bytes


JSON, SNAPPY, XATTR = int(Datatype.JSON), int(Datatype.SNAPPY), int(Datatype.XATTR)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(PRODUCER, PLAIN_FEATURES, BODY, JSON, b""),
        Shape(XATTRS, PLAIN_FEATURES, SECTION + BODY, JSON | XATTR, SYSTEM),
        Shape(XATTRS, FEATURES, SECTION + BODY, JSON | XATTR, SYSTEM),
        Shape(KEYS, PLAIN_FEATURES, b"", 0, b""),
        Shape(XATTRS | KEYS, PLAIN_FEATURES, SECTION, XATTR, SYSTEM),
        Shape(KEYS_AND_DATATYPES, PLAIN_FEATURES, b"", JSON | XATTR, b""),
    ],
)
@pytest.mark.parametrize("stored_compressed", [False, True])
def test_shapes_of_values(
    cluster: ProducerCluster,
    connect: Connect,
    shape: Shape,
    stored_compressed: bool,
) -> None:
    if stored_compressed:
        cluster.set(b"k", deflate(SECTION + BODY), datatype=XATTR | SNAPPY)
    else:
        cluster.set(b"k", SECTION + BODY, datatype=XATTR)
    dcp = connect(cluster).log_in(shape.features).open_dcp(flags=shape.open_flags)
    dcp.request_stream(0)
    assert isinstance(dcp.message(), m.SnapshotMarker)
    frame = dcp.stream_frame()
    assert frame.value == shape.value
    kept = SNAPPY if stored_compressed and shape.open_flags == KEYS_AND_DATATYPES else 0
    assert frame.datatype == shape.datatype | kept
    cluster.delete(b"k")
    assert isinstance(dcp.message(), m.SnapshotMarker)
    deletion = dcp.stream_frame()
    assert (deletion.opcode, deletion.value) == (Opcode.DCP_DELETION, shape.tombstone)


def test_compressed_values_travel_so_where_negotiated(
    cluster: ProducerCluster, connect: Connect
) -> None:
    cluster.set(b"k", deflate(BODY), datatype=SNAPPY)
    for features, value, datatype in (
        (PLAIN_FEATURES, BODY, JSON),
        ((*PLAIN_FEATURES, HelloFeature.SNAPPY), deflate(BODY), JSON | SNAPPY),
    ):
        dcp = connect(cluster).log_in(features).open_dcp(name=bytes([65 + datatype]))
        dcp.request_stream(0)
        assert isinstance(dcp.message(), m.SnapshotMarker)
        frame = dcp.stream_frame()
        assert (frame.value, frame.datatype) == (value, datatype)


LONG = b"a" * 200
SHAPED = SECTION + LONG


@pytest.mark.parametrize("from_disk", [True, False])
def test_forced_compression_of_what_becomes_smaller(
    cluster: ProducerCluster, connect: Connect, from_disk: bool
) -> None:
    """Also of what is left when xattrs are gone, which had to be inflated for that."""
    with cluster.batch():
        cluster.set(b"short", BODY)
        cluster.set(b"long", LONG)
        cluster.set(b"block", deflate(LONG), datatype=SNAPPY)
        cluster.set(b"xattrs", deflate(SHAPED), datatype=XATTR | SNAPPY)
        cluster.set(b"empty", b"")
    if from_disk:
        cluster.bucket.vbuckets[0].data.checkpoints.expel()
    features = (*FEATURES, HelloFeature.SNAPPY)
    shown = {
        0x01: [(deflate(LONG), SNAPPY)] * 3,
        0x05: [(deflate(LONG), SNAPPY)] * 2 + [(deflate(SHAPED), XATTR | SNAPPY)],
    }
    for flags, values in shown.items():
        dcp = connect(cluster).log_in(features)
        dcp.open_dcp(name=b"%d" % flags, flags=flags, force_value_compression="true")
        dcp.request_stream(0)
        assert isinstance(dcp.message(), m.SnapshotMarker)
        found = [(frame.value, frame.datatype) for frame in (dcp.stream_frame() for _ in range(5))]
        assert found == [(BODY, JSON), *values, (b"", 0)]
    plain = connect(cluster).log_in().open_dcp(name=b"plain")
    control = m.DcpControl(b"force_value_compression", b"true")
    assert plain.call(control, Opcode.DCP_CONTROL).status == Status.EINVAL


@pytest.mark.parametrize(
    ("flags", "expected"), [(XATTRS, SYSTEM), (XATTRS | DELETED_XATTRS, SECTION)]
)
def test_user_xattrs_of_deleted_documents(
    cluster: ProducerCluster, connect: Connect, flags: int, expected: bytes
) -> None:
    """Shown to who opened for them; else only what begins with an underscore is."""
    content = Content(SECTION, XATTR, opcode=Opcode.DCP_DELETION)
    cluster.take_versions(0, [Version(0, b"k", content, seqno=1, rev=1, cas=1)])
    dcp = connect(cluster).log_in().open_dcp(flags=flags)
    dcp.request_stream(0)
    assert isinstance(dcp.message(), m.SnapshotMarker)
    deletion = dcp.stream_frame()
    assert (deletion.opcode, deletion.value) == (Opcode.DCP_DELETION, expected)


@pytest.mark.parametrize("from_disk", [True, False])
def test_datatypes_of_values_that_are_left_out(
    cluster: ProducerCluster, connect: Connect, from_disk: bool
) -> None:
    """A disk that reads keys alone leaves documents their datatypes, as in 04-data-kinds-disk."""
    with cluster.batch():
        cluster.set(b"xattrs", deflate(SECTION + BODY), datatype=XATTR | SNAPPY)
        cluster.set(b"gone", SECTION + BODY, datatype=XATTR)
        cluster.delete(b"gone")
    if from_disk:
        cluster.bucket.vbuckets[0].data.checkpoints.expel()
    stored = JSON | XATTR | SNAPPY
    for flags, datatypes in (
        (KEYS, (stored if from_disk else 0, 0)),
        (KEYS_AND_DATATYPES, (stored, XATTR)),
    ):
        dcp = connect(cluster).log_in().open_dcp(name=b"%d" % flags, flags=flags)
        dcp.request_stream(0)
        assert isinstance(dcp.message(), m.SnapshotMarker)
        frames = dcp.stream_frame(), dcp.stream_frame()
        assert tuple(frame.datatype for frame in frames) == datatypes
        assert [frame.value for frame in frames] == [b"", b""]


@pytest.mark.parametrize(
    ("rules", "release", "flags", "from_disk", "is_made_up"),
    [
        ("server", (8, 0), 0x09, True, True),
        ("server", (8, 0), 0x29, True, True),
        ("server", (7, 6), 0x09, True, True),
        ("server", (7, 2), 0x09, True, False),
        ("document", (8, 0), 0x09, True, False),
        ("server", (8, 0), 0x09, False, False),
        *(("server", (8, 0), flags, True, False) for flags in (0x01, 0x05, 0x0D, 0x41, 0x61)),
    ],
)
def test_keys_read_alone_from_the_disk_of_a_newer_server_are_made_up(
    make_cluster: MakeCluster,
    connect: Connect,
    rules: str,
    release: tuple[int, int],
    flags: int,
    from_disk: bool,
    is_made_up: bool,
) -> None:
    """By kv_engine's CacheCallback::callback; its flags as observed on an 8.0 server."""
    cluster = make_cluster(vbuckets=1, rules=rules, release=release)
    with cluster.batch():
        cluster.set(b"kept", b"{}", flags=7, expiry=2_000_000_000)
        cluster.set(b"gone", b"{}")
        cluster.delete(b"gone")
    if from_disk:
        cluster.bucket.vbuckets[0].data.checkpoints.expel()
    dcp = connect(cluster).log_in().open_dcp(flags=flags)
    dcp.request_stream(0)
    assert isinstance(dcp.message(), m.SnapshotMarker)
    kept, gone = dcp.stream_frame(), dcp.stream_frame()
    body, last = decode(kept), decode(gone)
    assert isinstance(body, m.Mutation)
    assert isinstance(last, m.Mutation if is_made_up else m.Deletion)
    assert (body.key, body.by_seqno, last.key, last.by_seqno) == (b"\0kept", 1, b"\0gone", 3)
    told = kept.cas, body.flags, body.expiry, gone.cas
    assert told == (0, 0, 0, 0) if is_made_up else all(told)


def test_numbers_beyond_2_to_the_63(cluster: ProducerCluster, connect: Connect) -> None:
    base, cas = 2**63 + 5, 2**64 - 2**20
    cluster.start_vbucket_at(0, seqno=base, cas=cas)
    cluster.set(b"a", b"1")
    cluster.set(b"a", b"2")
    dcp = connect(cluster).log_in().open_dcp()
    assert dcp.ok(m.GetAllVbSeqnos(), Opcode.GET_ALL_VB_SEQNOS) == m.AllVbSeqnos(((0, base + 2),))
    dcp.request_stream(0)
    assert dcp.message() == m.SnapshotMarker(0, base + 2, FIRST_MEMORY)
    frame = dcp.stream_frame()
    assert decode(frame) == m.Mutation(b"\0a", b"2", base + 2, 2, cache_hint=2)
    assert frame.cas == cas + 2
    assert cluster.state_at(0, base + 1)[b"a"].value == b"1"
    assert cluster.counters().seqnos_sent == {0: [base + 2]}


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"start": 5, "end": 2}, Status.ERANGE),
        ({"start": 2, "snapshot": (3, 4)}, Status.ERANGE),
        ({"start": 5, "snapshot": (3, 4)}, Status.ERANGE),
        ({"start": 3, "vb_uuid": 99}, Status.ROLLBACK),
        ({"value": b"{}"}, Status.EINVAL),
        ({"value": b"["}, Status.EINVAL),
        ({"value": b'{"sid":1}'}, Status.DCP_STREAM_ID_INVALID),
        ({"value": b'{"collections":["8"]}'}, Status.UNKNOWN_COLLECTION),
        ({"value": b'{"scope":"8"}'}, Status.UNKNOWN_SCOPE),
        ({"value": b'{"scope":"0","collections":["0"]}'}, Status.EINVAL),
        ({"value": b'{"uid":"0"}'}, Status.SUCCESS),
        ({"value": b'{"collections":["0"]}'}, Status.SUCCESS),
        ({"value": b'{"scope":"0"}'}, Status.SUCCESS),
        ({"flags": 0x80}, Status.SUCCESS),
        ({"flags": 0x8000}, Status.SUCCESS),
    ],
)
def test_stream_requests_are_judged(
    cluster: ProducerCluster, connect: Connect, request_: dict[str, object], status: Status
) -> None:
    _fill(cluster, 1, 5)
    dcp = connect(cluster).log_in().open_dcp()
    answer = dcp.request_stream(0, **request_)  # type: ignore[arg-type]
    assert answer.status == status
    if status is Status.ROLLBACK:
        assert decode(answer) == m.RollbackAnswer(0)


@pytest.mark.parametrize("value", [b"", b'{"uid":"0"}'])
@pytest.mark.parametrize("datatype", [Datatype.JSON, Datatype.SNAPPY, Datatype.XATTR])
def test_the_datatype_of_a_stream_request_is_raw(
    cluster: ProducerCluster, connect: Connect, value: bytes, datatype: Datatype
) -> None:
    """Also where its value is JSON."""
    dcp = connect(cluster).log_in().open_dcp()
    body = m.StreamRequest(0, 0, 2**64 - 1, 0, 0, 0, value)
    for each, status in ((int(datatype), Status.EINVAL), (0, Status.SUCCESS)):
        answer = dcp.call(body, Opcode.DCP_STREAM_REQ, vbucket=0, datatype=each)
        assert answer.status == status


def test_order_of_refusals(cluster: ProducerCluster, connect: Connect) -> None:
    _fill(cluster, 1, 5)
    quiet = connect(cluster).log_in().open_dcp(name=b"quiet", noop=False)
    assert quiet.request_stream(0, 5, end=2).status == Status.NOT_SUPPORTED
    dcp = connect(cluster).log_in().open_dcp()
    assert dcp.request_stream(9).status == Status.NOT_MY_VBUCKET
    assert dcp.request_stream(0).status == Status.SUCCESS
    assert dcp.request_stream(0).status == Status.KEY_EEXISTS
    assert dcp.request_stream(0, 3, vb_uuid=99).status == Status.KEY_EEXISTS
    assert dcp.request_stream(0, value=b"{}").status == Status.EINVAL


def test_xattrs_need_noops_too(cluster: ProducerCluster, connect: Connect) -> None:
    flags = int(OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS)
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(flags=flags, noop=False)
    assert dcp.request_stream(0, end=END_OF_TIME).status == Status.NOT_SUPPORTED
    plain = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(name=b"other", noop=False)
    assert plain.request_stream(0).status == Status.SUCCESS

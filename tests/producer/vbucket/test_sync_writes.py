"""Sync writes over real sockets: who sees prepares, commits and aborts, and what markers say."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.server.model import durability
from dcp.server.model.durability import Durability
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.vbucket.newest_versions import NewestVersions
from dcp.wire import messages as m
from dcp.wire.vocabulary import HelloFeature, Opcode, Status
from tests.producer.raw_client import FEATURES, PLAIN_FEATURES, RawClient

Connect = Callable[..., RawClient]
MAJORITY = 1
DOCUMENT = Content(b"1")
PREPARE = Content(b"1", opcode=Opcode.DCP_PREPARE, sync=SyncWrite(level=MAJORITY))
DISK, MEMORY = 6, 5


def _commit(prepared_seqno: int) -> Content:
    return Content(b"1", sync=SyncWrite(prepared_seqno))


def _abort(prepared_seqno: int) -> Content:
    return Content(opcode=Opcode.DCP_ABORT, sync=SyncWrite(prepared_seqno))


HISTORY = (
    (b"n", DOCUMENT),
    (b"s", PREPARE),
    (b"s", _commit(2)),
    (b"a", PREPARE),
    (b"a", _abort(4)),
    (b"p", PREPARE),
)
"""A document, a sync write that was committed, one that was given up, one under way."""


def _versions(history: Sequence[tuple[bytes, Content]], first: int = 1) -> list[Version]:
    return [
        Version(0, key, content, seqno=seqno, rev=1, cas=seqno)
        for seqno, (key, content) in enumerate(history, first)
    ]


def _take(cluster: ProducerCluster, *, from_disk: bool) -> None:
    """Take the history; a cursor lets memory keep its checkpoints."""
    checkpoints = cluster.bucket.vbuckets[0].data.checkpoints
    checkpoints.register("somebody", 0)
    cluster.take_versions(0, _versions(HISTORY))
    if from_disk:
        checkpoints.remove("somebody")
        checkpoints.remove_closed()
        checkpoints.expel()


def _prepare(key: bytes, seqno: int) -> m.Prepare:
    return m.Prepare(key, b"1", seqno, 1, 0, 0, 0, 0, 0, MAJORITY)


def _mutation(key: bytes, seqno: int) -> m.Mutation:
    return m.Mutation(key, b"1", seqno, 1, cache_hint=2)


@pytest.mark.parametrize("from_disk", [True, False])
def test_a_client_that_asked_sees_all(
    cluster: ProducerCluster, connect: Connect, from_disk: bool
) -> None:
    """Memory tells that a document was committed; a disk has the document only.

    An abort begins a checkpoint, as its prepare is to be told too.
    """
    _take(cluster, from_disk=from_disk)
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(enable_sync_writes="true")
    assert dcp.request_stream(0).status == Status.SUCCESS
    first = [m.SnapshotMarker(0, 4, MEMORY), _mutation(b"n", 1), _prepare(b"s", 2)]
    first += [m.Commit(b"s", 2, 3), _prepare(b"a", 4), m.SnapshotMarker(5, 6, MEMORY)]
    if from_disk:
        first = [m.SnapshotMarker(0, 6, DISK), _mutation(b"n", 1), _prepare(b"s", 2)]
        first += [_mutation(b"s", 3)]
    expected = [*first, m.Abort(b"a", 4, 5), _prepare(b"p", 6)]
    assert [dcp.message() for _ in expected] == expected


@pytest.mark.parametrize("from_disk", [True, False])
def test_a_plain_client_sees_documents(
    cluster: ProducerCluster, connect: Connect, from_disk: bool
) -> None:
    _take(cluster, from_disk=from_disk)
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(consumer_name="alone says nothing")
    assert dcp.request_stream(0).status == Status.SUCCESS
    assert [dcp.message() for _ in range(3)] == [
        m.SnapshotMarker(0, 3, DISK if from_disk else MEMORY),
        _mutation(b"n", 1),
        _mutation(b"s", 3),
    ]
    assert dcp.is_quiet()


@pytest.mark.parametrize(
    ("from_disk", "is_young", "expected"),
    [
        (True, False, m.SnapshotMarker(0, 6, DISK, 0, 3, 4)),
        (False, False, m.SnapshotMarker(0, 4, MEMORY, 0, 3, 0)),
        (
            True,
            True,
            m.SnapshotMarker(0, 6, DISK, 2, 3, 4, purge_seqno=0, high_prepared_seqno=6),
        ),
    ],
)
def test_markers_of_replicas(
    cluster: ProducerCluster,
    connect: Connect,
    from_disk: bool,
    is_young: bool,
    expected: m.SnapshotMarker,
) -> None:
    """A client that has a name and sync writes is told how far those have come."""
    _take(cluster, from_disk=from_disk)
    dcp = connect(cluster).log_in()
    dcp.open_dcp(enable_sync_writes="true", consumer_name="me")
    if is_young:
        dcp.ok(m.DcpControl(b"max_marker_version", b"2.2"), Opcode.DCP_CONTROL)
    assert dcp.request_stream(0).status == Status.SUCCESS
    assert dcp.message() == expected
    for _ in range(5 if from_disk else 7):
        dcp.message()
    cluster.take_versions(0, _versions([(b"q", PREPARE)], 7))
    last = m.SnapshotMarker(7, 7, MEMORY if from_disk else 1, 0, 3, 0)
    assert (dcp.message(), dcp.message()) == (last, _prepare(b"\0q", 7))


def test_prepares_are_acknowledged(cluster: ProducerCluster, connect: Connect) -> None:
    _take(cluster, from_disk=False)
    dcp = connect(cluster).log_in().open_dcp(enable_sync_writes="true", consumer_name="me")
    assert dcp.request_stream(0).status == Status.SUCCESS
    for _ in range(6):
        dcp.message()

    def acknowledged(client: RawClient, seqno: int, vbucket: int = 0) -> int:
        message = m.SeqnoAcknowledged(seqno)
        return client.call(message, Opcode.DCP_SEQNO_ACKNOWLEDGED, vbucket=vbucket).status

    assert acknowledged(dcp, 6) == Status.SUCCESS
    assert acknowledged(dcp, 7) == Status.EINVAL  # it was not sent
    assert acknowledged(dcp, 6, vbucket=9) == Status.NOT_MY_VBUCKET
    plain = connect(cluster).log_in().open_dcp(name=b"plain", enable_sync_writes="true")
    assert acknowledged(plain, 6) == Status.EINVAL  # nobody knows who holds it


@pytest.mark.parametrize(
    ("first", "second"),
    [(b"enable_sync_writes", b"enable_stream_id"), (b"enable_stream_id", b"enable_sync_writes")],
)
def test_not_with_stream_ids(
    cluster: ProducerCluster, connect: Connect, first: bytes, second: bytes
) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    dcp.ok(m.DcpControl(first, b"true"), Opcode.DCP_CONTROL)
    refused = dcp.call(m.DcpControl(second, b"true"), Opcode.DCP_CONTROL)
    assert refused.status == Status.NOT_SUPPORTED


def test_no_filters(cluster: ProducerCluster, connect: Connect) -> None:
    dcp = connect(cluster).log_in((*FEATURES, HelloFeature.SNAPPY))
    dcp.open_dcp(enable_sync_writes="true")
    assert dcp.request_stream(0, value=b'{"collections":["0"]}').status == Status.NOT_SUPPORTED
    assert dcp.request_stream(0).status == Status.SUCCESS


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from("swcx")), max_size=12),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_durability_follows_a_naive_model(
    steps: list[tuple[bytes, str]], floor: int, forgotten: int
) -> None:
    """At every seqno of a history, but for those that were forgotten."""
    history: list[tuple[bytes, Content]] = [(b"%d" % n, DOCUMENT) for n in range(floor)]
    pending: dict[bytes, int] = {}
    visible, completed, prepared = floor, 0, 0
    expected: list[Durability] = []
    for key, step in steps:
        seqno = len(history) + 1
        if key not in pending and step in "sw":
            history.append((key, DOCUMENT if step == "s" else PREPARE))
        elif key in pending and step in "cx":
            at = pending.pop(key)
            history.append((key, _commit(at) if step == "c" else _abort(at)))
            completed = max(completed, at)
        else:
            continue
        if history[-1][1] is PREPARE:
            pending[key] = prepared = seqno
        elif step != "x":
            visible = seqno
        expected.append(Durability(visible, completed, prepared))
    newest = NewestVersions(0, VbucketStore(MemoryFile(), 0), keeps_values=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(durability, "_LEAST_TRIMMED", 1)
        for version in _versions(history)[floor:]:
            newest.note(version)
            newest.durability.forget(min(version.seqno, forgotten))
    for seqno, wanted in enumerate(expected, floor + 1):
        if seqno >= forgotten:
            assert newest.durability.at(seqno, floor) == wanted

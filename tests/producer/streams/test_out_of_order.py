"""Out-of-order snapshots over real sockets: when they come, in which order, and what follows."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.storage.disk_store import VbucketStore
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.system_event import CollectionBegun, encode_system_event
from dcp.wire.vocabulary import EndReason, Opcode, OsoFlag, Status, StreamFlag
from tests.producer.disk_items import frame, items
from tests.producer.one_vbucket import flush, forget
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
BEGIN, END = m.OsoSnapshot(OsoFlag.START), m.OsoSnapshot(OsoFlag.END)
C8 = b'{"collections":["8"]}'
HIGH = 8
ON_DISK = 6


@pytest.fixture
def filled(cluster: ProducerCluster) -> ProducerCluster:
    """Collection 8 ends at seqno 7, the vbucket at 8; all is on disk alone."""
    cluster.create_collection("", "a")
    for key in (b"m", b"z", b"b"):
        cluster.set(key, b"1", collection=8)
    cluster.set(b"a", b"1")
    cluster.set(b"m", b"2", collection=8)
    cluster.delete(b"z", collection=8)
    cluster.set(b"c", b"1")
    cluster.bucket.vbuckets[0].data.checkpoints.expel()
    return cluster


BY_KEY = [
    encode_system_event(CollectionBegun(1, 0, 8, b"a"), 1),
    m.Mutation(b"\x08b", b"1", 4, 1, cache_hint=2),
    m.Mutation(b"\x08m", b"2", 6, 2, cache_hint=2),
    m.Deletion(b"\x08z", 7, 2, b"", nmeta=0),
]


def _open(connect: Connect, cluster: ProducerCluster, value: str) -> RawClient:
    return connect(cluster).log_in().open_dcp(enable_out_of_order_snapshots=value)


def _messages(dcp: RawClient, count: int) -> list[m.Body]:
    return [dcp.message() for _ in range(count)]


@pytest.mark.parametrize(
    ("control", "tail"),
    [("true", []), ("true_with_seqno_advanced", [m.SeqnoAdvanced(HIGH)])],
)
def test_items_come_by_key(
    filled: ProducerCluster, connect: Connect, control: str, tail: list[m.Body]
) -> None:
    dcp = _open(connect, filled, control)
    assert dcp.request_stream(0, value=C8).status == Status.SUCCESS
    expected = [BEGIN, *BY_KEY, *tail, END]
    assert _messages(dcp, len(expected)) == expected
    assert dcp.is_quiet()
    filled.set(b"late", b"1", collection=8)
    # The first marker of a stream starts where the client stood (11-oso.jsonl).
    late = m.Mutation(b"\x08late", b"1", 9, 1, cache_hint=2)
    assert _messages(dcp, 2) == [m.SnapshotMarker(0, 9, 5), late]


def test_keys_have_a_bound_of_all_streams_together(
    filled: ProducerCluster, connect: Connect
) -> None:
    """Who finds no room is sent the same in the order of seqnos; who ends makes room."""
    held = filled.bucket.dcp_connections.shared.key_quota
    held.most = len(BY_KEY) + ON_DISK

    def opened(name: bytes) -> RawClient:
        dcp = connect(filled).log_in()
        dcp.open_dcp(name, window=1, enable_out_of_order_snapshots="true")
        assert dcp.request_stream(0, value=C8).status == Status.SUCCESS
        return dcp

    def first_two(dcp: RawClient) -> list[m.Body]:
        first = dcp.message()
        dcp.ack(100)  # for one more, whose frame fills the window again
        return [first, dcp.message()]

    by_key = []
    for name in (b"1", b"2"):
        by_key.append(opened(name))
        assert first_two(by_key[-1]) == [BEGIN, BY_KEY[0]]
    assert held.count == 2 * len(BY_KEY)
    late = opened(b"late")
    assert first_two(late)[0] == m.SnapshotMarker(0, HIGH, 6)
    by_key[0].socket.close()
    while held.count > len(BY_KEY):
        late.ok(m.Empty(), Opcode.NOOP)
    assert first_two(opened(b"later"))[0] == BEGIN
    by_key[1].ok(m.Empty(), Opcode.DCP_CLOSE_STREAM)
    assert held.count == len(BY_KEY)


def test_one_collection_has_room_however_large(filled: ProducerCluster, connect: Connect) -> None:
    filled.bucket.dcp_connections.shared.key_quota.most = 1
    for name in (b"1", b"2"):
        dcp = connect(filled).log_in().open_dcp(name, enable_out_of_order_snapshots="true")
        assert dcp.request_stream(0, value=C8).status == Status.SUCCESS
        assert _messages(dcp, len(BY_KEY) + 2) == [BEGIN, *BY_KEY, END]
        assert dcp.is_quiet()
        assert filled.bucket.dcp_connections.shared.key_quota.count == 0


def test_a_vbucket_whose_seqnos_begin_higher_gives_them_by_key(
    cluster: ProducerCluster, connect: Connect
) -> None:
    cluster.start_vbucket_at(0, 1000)
    cluster.create_collection("", "a")
    cluster.set(b"m", b"1", collection=8)
    cluster.bucket.vbuckets[0].data.checkpoints.expel()
    dcp = _open(connect, cluster, "true")
    dcp.request_stream(0, value=C8)
    assert dcp.message() == BEGIN


@pytest.mark.parametrize(
    ("end", "flags"),
    [(5, 0), (END_OF_TIME, StreamFlag.TO_LATEST), (END_OF_TIME, StreamFlag.DISK_ONLY)],
)
def test_bounded_streams_end_behind_it(
    filled: ProducerCluster, connect: Connect, end: int, flags: int
) -> None:
    dcp = _open(connect, filled, "true")
    assert dcp.request_stream(0, end=end, flags=flags, value=C8).status == Status.SUCCESS
    expected = [BEGIN, *BY_KEY, END, m.StreamEnd(EndReason.OK)]
    assert _messages(dcp, len(expected)) == expected


@pytest.mark.parametrize(
    ("value", "start"),
    [
        (b"", 0),
        (b'{"scope":"0"}', 0),
        (b'{"collections":["0","8"]}', 0),
        (C8, 2),
    ],
)
def test_other_streams_are_in_order(
    filled: ProducerCluster, connect: Connect, value: bytes, start: int
) -> None:
    dcp = _open(connect, filled, "true")
    uuid = filled.failover_log(0).current_uuid
    answer = dcp.request_stream(0, start, vb_uuid=uuid, value=value)
    assert answer.status == Status.SUCCESS
    assert dcp.message() == m.SnapshotMarker(start, HIGH, 6)


def test_one_that_reads_memory_is_in_order(cluster: ProducerCluster, connect: Connect) -> None:
    cluster.create_collection("", "a")
    cluster.set(b"k", b"1", collection=8)
    dcp = _open(connect, cluster, "true")
    assert dcp.request_stream(0, value=C8).status == Status.SUCCESS
    assert dcp.message() == m.SnapshotMarker(0, 2, 5)


def test_the_window_stops_it_anywhere(filled: ProducerCluster, connect: Connect) -> None:
    """Every message waits for room, and none is lost or sent twice for it."""
    dcp = _open(connect, filled, "true_with_seqno_advanced")
    dcp.ok(m.DcpControl(b"connection_buffer_size", b"1"), Opcode.DCP_CONTROL)
    dcp.request_stream(0, value=C8, flags=StreamFlag.TO_LATEST)
    found: list[m.Body] = []
    while not found or not isinstance(found[-1], m.StreamEnd):
        found.append(dcp.message())
        (connection,) = filled.bucket.dcp_connections.values()
        dcp.ack(connection.flow.outstanding_bytes)
    expected = [BEGIN, *BY_KEY, m.SeqnoAdvanced(HIGH), END, m.StreamEnd(EndReason.OK)]
    assert found == expected


@given(st.sets(st.integers(1, 90), min_size=1, max_size=20), st.data())
def test_a_scan_gives_any_of_its_frames(seqnos: set[int], data: st.DataObject) -> None:
    store = VbucketStore(MemoryFile(), 0)
    stored = items(sorted(seqnos))
    store.write(stored, b"")
    with store.scan(0, each_key_once=True) as scan:
        wanted = data.draw(st.lists(st.sampled_from(stored), max_size=8))
        found = scan.frames([each.seqno for each in wanted])
        bounds = pairwise(found.ends.tolist())
        assert [found.data[start:end] for start, end in bounds] == [frame(w) for w in wanted]
        assert found.seqnos.tolist() == [each.seqno for each in wanted]
        for each in wanted:
            assert scan.frame_bytes(each.seqno) == len(frame(each))
        with pytest.raises(ValueError, match="found no seqno 99"):
            scan.frames([*seqnos, 99])
    with pytest.raises(ValueError, match="found no seqno"):
        scan.frames([min(seqnos)])


def test_no_document_opens_the_file(
    make_cluster: MakeCluster,
    connect: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a data folder as many are read at once as are sent at once."""
    cluster = make_cluster(vbuckets=1, data_folder=tmp_path / "data", flush_seconds=3600)
    cluster.create_collection("", "a")
    keys = [b"%03d" % (n * 77 % 500) for n in range(500)]  # the file has them in another order
    with cluster.batch():
        for key in keys:
            cluster.set(key, b'"%s"' % (b"x" * 1000), collection=8)
    flush(cluster)
    forget(cluster)
    opened, open_file = [], Path.open

    def watched(path: Path, *arguments: Any, **more: Any) -> Any:
        opened.append(path.name)
        return open_file(path, *arguments, **more)

    monkeypatch.setattr(Path, "open", watched)
    dcp = _open(connect, cluster, "true")
    dcp.request_stream(0, value=C8, flags=StreamFlag.TO_LATEST)
    found = dcp.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert [b.key for b in found if isinstance(b, m.Mutation)] == [
        b"\x08" + k for k in sorted(keys)
    ]
    assert 0 < opened.count("vb_0.log") < 250  # how much is sent at once depends on the machine

"""Where a stream takes its items from: memory while it keeps up, else the disk; over real sockets.

The numbers are those of the DCP concepts document, where it gives any.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.checkpoints.checkpoint_memory import recover
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, SnapshotFlag, Status
from tests.producer.one_vbucket import forget, seqnos_of
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
DISK = int(SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT)
FIRST_MEMORY = int(SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT)
MEMORY = int(SnapshotFlag.MEMORY)
QUOTA_BYTES = 200_000


@pytest.fixture
def one(make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(vbuckets=1)


def _write(cluster: ProducerCluster, first: int, last: int, value: bytes = b"{}") -> None:
    """Write seqnos ``first`` to ``last``, each another key, as one batch."""
    with cluster.batch():
        for seqno in range(first, last + 1):
            cluster.set(b"k%d" % seqno, value)


def _snapshot(client: RawClient) -> tuple[m.Body, list[int]]:
    """Take a whole snapshot: its marker, and the seqnos of its items."""
    marker = client.message()
    assert isinstance(marker, m.SnapshotMarker)
    return marker, seqnos_of(client.messages_to(marker.end))


@pytest.mark.parametrize(("start", "first_item"), [(0, 1), (15, 16), (20, 21), (25, 26)])
def test_disk_snapshots_are_sent_as_one(
    one: ProducerCluster, connect: Connect, start: int, first_item: int
) -> None:
    for first, last in ((1, 20), (21, 30), (31, 60)):
        _write(one, first, last)
    forget(one)
    client = connect(one).log_in().open_dcp()
    uuid = one.failover_log(0).current_uuid if start else 0
    client.request_stream(0, start, vb_uuid=uuid, snapshot=(start, 60 if start else 0))
    marker, seqnos = _snapshot(client)
    assert marker == m.SnapshotMarker(start, 60, DISK)
    assert seqnos == list(range(first_item, 61))
    assert one.counters().items_from_disk == len(seqnos)
    assert one.counters().disk_scans > 0


def test_two_clients_get_point_in_time_snapshots_of_their_own(
    one: ProducerCluster, connect: Connect
) -> None:
    first, second = (connect(one).log_in().open_dcp(name) for name in (b"R1", b"R2"))
    _write(one, 1, 100)
    first.request_stream(0)
    assert _snapshot(first) == (m.SnapshotMarker(0, 100, FIRST_MEMORY), list(range(1, 101)))
    _write(one, 101, 120)
    assert _snapshot(first) == (m.SnapshotMarker(101, 120, MEMORY), list(range(101, 121)))
    second.request_stream(0)
    assert _snapshot(second) == (m.SnapshotMarker(0, 120, FIRST_MEMORY), list(range(1, 121)))
    _write(one, 121, 150)
    for client in (first, second):
        assert _snapshot(client) == (m.SnapshotMarker(121, 150, MEMORY), list(range(121, 151)))
    assert one.counters().disk_scans == 0


def test_who_keeps_up_is_served_from_memory_for_ever(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=1, checkpoint_items=7)
    client = connect(cluster).log_in().open_dcp()
    client.request_stream(0)
    for first in range(1, 400, 4):
        _write(cluster, first, first + 3)
        assert seqnos_of(client.messages_to(first + 3)) == list(range(first, first + 4))
    counters = cluster.counters()
    assert counters.items_sent[0] == 400
    assert (counters.items_from_disk, counters.disk_scans) == (0, 0)
    assert len(cluster.bucket.vbuckets[0].data.checkpoints.checkpoints) <= 2


def test_from_disk_to_memory_nothing_is_missed_or_sent_twice(
    one: ProducerCluster, connect: Connect
) -> None:
    _write(one, 1, 50, b'"%s"' % (b"x" * 1000))
    forget(one)
    client = connect(one).log_in().open_dcp(window=5000)
    client.request_stream(0)
    assert client.message() == m.SnapshotMarker(0, 50, DISK)
    _write(one, 51, 60)  # while the disk snapshot is under way
    client.ok(m.DcpControl(b"connection_buffer_size", b"0"), Opcode.DCP_CONTROL)
    assert seqnos_of(client.messages_to(50)) == list(range(1, 51))
    assert _snapshot(client) == (m.SnapshotMarker(51, 60, FIRST_MEMORY), list(range(51, 61)))


def _stalled(cluster: ProducerCluster, client: RawClient) -> int:
    """Let a client be in the middle of memory and stop reading; return the newest seqno then."""
    _write(cluster, 1, 5)
    client.request_stream(0)
    client.messages_to(5)
    client.ok(m.DcpControl(b"connection_buffer_size", b"1"), Opcode.DCP_CONTROL)
    value = b'"%s"' % (b"x" * 1000)
    for first in range(6, 606, 10):
        _write(cluster, first, first + 9, value)
    return 605


def test_a_stalled_client_goes_back_to_the_disk_when_memory_is_short(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=1, checkpoint_quota_bytes=QUOTA_BYTES)
    client = connect(cluster).log_in().open_dcp()
    last = _stalled(cluster, client)
    assert cluster.bucket.vbuckets[0].data.checkpoints.memory_bytes < QUOTA_BYTES
    assert cluster.counters().cursors_dropped == 1
    client.ok(m.DcpControl(b"connection_buffer_size", b"0"), Opcode.DCP_CONTROL)
    messages = client.messages_to(last)
    markers = [body for body in messages if isinstance(body, m.SnapshotMarker)]
    assert markers[-1].flags == DISK
    assert seqnos_of(messages) == list(range(6, last + 1))
    assert not [body for body in messages if isinstance(body, m.StreamEnd)]
    _write(cluster, last + 1, last + 2)
    assert _snapshot(client)[0] == m.SnapshotMarker(last + 1, last + 2, FIRST_MEMORY)


def test_only_the_streams_of_the_vbucket_that_lost_its_memory_hear_of_it(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    """Not those of its replica at another node, where the same client has the same name."""
    cluster = make_cluster(vbuckets=1, nodes=2, replicas=1, checkpoint_quota_bytes=QUOTA_BYTES)
    at_active, at_copy = (connect(cluster, node).log_in().open_dcp(b"mine") for node in (0, 1))
    at_active.ok(m.DcpControl(b"connection_buffer_size", b"1"), Opcode.DCP_CONTROL)
    for client in (at_active, at_copy):
        client.request_stream(0)
    value = b'"%s"' % (b"x" * 1000)
    told: list[m.Body] = []
    for first in range(1, 601, 10):
        _write(cluster, first, first + 9, value)
        told += at_copy.messages_to(first + 9)
    counters = cluster.counters()  # the other reads nothing more, from wherever
    assert (counters.cursors_dropped, counters.items_from_disk, counters.disk_scans) == (1, 0, 0)
    assert not [each for each in told if isinstance(each, m.SnapshotMarker) and each.flags == DISK]


def test_the_rest_of_a_memory_snapshot_that_is_read_from_disk_is_counted_so(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=1, checkpoint_items=10)
    client = connect(cluster).log_in().open_dcp(window=150)
    _write(cluster, 1, 10)
    client.request_stream(0)
    assert client.message() == m.SnapshotMarker(0, 10, FIRST_MEMORY)
    assert seqnos_of(client.messages_to(2)) == [1, 2]
    assert client.is_quiet()
    _write(cluster, 11, 20)
    bucket = cluster.bucket
    with bucket.lock:
        data = bucket.vbuckets[0].data
        dropped = recover([data.checkpoints], 1).dropped[0]
        for connection in bucket.dcp_connections.values():
            connection.cursors_dropped(data, dropped)
    client.ok(m.DcpControl(b"connection_buffer_size", b"0"), Opcode.DCP_CONTROL)
    rest = client.messages_to(10)
    assert seqnos_of(rest) == list(range(3, 11))
    assert len(rest) == 8  # without another marker
    client.messages_to(20)
    assert cluster.counters().items_from_disk == 18
    told = connect(cluster).log_in().statistics("dcp")
    names = ("backfill_disk_items", "memory_phase")
    assert [told[f"eq_dcpq:raw:stream_0_{name}"] for name in names] == ["18", "2"]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (b"replication:a->b", b""),
        (b"mine", b"supports_cursor_dropping"),
        (b"mine", b"supports_cursor_dropping_vulcan"),
    ],
)
def test_no_client_may_keep_its_cursor(
    make_cluster: MakeCluster, connect: Connect, name: bytes, asked: bytes
) -> None:
    cluster = make_cluster(vbuckets=1, checkpoint_quota_bytes=QUOTA_BYTES)
    client = connect(cluster).log_in().open_dcp(name)
    if asked:
        client.ok(m.DcpControl(asked, b"false"), Opcode.DCP_CONTROL)
    last = _stalled(cluster, client)
    assert cluster.bucket.vbuckets[0].data.checkpoints.memory_bytes < QUOTA_BYTES
    assert cluster.counters().cursors_dropped == 1
    client.ok(m.DcpControl(b"connection_buffer_size", b"0"), Opcode.DCP_CONTROL)
    assert seqnos_of(client.messages_to(last)) == list(range(6, last + 1))


def test_writes_are_refused_while_a_replica_keeps_all_memory(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    """Its node hangs: what it lacks is never dropped. When it reads again, writes go on."""
    cluster = make_cluster(vbuckets=1, nodes=2, replicas=1, checkpoint_quota_bytes=QUOTA_BYTES)
    cluster.set(b"first", b"1")
    cluster.wait_until_replicated()
    cluster.hang_node(1)
    client = connect(cluster).log_in()
    checkpoints = cluster.bucket.vbuckets[0].data.checkpoints
    value, keys = b'"%s"' % (b"x" * 1000), (b"\0%d" % number for number in count())
    write = m.Store(b"", value)
    while (status := client.call(replace(write, key=next(keys)), Opcode.SET).status) == 0:
        assert checkpoints.memory_bytes < QUOTA_BYTES + 2 * len(value)
    assert status == Status.ETMPFAIL
    assert checkpoints.memory_bytes >= QUOTA_BYTES
    high_seqno = cluster.high_seqno(0)
    for opcode in (Opcode.SET, Opcode.ADD):
        assert client.call(replace(write, key=b"\0more"), opcode).status == Status.ETMPFAIL
    assert client.call(m.KeyOnly(b"\0first"), Opcode.DELETE).status == Status.ETMPFAIL
    assert client.call(m.Touch(b"\0first", 5), Opcode.TOUCH).status == Status.ETMPFAIL
    assert client.call(m.KeyOnly(b"\0first"), Opcode.GET).status == Status.SUCCESS
    assert cluster.high_seqno(0) == high_seqno
    cluster.restore_node(1)
    cluster.wait_until_replicated()
    assert client.call(replace(write, key=b"\0more"), Opcode.SET).status == Status.SUCCESS


@pytest.mark.parametrize(
    "names",
    [
        (b"a", b"sid_1:a"),
        (b"\xff", b"\xfe"),
        (b"\xff", rb"\xff"),
        (rb"\\xff", rb"\xff"),
        (b"a", b"a "),
    ],
)
def test_connections_with_like_names_have_cursors_of_their_own(
    one: ProducerCluster, connect: Connect, names: tuple[bytes, bytes]
) -> None:
    """Cursors are called as their connections; one in the other's place would lose items."""
    clients = [connect(one).log_in().open_dcp(name) for name in names]
    for client in clients:
        client.request_stream(0)
        client.ok(m.Empty(), Opcode.NOOP)
    assert len(one.bucket.vbuckets[0].data.checkpoints.cursors) == 4
    for first in (1, 4):
        _write(one, first, first + 2)
        for client in clients:
            assert seqnos_of(client.messages_to(first + 2)) == [first, first + 1, first + 2]


def test_a_new_connection_of_the_same_name_has_its_own_cursor(
    one: ProducerCluster, connect: Connect
) -> None:
    """The older one's end, which may come later, does not take it."""
    older = connect(one).log_in().open_dcp(b"same")
    older.request_stream(0)
    newer = connect(one).log_in().open_dcp(b"same")
    newer.request_stream(0)
    assert older.is_closed()
    _write(one, 1, 3)
    assert seqnos_of(newer.messages_to(3)) == [1, 2, 3]
    assert len(one.bucket.vbuckets[0].data.checkpoints.cursors) == 3


def test_a_client_that_is_gone_holds_no_memory(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1)
    client = connect(cluster).log_in().open_dcp()
    client.request_stream(0)
    client.ok(m.Empty(), Opcode.NOOP)
    checkpoints = cluster.bucket.vbuckets[0].data.checkpoints
    assert len(checkpoints.cursors) == 3
    cluster.drop_connections()
    assert len(checkpoints.cursors) == 2

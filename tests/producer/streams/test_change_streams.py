"""Change streams: all versions of documents, from memory, from disk, and below its history."""

from collections.abc import Callable, Sequence
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import ConfigError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.document_writer import DocumentWriter, checked
from dcp.server.model.bucket_type import BucketType
from dcp.server.model.resume_rules import Verdict
from dcp.server.model.versions import Flavour
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.dcp_options import DcpOptions, StreamSettings
from dcp.server.vbucket.documents import DocumentStore
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Opcode, SnapshotFlag, Status
from tests.producer.one_vbucket import seqnos_of
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
NEWEST = int(SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT)
FROM_DISK = NEWEST | int(SnapshotFlag.HISTORY | SnapshotFlag.MAY_CONTAIN_DUPLICATES)
FROM_MEMORY = int(SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT | SnapshotFlag.HISTORY)
RETAINED = 1 << 20


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(vbuckets=1, history_retention_bytes=RETAINED)


def write(cluster: ProducerCluster, keys: str) -> None:
    """Set the keys of one letter each; at a bar the disk forgets what was replaced so far."""
    first, *parts = keys.split("|")
    for key in first:
        cluster.set(key.encode(), b"{}")
    for part in parts:
        cluster.purge_tombstones(0, 0)
        write(cluster, part)


def told(messages: Sequence[m.Body]) -> list[m.Body | int]:
    """Markers as they are, and the seqnos of documents."""
    is_marker = m.SnapshotMarker
    return [each if isinstance(each, is_marker) else seqnos_of([each])[0] for each in messages]


def client(
    cluster: ProducerCluster, connect: Connect, node: int = 0, *, asks: bool = True
) -> RawClient:
    dcp = connect(cluster, node).log_in()
    return dcp.open_dcp(change_streams="true") if asks else dcp.open_dcp()


@pytest.mark.parametrize(
    ("retained", "value", "status"),
    [
        (0, b"true", Status.NOT_SUPPORTED),
        (RETAINED, b"true", Status.SUCCESS),
        (RETAINED, b"false", Status.EINVAL),
        (RETAINED, b"TRUE", Status.EINVAL),
    ],
)
def test_who_may_ask(
    make_cluster: MakeCluster, connect: Connect, retained: int, value: bytes, status: Status
) -> None:
    cluster = make_cluster(vbuckets=1, history_retention_bytes=retained)
    dcp = client(cluster, connect, asks=False)
    control = m.DcpControl(b"change_streams", value)
    assert dcp.call(control, Opcode.DCP_CONTROL).status == status


def test_history_needs_a_disk() -> None:
    with pytest.raises(ConfigError, match="found ephemeral with history_retention_bytes"):
        ClusterSettings(bucket_type=BucketType.EPHEMERAL, history_retention_bytes=1)


@pytest.mark.parametrize("asks", [True, False])
def test_from_memory_all_versions_come_whoever_asks(
    cluster: ProducerCluster, connect: Connect, asks: bool
) -> None:
    """A snapshot has each key once all the same: where one comes again, the next one begins."""
    flags = FROM_MEMORY if asks else FROM_MEMORY & ~int(SnapshotFlag.HISTORY)
    dcp = client(cluster, connect, asks=asks)
    dcp.request_stream(0)
    with cluster.batch():
        write(cluster, "abacbb")
    ends = [m.SnapshotMarker(start, end, flags) for start, end in ((0, 2), (3, 5), (6, 6))]
    assert told(dcp.messages_to(6)) == [ends[0], 1, 2, ends[1], 3, 4, 5, ends[2], 6]


@pytest.mark.parametrize(
    ("asks", "keys", "start", "expected"),
    [
        (True, "abacbb", 0, [(0, 6, FROM_DISK), 1, 2, 3, 4, 5, 6]),
        (True, "abacbb", 2, [(2, 6, FROM_DISK), 3, 4, 5, 6]),
        (False, "abacbb", 0, [(0, 6, NEWEST), 3, 4, 6]),
        (False, "abacbb", 4, [(4, 6, NEWEST), 6]),
        # Below the history the newest versions come: of b none, as that lies in it.
        (True, "abacbb|bb", 0, [(0, 8, NEWEST), 3, 4, (0, 8, FROM_DISK), 6, 7, 8]),
        (True, "abacbb|bb", 3, [(3, 8, NEWEST), 4, (3, 8, FROM_DISK), 6, 7, 8]),
        (True, "abacbb|bb", 5, [(5, 8, FROM_DISK), 6, 7, 8]),
        (True, "abacbb|bb", 6, [(6, 8, FROM_DISK), 7, 8]),
    ],
)
def test_from_disk_who_asks_gets_all_versions_in_one_snapshot(
    cluster: ProducerCluster,
    connect: Connect,
    asks: bool,
    keys: str,
    start: int,
    expected: list[tuple[int, int, int] | int],
) -> None:
    write(cluster, keys)
    dcp = client(cluster, connect, asks=asks)
    uuid = cluster.failover_log(0).entries[0].vb_uuid if start else 0
    dcp.request_stream(0, start, vb_uuid=uuid)
    assert told(dcp.messages_to(cluster.high_seqno(0))) == [
        m.SnapshotMarker(*each) if isinstance(each, tuple) else each for each in expected
    ]
    enabled = dcp.statistics("dcp").items()
    found = {value for name, value in enabled if name.endswith(":change_streams_enabled")}
    assert found == {str(asks).lower()}


def test_history_is_kept_up_to_its_size(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1, history_retention_bytes=10_000_000)
    for seqnos in ([*range(1, 11)], [11, 12]):
        for _ in seqnos:
            cluster.set(b"a", b"x" * 1_000_000)
        with client(cluster, connect) as dcp:
            dcp.request_stream(0)
            marker = m.SnapshotMarker(0, seqnos[-1], FROM_DISK)
            assert told(dcp.messages_to(seqnos[-1])) == [marker, *seqnos]


def test_a_new_replica_gets_the_history_too(make_cluster: MakeCluster, connect: Connect) -> None:
    """It is filled below two markers; after a failover it tells all that it has."""
    cluster = make_cluster(vbuckets=1, replicas=1, history_retention_bytes=RETAINED)
    write(cluster, "abacbb|bb")
    cluster.add_node()
    cluster.rebalance()
    cluster.wait_until_replicated()
    owner = cluster.vbucket_owner(0)
    cluster.failover(owner)
    dcp = client(cluster, connect, 1 - owner)
    dcp.request_stream(0)
    assert told(dcp.messages_to(8)) == [m.SnapshotMarker(0, 8, FROM_DISK), 3, 4, 6, 7, 8]


turns = st.lists(
    st.tuples(st.booleans(), st.integers(1, 500), st.integers(1, 5)), min_size=1, max_size=20
)
keys = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=15)


@given(keys, keys, keys, turns, st.sampled_from([1, 3, 1000]), st.integers(0, 30))
def test_all_versions_come_from_the_history_on(
    compacted: list[bytes],
    before: list[bytes],
    during: list[bytes],
    schedule: list[tuple[bool, int, int]],
    checkpoint_items: int,
    start: int,
) -> None:
    """Writes go on, and logs are compacted, while it streams."""
    retaining = ClusterSettings(checkpoint_items=checkpoint_items, history_retention_bytes=1)
    data = VbucketData(0, MemoryFile(), retaining)
    writer = DocumentWriter(DocumentStore(data))
    written = list[bytes]()

    def put(key: bytes) -> None:
        written.append(key)
        assert writer.store(key, checked(b"{}"), 1.0).seqno == len(written)
        data.flush_batch()

    for key in compacted:
        put(key)
    data.persistence.purge(0)
    for key in before:
        put(key)
    start, at_first = min(start, len(written)), len(written)
    from_seqno = data.disk.history_start_seqno
    assert from_seqno <= len(compacted) + 1
    settings = StreamSettings(int(Flavour.COLLECTIONS), DcpOptions(change_streams=True))
    stream = ActiveStream(
        data, 9, Verdict(Status.SUCCESS, start=start, snap_start=start), 0, settings
    )
    was_in_memory, seen, keys_seen = stream.has_cursor, list[int](), set[bytes]()
    marker = m.SnapshotMarker(0, 0, 0)
    later = list(during)
    for writes_now, room, most_items in cycle(schedule):
        if later and writes_now and marker.end:
            put(later.pop(0))
            data.persistence.purge(0)
        batch = stream.next_batch(room, 2**40, most_items)
        if batch is None:
            if not later:
                break
            put(later.pop(0))
            continue
        block = FrameSplitter().feed(bytes(batch.data))
        for index in range(len(block)):
            body = decode(block.frame(index))
            if isinstance(body, m.SnapshotMarker):
                assert body.end >= marker.end
                if body.end > marker.end:
                    keys_seen.clear()
                marker = body
            else:
                assert isinstance(body, m.Mutation)
                assert body.key[1:] not in keys_seen or marker.flags == FROM_DISK
                keys_seen.add(body.key[1:])
                seen.append(body.by_seqno)
    newest = {key: seqno for seqno, key in enumerate(written[:at_first], 1)}
    expected = [
        seqno
        for seqno, key in enumerate(written, 1)
        if seqno > start
        and (seqno >= from_seqno or seqno > at_first or was_in_memory or newest[key] == seqno)
    ]
    assert seen == expected

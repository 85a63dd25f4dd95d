"""An ephemeral bucket: what goes and when, what streams see of that, what a crash leaves.

Stale versions go when ``remove_stale`` is called; nothing here waits for the background.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Event

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dcp.errors import ConfigError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.document_writer import DocumentWriter, checked
from dcp.server.model.bucket_type import BucketType
from dcp.server.model.refused_error import RefusedError
from dcp.server.node.http_endpoints import respond
from dcp.server.node.http_messages import HttpRequest
from dcp.server.storage.disk_file import Data, MemoryFile
from dcp.server.storage.disk_scan import Scan
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.types import FailoverEntry
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, SnapshotFlag, Status, StreamFlag
from tests.producer.conftest import Clock
from tests.producer.disk_items import read_all
from tests.producer.one_vbucket import forget
from tests.producer.raw_client import PATIENCE_SECONDS, RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
DISK = int(SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT)
MEMORY = int(SnapshotFlag.MEMORY)
KIB = b'"%s"' % (b"x" * 1022)


@pytest.fixture
def one(make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(vbuckets=1, bucket_type=BucketType.EPHEMERAL)


def _write(cluster: ProducerCluster, keys: int, rounds: int = 1, value: bytes = b"{}") -> None:
    """Write the keys k0, k1, … so often, each round as one batch."""
    for _ in range(rounds):
        with cluster.batch():
            for key in range(keys):
                cluster.set(b"k%d" % key, value)


def _stored_bytes(cluster: ProducerCluster) -> int:
    return cluster.bucket.vbuckets[0].data.disk.size_bytes


def _backfill(client: RawClient, after: int, end: int, vb_uuid: int = 0) -> list[m.Body]:
    """All messages of a backfill."""
    assert client.request_stream(0, after, vb_uuid=vb_uuid).status == Status.SUCCESS
    found = client.messages_to(end)
    client.ok(m.Empty(), Opcode.DCP_CLOSE_STREAM)
    return found


# --- stale versions


def test_a_backfill_is_of_memory_and_tells_each_key_once(
    one: ProducerCluster, connect: Connect
) -> None:
    _write(one, keys=3, rounds=4)
    forget(one)
    marker, *items = _backfill(connect(one).log_in().open_dcp(), 0, 12)
    assert marker == m.SnapshotMarker(0, 12, DISK)
    assert [(i.by_seqno, i.key) for i in items if isinstance(i, m.Mutation)] == [
        (10, b"\0k0"),
        (11, b"\0k1"),
        (12, b"\0k2"),
    ]


def test_removing_stale_versions_frees_memory_and_changes_nothing_that_a_stream_sees(
    one: ProducerCluster, connect: Connect
) -> None:
    _write(one, keys=10, rounds=20, value=KIB)
    one.delete(b"k3")
    forget(one)
    uuid = one.failover_log(0).current_uuid
    client = connect(one).log_in().open_dcp()
    before = [_backfill(client, after, 201, uuid) for after in (0, 1, 95, 195)]
    full = _stored_bytes(one)
    freed = one.remove_stale()
    assert full > 200 * len(KIB)
    assert 9 * len(KIB) < full - freed == _stored_bytes(one) < 10 * len(KIB)
    assert [_backfill(client, after, 201, uuid) for after in (0, 1, 95, 195)] == before
    assert one.remove_stale() == 0
    assert one.purge_seqno(0) == 0


def test_a_stream_that_reads_keeps_its_snapshot(one: ProducerCluster, connect: Connect) -> None:
    _write(one, keys=10, value=KIB)
    forget(one)
    client = connect(one).log_in().open_dcp(window=100)
    client.request_stream(0)
    assert client.message() == m.SnapshotMarker(0, 10, DISK)
    assert getattr(client.message(), "by_seqno", None) == 1
    _write(one, keys=10, value=KIB)  # little: it is kept for who reads
    assert one.remove_stale() == 0
    _write(one, keys=10, rounds=900, value=KIB)  # 8 MiB, and more than half: he gets his own
    assert _stored_bytes(one) < 2000 * len(KIB)  # at once, without being asked
    client.ok(m.DcpControl(b"connection_buffer_size", b"0"), Opcode.DCP_CONTROL)
    rest = client.messages_to(10)
    assert [body.by_seqno for body in rest if isinstance(body, m.Mutation)] == list(range(2, 11))


def test_the_background_removes_by_itself(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(
        vbuckets=1, bucket_type=BucketType.EPHEMERAL, stale_removal_seconds=0.001
    )
    client = connect(cluster).log_in()
    _write(cluster, keys=1, rounds=200, value=KIB)
    while _stored_bytes(cluster) > 2 * len(KIB):
        client.ok(m.Empty(), Opcode.NOOP)
    assert cluster.get(b"k0").seqno == 200


def test_who_keeps_up_is_served_from_checkpoints(one: ProducerCluster, connect: Connect) -> None:
    client = connect(one).log_in().open_dcp()
    client.request_stream(0)
    for round_ in range(1, 40):
        _write(one, keys=4)
        assert client.message() == m.SnapshotMarker(
            0 if round_ == 1 else 4 * round_ - 3, 4 * round_, MEMORY | 4 * (round_ == 1)
        )
        client.messages_to(4 * round_)
        one.remove_stale()
    assert (one.counters().items_from_disk, one.counters().disk_scans) == (0, 0)


# --- tombstones


def test_tombstones_go_by_age(one: ProducerCluster, connect: Connect, clock: Clock) -> None:
    _write(one, keys=4)
    uuid = one.failover_log(0).current_uuid
    gone = one.delete(b"k0")
    clock.now += 59
    one.delete(b"k1")
    one.remove_stale()
    assert one.purge_seqno(0) == 0
    clock.now += 1
    assert one.remove_stale() > 0
    assert one.purge_seqno(0) == 5
    forget(one)
    client = connect(one).log_in().open_dcp()
    _, *items = _backfill(client, 0, 6)
    assert [(type(i), getattr(i, "by_seqno", 0)) for i in items] == [
        (m.Mutation, 3),
        (m.Mutation, 4),
        (m.Deletion, 6),
    ]
    refused = client.request_stream(0, 4, vb_uuid=uuid)
    assert (refused.status, refused.value) == (Status.ROLLBACK, bytes(8))
    assert client.request_stream(0, 5, vb_uuid=uuid).status == Status.SUCCESS
    assert one.bucket.vbuckets[0].data.newest.of_key(b"k0") is None
    assert one.set(b"k0", b"{}").rev == gone.rev + 1
    clock.now += 1000
    one.delete(b"k2")
    clock.now += 1000
    one.remove_stale()
    assert one.purge_seqno(0) == 6  # the newest item stays, however old


def test_an_endless_age_purges_nothing(make_cluster: MakeCluster, clock: Clock) -> None:
    cluster = make_cluster(
        vbuckets=1,
        bucket_type=BucketType.EPHEMERAL,
        metadata_purge_age_seconds=float("inf"),
    )
    _write(cluster, keys=2)
    cluster.delete(b"k0")
    cluster.set(b"k1", b"{}")
    clock.now += 1e9
    assert cluster.remove_stale() > 0
    assert (cluster.purge_seqno(0), cluster.bucket.vbuckets[0].data.newest.forgotten_rev) == (
        0,
        0,
    )


# --- what is persisted, and what a crash leaves


def test_clients_are_told_that_nothing_is_on_disk(one: ProducerCluster, connect: Connect) -> None:
    _write(one, keys=3)
    client = connect(one).log_in().open_dcp()
    uuid = one.failover_log(0).current_uuid
    observed = client.ok(m.ObserveSeqno(uuid), Opcode.OBSERVE_SEQNO)
    assert observed == m.ObserveSeqnoAnswer(0, 0, uuid, 0, 3)
    waits = [
        client.call(m.SeqnoPersistence(seqno), Opcode.SEQNO_PERSISTENCE).status
        for seqno in (0, 3, 4)
    ]
    assert waits == [Status.SUCCESS, Status.SUCCESS, Status.ETMPFAIL]
    client.request_stream(0, flags=int(StreamFlag.DISK_ONLY))
    *_, last, end = client.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert (getattr(last, "by_seqno", 0), end) == (3, m.StreamEnd(0))


def test_backfills_never_go_by_key(one: ProducerCluster, connect: Connect) -> None:
    one.create_collection("", "a")
    for key in (b"b", b"a"):
        one.set(key, b"1", collection=8)
    forget(one)
    client = connect(one).log_in().open_dcp(enable_out_of_order_snapshots="true")
    client.request_stream(0, value=b'{"collections":["8"]}')
    assert client.message() == m.SnapshotMarker(0, 3, DISK)


@pytest.mark.parametrize("lost_seqnos", [None, 0, 2])
def test_a_crash_loses_everything(
    one: ProducerCluster, connect: Connect, lost_seqnos: int | None
) -> None:
    one.create_collection("", "a")
    _write(one, keys=3, rounds=2)
    uuid = one.failover_log(0).current_uuid
    one.crash_restart(0, lost_seqnos)
    new_uuid = one.failover_log(0).current_uuid
    assert new_uuid != uuid
    assert one.failover_log(0).entries == (FailoverEntry(new_uuid, 0),)
    assert one.high_seqno(0) == 1  # the collection begins anew: that is the cluster's to know
    with pytest.raises(RefusedError, match="no such document"):
        one.get(b"k0")
    client = connect(one).log_in().open_dcp()
    refused = client.request_stream(0, 7, vb_uuid=uuid)
    assert (refused.status, refused.value) == (Status.ROLLBACK, bytes(8))


# --- who is told


def test_clients_learn_the_type(one: ProducerCluster) -> None:
    password = "Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA=="
    request = HttpRequest("GET", "/pools/default/buckets/default", password)
    with one.bucket.lock:
        tree = json.loads(respond(request, one.bucket, 0).body)
        terse = json.loads(one.bucket.map.as_json(0))
    assert tree["bucketType"] == terse["bucketType"] == "ephemeral"
    assert "storageBackend" not in tree  # ns_server leaves it out since 7.6
    assert "couchapi" not in tree["bucketCapabilities"]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"bucket_type": "ephemeral"}, "bucket_type .*: found 'ephemeral' .str., expected one of"),
        ({"bucket_type": BucketType.EPHEMERAL, "data_folder": "x"}, "such a bucket has no disk"),
        ({"bucket_type": BucketType.EPHEMERAL, "unpersisted_seqnos": 1}, "has no disk"),
        (
            {"stale_removal_seconds": 0},
            "stale_removal_seconds: found 0 .int., expected a number above 0",
        ),
        (
            {"metadata_purge_age_seconds": -1.0},
            "metadata_purge_age_seconds: found -1.0 .float., expected a number from 0",
        ),
        (
            {"metadata_purge_age_seconds": float("nan")},
            "metadata_purge_age_seconds: found nan .float.",
        ),
    ],
)
def test_what_cannot_be(chosen: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClusterSettings(**chosen)  # type: ignore[arg-type]  # wrong ones are the point


# --- any way through it


@dataclass
class _Model:
    """Every version that was written, as (key, when it was deleted, or None), by seqno from 1."""

    age: int
    versions: list[tuple[int, int | None]] = field(default_factory=list)
    purged: set[int] = field(default_factory=set)

    def shown(self, after: int) -> list[int]:
        """The newest version of each key that was not purged."""
        newest = {key: seqno for seqno, (key, _) in enumerate(self.versions, 1)}
        return sorted(seqno for seqno in set(newest.values()) - self.purged if seqno > after)

    def remove_stale(self, now: int) -> None:
        for seqno in self.shown(0)[:-1]:
            deleted_at = self.versions[seqno - 1][1]
            if deleted_at is not None and deleted_at > now - self.age:
                break
            if deleted_at is not None:
                self.purged.add(seqno)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 3)),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(1, 3)),
        st.tuples(st.just("scan"), st.integers(0, 10)),
        st.tuples(st.sampled_from(["read", "remove"]), st.just(0)),
    ),
    max_size=40,
)


@given(steps=_STEPS, age=st.integers(0, 4))
def test_any_way_through_it(steps: list[tuple[str, int]], age: int) -> None:
    settings = ClusterSettings(
        vbuckets=1, bucket_type=BucketType.EPHEMERAL, metadata_purge_age_seconds=float(age)
    )
    vbucket, model, now = Vbucket(0, lambda: 1, settings), _Model(age), 1000
    writer = DocumentWriter(vbucket.documents)
    scans: list[tuple[Scan, list[int]]] = []
    for step, number in steps:
        match step:
            case "set":
                writer.store(b"%d" % number, checked(b"{}"), now)
                model.versions.append((number, None))
            case "delete":
                try:
                    writer.delete(b"%d" % number, now)
                    model.versions.append((number, now))
                except RefusedError:
                    assert model.versions[-1:] != [(number, None)]
            case "wait":
                now += number
            case "scan":
                scans.append((vbucket.data.disk.scan(number), model.shown(number)))
            case "read":
                while scans:
                    scan, shown = scans.pop()
                    assert [seqno for seqno, _ in read_all(scan)] == shown
            case _:
                before = vbucket.data.disk.size_bytes
                write = vbucket.begin_compaction(now)
                if not scans:
                    model.remove_stale(now)
                    event(f"removed {write is not None}, purged {len(model.purged) > 0}")
                if write is not None:
                    vbucket.data.persistence.finish_flush(write)
                    assert vbucket.data.disk.size_bytes < before
        vbucket.data.flush_batch()
        assert vbucket.data.high_seqno == vbucket.data.disk.persisted_seqno == len(model.versions)
        assert vbucket.data.disk.purge_seqno == max(model.purged, default=0)
        assert {v.seqno for v in vbucket.data.newest.versions} == set(model.shown(0))
        assert [seqno for seqno, _ in read_all(vbucket.data.disk.scan(0))] == model.shown(0)


def test_a_disk_log_is_copied_while_others_go_on(
    make_cluster: MakeCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(
        vbuckets=2, bucket_type=BucketType.EPHEMERAL, stale_removal_seconds=0.001
    )
    replace, is_copying, may_go_on = MemoryFile.replace, Event(), Event()

    def slow(file: MemoryFile, parts: Iterable[Data]) -> None:
        is_copying.set()
        assert may_go_on.wait(PATIENCE_SECONDS)
        replace(file, parts)

    keys = [b"k%d" % n for n in range(9)]
    here, there = (next(k for k in keys if cluster.vbucket_of(k) == v) for v in range(2))
    for key in (here, there):  # the first write makes the log, as if it replaced one
        cluster.set(key, b"0")
    monkeypatch.setattr(MemoryFile, "replace", slow)
    cluster.set(here, b"1")
    assert is_copying.wait(PATIENCE_SECONDS)
    client = connect(cluster).log_in()
    cluster.set(there, b"2")
    found = client.ok(m.KeyOnly(b"\0" + here), Opcode.GET, vbucket=cluster.vbucket_of(here))
    assert found == m.GetAnswer(0, b"1")
    may_go_on.set()
    assert cluster.set(here, b"3").seqno == 3

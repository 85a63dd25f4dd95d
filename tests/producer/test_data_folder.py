"""A bucket in a folder: what is there after a stop, after a crash, and what goes to disk when.

With ``flush_seconds=3600`` nothing goes to disk but what a test writes there. A crash is a copy of
the folder of a cluster that still runs, which another cluster opens.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.errors import ConfigError, DcplakeError, LocalProtocolError, SourceError
from dcp.producer import disk_writer
from dcp.producer.cluster import ProducerCluster
from dcp.producer.disk_batch import DiskFormatError
from dcp.producer.disk_file import Data, OsFile
from dcp.producer.documents import DocumentError
from dcp.producer.resume_rules import VbucketFacts
from dcp.producer.settings import ClusterSettings
from dcp.producer.stored_items import STORED_FLAVOUR, versions_of
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.vocabulary import Opcode, Status, StreamFlag, VbucketState
from tests.producer.conftest import Clock
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
Open = Callable[..., ProducerCluster]
NEVER = 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def open_cluster(clock: Clock) -> Iterator[Open]:
    """Clusters on a folder that serve nobody: one vbucket, nothing is written by itself."""
    with ExitStack() as stack:

        def make(folder: Path, **chosen: Any) -> ProducerCluster:
            asked = {"vbuckets": 1, "seed": 1, "clock": clock, "flush_seconds": NEVER, **chosen}
            cluster = ProducerCluster(ClusterSettings(data_folder=folder, **asked))
            stack.callback(cluster.stop)
            return cluster

        yield make


def _told(cluster: ProducerCluster) -> list[object]:
    """All that a bucket says of itself, every newest version included that was not purged."""
    bucket = cluster.bucket
    told: list[object] = [bucket.map.bucket_uuid, bucket.map.owners, bucket.manifest]
    for vbucket in bucket.vbuckets:
        data, collections = vbucket.data, vbucket.documents.collections
        told.append((vbucket.state, vbucket.failover_log, data.base_seqno))
        told.append((data.high_seqno, data.persisted_seqno, data.purge_seqno))
        told.append((dict(collections.high_seqnos), collections.max_visible_seqno))
        told.append((collections.manifest, list(collections.steps)))
        purged = range(data.purge_seqno + 1)
        newest = [v for v in data.newest_versions() if not v.is_deleted or v.seqno not in purged]
        told.append(sorted((v.seqno, *v.wire(STORED_FLAVOUR)) for v in newest))
    return told


def _flush(cluster: ProducerCluster) -> None:
    with cluster.bucket.lock:
        for vbucket in cluster.bucket.vbuckets:
            vbucket.data.flush()


def _write(cluster: ProducerCluster, *keys: bytes, value: bytes = b'"v"') -> None:
    """Write documents as one batch."""
    with cluster.batch():
        for key in keys:
            cluster.set(key, value)


def _crash(cluster: ProducerCluster, folder: Path, to: str) -> Path:
    """Return a folder with what a crash of the cluster would leave."""
    with cluster.bucket.lock:
        return Path(shutil.copytree(folder, folder.with_name(to)))


# --- a stop in good order


def _all_kinds(cluster: ProducerCluster, clock: Clock) -> None:
    """Do of everything a little, on four vbuckets of two nodes."""
    cluster.start_vbucket_at(3, 1 << 63, cas=(1 << 63) + 1)
    for n in range(40):
        cluster.set(b"k%d" % n, b'{"n": %d}' % n, flags=n)
    cluster.create_scope("s")
    cluster.create_collection("s", "kept", max_ttl=500)
    for name in ("dropped", "flushed"):
        cluster.create_collection("s", name)
    for n in range(20):
        for name in ("kept", "dropped", "flushed"):
            cluster.set(b"c%d" % n, b"[]", collection=f"s.{name}")
    cluster.drop_collection("s", "dropped")
    cluster.flush_collection("s", "flushed")
    for n in range(0, 40, 3):
        cluster.delete(b"k%d" % n)
    cluster.set(b"short", b"1", expiry=10)
    cluster.set(b"long", b"1", expiry=1000)
    clock.now += 20
    assert cluster.expire_due() == 1
    cluster.failover(1)
    cluster.set_vbucket_state(1, VbucketState.REPLICA)
    _flush(cluster)
    assert cluster.purge_tombstones(0) > 0


def test_after_a_stop_all_is_as_before(open_cluster: Open, clock: Clock, folder: Path) -> None:
    first = open_cluster(folder, vbuckets=4, nodes=2)
    _all_kinds(first, clock)
    rev, clocks = first.bucket.map.rev, [v.documents.clock.last for v in first.bucket.vbuckets]
    first.stop()
    told = _told(first)

    again = open_cluster(folder, vbuckets=4, nodes=2)
    assert _told(again) == told
    assert again.bucket.map.rev > rev
    assert not again.bucket.map.is_member(1)
    assert [v.documents.clock.last for v in again.bucket.vbuckets] == clocks
    long = again.vbucket_of(b"long")
    if again.bucket.vbuckets[long].state is VbucketState.ACTIVE:
        clock.now += 1000
        assert again.expire_due() >= 1
    given = again.bucket.manifest.given_collection_ids
    assert again.create_collection("s", "new") not in given


def test_a_stop_and_a_start_of_an_empty_bucket_change_nothing(
    open_cluster: Open, folder: Path
) -> None:
    first = open_cluster(folder, vbuckets=8)
    first.stop()
    first.stop()
    assert _told(open_cluster(folder, vbuckets=8)) == _told(first)
    assert sorted(path.name for path in folder.iterdir()) == ["bucket.json", "lock"]


def test_rev_and_cas_go_on_growing(open_cluster: Open, clock: Clock, folder: Path) -> None:
    first = open_cluster(folder)
    first.set(b"k", b"1")
    gone = first.delete(b"k")
    first.stop()
    clock.now -= 10_000
    assert (found := open_cluster(folder).set(b"k", b"2")).cas > gone.cas
    assert (found.rev, found.seqno) == (3, 3)


def test_a_preloaded_bucket_comes_back(open_cluster: Open, folder: Path) -> None:
    first = open_cluster(folder)
    first.preload(50, 40)
    with first.bucket.vbuckets[0].data.scan(0) as scan:
        frames = scan.read(1 << 20)
    assert frames is not None
    preloaded = versions_of(frames)
    held = {version.key: first.get(version.key) for version in preloaded}
    assert len(held) == 50
    first.set(b"more", b"1")
    first.stop()
    again = open_cluster(folder)
    assert again.high_seqno(0) == 51
    assert {key: again.get(key) for key in held} == held
    assert again.set(b"more", b"2").cas > max(document.cas for document in held.values())


# --- a crash


def test_a_crash_loses_what_was_not_written_and_begins_a_branch(
    open_cluster: Open, folder: Path
) -> None:
    first = open_cluster(folder, vbuckets=2)
    first.set_vbucket_state(1, VbucketState.REPLICA)
    replica_log = first.failover_log(1)
    kept, lost = (k for k in (b"k%d" % n for n in range(9)) if first.vbucket_of(k) == 0), b""
    _write(first, next(kept), next(kept))
    _flush(first)
    lost = next(kept)
    _write(first, lost)
    uuid = first.failover_log(0).current_uuid
    crashed = _crash(first, folder, "crashed")

    again = open_cluster(crashed, vbuckets=2)
    new_uuid = again.failover_log(0).current_uuid
    assert again.failover_log(0).entries == (FailoverEntry(new_uuid, 2), FailoverEntry(uuid, 0))
    assert new_uuid != uuid
    assert (again.high_seqno(0), again.persisted_seqno(0)) == (2, 2)
    with pytest.raises(DocumentError, match="no such document"):
        again.get(lost)
    assert again.failover_log(1) == replica_log
    twice = open_cluster(_crash(again, crashed, "twice"), vbuckets=2)
    assert [entry.seqno for entry in twice.failover_log(0).entries] == [2, 2, 0]


def test_a_crash_while_a_manifest_spreads(open_cluster: Open, folder: Path) -> None:
    """The manifest is on disk before anybody hears of it; vbuckets that lack it follow again."""
    first = open_cluster(folder, vbuckets=2)
    first.create_collection("", "a")
    _flush(first)
    first.create_collection("", "b")
    with first.bucket.lock:
        first.bucket.vbuckets[0].data.flush()
    again = open_cluster(_crash(first, folder, "crashed"), vbuckets=2)
    assert again.manifest == first.manifest
    for vbucket in again.bucket.vbuckets:
        assert vbucket.documents.collections.manifest == first.manifest
        assert vbucket.data.high_seqno == 2
    assert [again.persisted_seqno(v) for v in range(2)] == [2, 1]


def test_a_consumer_that_read_more_is_rolled_back(
    make_cluster: Open, open_cluster: Open, connect: Connect, folder: Path
) -> None:
    first = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=NEVER)
    _write(first, b"a", b"b", b"c")
    _flush(first)
    _write(first, b"d", b"e")
    client = connect(first).log_in().open_dcp()
    client.request_stream(0)
    client.messages_to(5)
    uuid = first.failover_log(0).current_uuid
    crashed = _crash(first, folder, "crashed")

    again = open_cluster(crashed)
    again.start()
    resumed = connect(again).log_in().open_dcp()
    answer = resumed.request_stream(0, 5, vb_uuid=uuid, snapshot=(5, 5))
    assert answer.status == Status.ROLLBACK
    assert decode(answer) == m.RollbackAnswer(3)
    assert resumed.request_stream(0, 3, vb_uuid=uuid, snapshot=(3, 3)).status == Status.SUCCESS
    again.set(b"f", b"1")
    assert [b.key for b in resumed.messages_to(4) if isinstance(b, m.Mutation)] == [b"\0f"]


def test_after_a_stop_a_stream_resumes(
    make_cluster: Open, open_cluster: Open, connect: Connect, folder: Path
) -> None:
    first = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=NEVER)
    _write(first, b"a", b"b", b"c")
    uuid = first.failover_log(0).current_uuid
    first.stop()
    again = open_cluster(folder)
    again.start()
    client = connect(again).log_in().open_dcp()
    answer = client.request_stream(0, 2, vb_uuid=uuid, snapshot=(0, 3))
    assert answer.status == Status.SUCCESS
    assert [b.key for b in client.messages_to(3) if isinstance(b, m.Mutation)] == [b"\0c"]


def test_a_torn_tail_is_a_crash_at_the_batch_before(open_cluster: Open, folder: Path) -> None:
    """Also after a stop in good order: the folder then is not what it was."""
    first = open_cluster(folder)
    ends = {0: folder.parent / "none"}
    log = folder / "vb_0.log"
    for n in range(3):
        _write(first, b"a", b"k%d" % n)
        _flush(first)
        ends[log.stat().st_size] = folder
    first.stop()
    uuid = first.failover_log(0).current_uuid
    for step, size in enumerate(range(150, log.stat().st_size, 37)):
        torn = Path(shutil.copytree(folder, folder.with_name(f"torn{step}")))
        with (torn / "vb_0.log").open("r+b") as file:
            file.truncate(size)
        whole = sum(end <= size for end in ends) - 1
        again = open_cluster(torn)
        held = {v.key: v.seqno for v in again.bucket.vbuckets[0].data.newest_versions()}
        high = 2 * whole
        expected = {b"k%d" % n: 2 * n + 2 for n in range(whole)} | (
            {b"a": high - 1} if whole else {}
        )
        assert (again.high_seqno(0), held) == (high, expected)
        is_whole = whole == len(ends) - 1
        assert (again.failover_log(0).current_uuid == uuid) == is_whole
        assert again.failover_log(0).entries[0].seqno == (0 if is_whole else high)


def test_each_batch_of_writes_stays_a_state_to_go_back_to(open_cluster: Open, folder: Path) -> None:
    """Though all of them are one batch on disk; the middle of one is no state that there was."""
    first = open_cluster(folder)
    _write(first, b"a", b"b")
    _write(first, b"a", b"c", b"d")
    _write(first, b"b")
    first.stop()
    ends = [0, 0, 2, 2, 2, 5, 6]
    again = open_cluster(folder)
    data = again.bucket.vbuckets[0].data
    assert [data.batch_end_at(seqno) for seqno in range(7)] == ends
    again.crash_restart(0, lost_seqnos=2)
    assert again.high_seqno(0) == 2
    assert {v.key: v.seqno for v in data.newest_versions()} == {b"a": 1, b"b": 2}


class _Model:
    """What one vbucket holds by seqno, and how far it is on disk."""

    def __init__(self) -> None:
        self.high = self.persisted = 0
        self.held: list[dict[bytes, int]] = [{}]  # at each end of a batch
        self.ends = [0]

    def write(self, keys: Iterable[bytes]) -> None:
        held = dict(self.held[-1])
        for key in keys:
            self.high += 1
            held[key] = self.high
        self.held.append(held)
        self.ends.append(self.high)

    def crash(self) -> None:
        kept = self.ends.index(self.persisted) + 1
        del self.held[kept:], self.ends[kept:]
        self.high = self.persisted


KEYS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(KEYS, st.sampled_from(["flush", "stop", "crash", "compact"])), max_size=12
)


@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_any_way_through_stops_and_crashes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[bytes] | str]
) -> None:
    root = tmp_path_factory.mktemp("way")
    at, model, branches = root / "0", _Model(), [0]

    def make() -> ProducerCluster:
        asked = ClusterSettings(vbuckets=1, seed=1, data_folder=at, flush_seconds=NEVER)
        return ProducerCluster(asked)

    cluster = make()
    for number, step in enumerate(steps):
        match step:
            case "flush":
                _flush(cluster)
                model.persisted = model.high
            case "stop":
                cluster.stop()
                model.persisted = model.high
                cluster = make()
            case "crash":
                copied = _crash(cluster, at, f"crash{number}")
                cluster.stop()
                at = copied
                cluster = make()
                model.crash()
                branches.append(model.high)
            case "compact":
                cluster.purge_tombstones(0)
            case keys:
                assert not isinstance(keys, str)
                _write(cluster, *keys)
                model.write(keys)
        data = cluster.bucket.vbuckets[0].data
        assert (data.high_seqno, data.persisted_seqno) == (model.high, model.persisted)
        assert {v.key: v.seqno for v in data.newest_versions()} == model.held[-1]
        assert [e.seqno for e in reversed(cluster.failover_log(0).entries)] == branches
    cluster.stop()


# --- the flusher


def _persisted(client: RawClient, seqno: int) -> bool:
    return client.call(m.SeqnoPersistence(seqno), Opcode.SEQNO_PERSISTENCE).status == Status.SUCCESS


def test_writes_go_to_disk_by_themselves(
    make_cluster: Open, open_cluster: Open, connect: Connect, folder: Path
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=0.001)
    client = connect(cluster).log_in()
    _write(cluster, b"a", b"b")
    while not _persisted(client, 2):
        pass
    again = open_cluster(_crash(cluster, folder, "crashed"))
    assert again.get(b"b").value == b'"v"'


def test_clients_are_told_what_is_on_disk(
    make_cluster: Open, connect: Connect, folder: Path
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=NEVER)
    _write(cluster, b"a", b"b")
    _flush(cluster)
    _write(cluster, b"c")
    client = connect(cluster).log_in().open_dcp()
    uuid = cluster.failover_log(0).current_uuid
    observed = client.ok(m.ObserveSeqno(uuid), Opcode.OBSERVE_SEQNO)
    assert observed == m.ObserveSeqnoAnswer(0, 0, uuid, 2, 3)
    assert [_persisted(client, seqno) for seqno in (2, 3)] == [True, False]
    client.request_stream(0, flags=int(StreamFlag.DISK_ONLY))
    *_, last, end = client.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert isinstance(last, m.Mutation)
    assert last.by_seqno == 2
    assert isinstance(end, m.StreamEnd)
    client.request_stream(0)  # the rest is from memory
    assert [b.by_seqno for b in client.messages_to(3) if isinstance(b, m.Mutation)] == [1, 2, 3]


class _SlowDisk:
    """Lets writes to files (``append``, ``replace``) wait until they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "append") -> None:
        self.is_reached, self.may_go_on = Event(), Event()
        write = getattr(OsFile, name)

        def slow(file: OsFile, *arguments: object) -> None:
            self.is_reached.set()
            assert self.may_go_on.wait(10)
            write(file, *arguments)

        monkeypatch.setattr(OsFile, name, slow)


def test_nobody_waits_for_a_slow_disk(
    make_cluster: Open, connect: Connect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=0.001)
    client = connect(cluster).log_in().open_dcp()
    disk = _SlowDisk(monkeypatch)
    _write(cluster, b"a")
    assert disk.is_reached.wait(10)
    _write(cluster, b"b")
    client.request_stream(0)
    assert client.messages_to(2)
    assert not _persisted(client, 1)
    disk.may_go_on.set()
    while not _persisted(client, 2):
        pass
    assert cluster.persisted_seqno(0) == 2


def test_a_fork_waits_for_the_write_that_runs(
    make_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=0.001)
    disk = _SlowDisk(monkeypatch)
    _write(cluster, b"a")
    assert disk.is_reached.wait(10)
    _write(cluster, b"b")
    disk.may_go_on.set()
    with cluster.bucket.lock:
        cluster.bucket.vbuckets[0].crash(lost_seqnos=1)
    assert (cluster.high_seqno(0), cluster.persisted_seqno(0)) == (1, 1)
    _write(cluster, b"c")
    cluster.stop()
    assert cluster.persisted_seqno(0) == 2


def test_nobody_waits_for_a_compaction(
    make_cluster: Open,
    open_cluster: Open,
    connect: Connect,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Backfills read the old file meanwhile, also to its end when it is another's."""
    monkeypatch.setattr(disk_writer, "_LEAST_STALE_BYTES", 20_000)
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=0.001)
    client = connect(cluster).log_in().open_dcp(window=2000)
    _write(cluster, b"first", value=b"x" * 1500)
    while not _persisted(client, 1):
        pass
    disk = _SlowDisk(monkeypatch, "replace")
    for n in range(2, 42):
        _write(cluster, b"k", value=b"x" * 1000)
        if disk.is_reached.is_set():
            break
        while not _persisted(client, n) and not disk.is_reached.is_set():
            pass
    assert disk.is_reached.wait(10)
    high = cluster.high_seqno(0)
    cluster.bucket.vbuckets[0].data.checkpoints.expel()
    client.request_stream(0)
    assert isinstance(marker := client.message(), m.SnapshotMarker)
    assert isinstance(client.message(), m.Mutation)
    _write(cluster, b"last")
    assert not _persisted(client, high + 1)
    disk.may_go_on.set()
    while not _persisted(client, high + 1):
        pass
    client.ack(5000)
    newest = client.message()
    assert isinstance(newest, m.Mutation)
    assert (newest.key, newest.by_seqno) == (b"\0k", marker.end)
    cluster.stop()
    assert _told(open_cluster(folder)) == _told(cluster)


def test_a_disk_that_fails_is_tried_again(
    make_cluster: Open,
    connect: Connect,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=0.001)
    client = connect(cluster).log_in()
    append, failures = OsFile.append, [OSError("disk full")] * 3

    def failing(file: OsFile, offset: int, parts: Iterable[Data]) -> None:
        if failures:
            raise failures.pop()
        append(file, offset, parts)

    monkeypatch.setattr(OsFile, "append", failing)
    _write(cluster, b"a")
    while not _persisted(client, 1):
        pass
    assert failures == []
    cluster.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "vbucket 0: cannot write to disk; it is tried again: disk full",
        "vbucket 0: it is written to disk again",
    ]


def test_a_compaction_that_cannot_be_written_keeps_nothing_from_the_disk(
    make_cluster: Open,
    connect: Connect,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There is room for what is appended, not for a copy of the log."""
    monkeypatch.setattr(disk_writer, "_LEAST_STALE_BYTES", 10_000)
    cluster = make_cluster(
        vbuckets=1, data_folder=folder, flush_seconds=0.001, stale_removal_seconds=NEVER
    )
    client = connect(cluster).log_in()
    attempts = 0

    def failing(file: OsFile, parts: Iterable[Data]) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    def write_until(seqno: int) -> None:
        for n in range(cluster.high_seqno(0) + 1, seqno + 1):
            _write(cluster, b"k", value=b"x" * 1000)
            while not _persisted(client, n):
                pass

    write_until(1)
    with monkeypatch.context() as patched:
        patched.setattr(OsFile, "replace", failing)
        write_until(60)
    assert attempts == 1  # until the compactor's turn
    assert "vbucket 0: cannot compact, it goes on without: [Errno 28]" in caplog.text
    assert "vb_0.log" in caplog.text
    size = cluster.bucket.vbuckets[0].data.stored_bytes
    assert cluster.remove_stale() > size // 2
    assert cluster.get(b"k").seqno == 60
    cluster.stop()
    assert _told(make_cluster(vbuckets=1, data_folder=folder)) == _told(cluster)


def test_an_ordered_compaction_that_fails_says_so(
    open_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_writer, "_LEAST_STALE_BYTES", 1)
    cluster = open_cluster(folder)
    for n in range(10):
        _write(cluster, b"k", value=b"%d" % n)
    _flush(cluster)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _no_room)
        with pytest.raises(OSError, match=f"No space left on device.*{folder}/vb_0.log"):
            cluster.remove_stale()
    _write(cluster, b"k")
    _flush(cluster)
    assert cluster.persisted_seqno(0) == 11
    assert cluster.remove_stale() > 0
    assert cluster.get(b"k").seqno == 11


def _no_room(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_who_is_far_ahead_of_the_disk_writes_himself(open_cluster: Open, folder: Path) -> None:
    cluster = open_cluster(folder, checkpoint_quota_bytes=40_000)
    data = cluster.bucket.vbuckets[0].data
    for n in range(100):
        cluster.set(b"k%d" % n, b"x" * 900)
        assert data.unwritten_bytes < 10_000
    assert data.persisted_seqno > 80


def test_who_finds_the_disk_full_is_refused_before_he_wrote(
    make_cluster: Open,
    connect: Connect,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was written before is answered well, though it waits for the disk."""
    cluster = make_cluster(
        vbuckets=1, data_folder=folder, flush_seconds=NEVER, checkpoint_quota_bytes=40_000
    )
    client = connect(cluster).log_in()
    write = m.Store(b"\0k", b"x" * 1000)
    _write(cluster, b"first")
    _flush(cluster)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _no_room)
        answers = [client.call(write, Opcode.SET).status for _ in range(20)]
        refused = answers.index(Status.ETMPFAIL)
        assert 0 < refused < 10
        assert set(answers[refused:]) == {Status.ETMPFAIL}
        assert client.call(m.KeyOnly(b"\0k"), Opcode.GET).status == Status.SUCCESS
        assert cluster.high_seqno(0) == 1 + refused
        with pytest.raises(DocumentError, match=r"too much waits for the disk: .*vb_0\.log"):
            cluster.set(b"k", b"{}")
    assert f"vbucket 0: cannot write to disk, none may write: [Errno {errno.ENOSPC}]" in caplog.text
    assert client.call(write, Opcode.SET).status == Status.SUCCESS
    assert cluster.persisted_seqno(0) >= 1 + refused


@pytest.mark.parametrize(("replica_lag", "is_compacted"), [(0, True), (1, False)])
def test_a_file_of_mostly_old_versions_is_compacted(
    make_cluster: Open,
    connect: Connect,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    replica_lag: int,
    *,
    is_compacted: bool,
) -> None:
    monkeypatch.setattr(disk_writer, "_LEAST_STALE_BYTES", 20_000)
    cluster = make_cluster(
        vbuckets=1, data_folder=folder, flush_seconds=0.001, replica_lag_seqnos=replica_lag
    )
    client = connect(cluster).log_in()
    for n in range(1, 101):
        cluster.set(b"k", b"x" * 1000)
        while not _persisted(client, n):
            pass
    size = (folder / "vb_0.log").stat().st_size
    assert (size < 60_000) == is_compacted
    cluster.stop()
    assert cluster.get(b"k").seqno == 100


def test_a_vbucket_saves_what_changed(open_cluster: Open, folder: Path) -> None:
    """Not all manifests that it stood at with each batch, nor for ever."""
    cluster = open_cluster(folder)
    data = cluster.bucket.vbuckets[0].data
    _write(cluster, b"k")
    for number in range(50):
        cluster.create_collection("", f"c{number}")
    for number in range(50):
        cluster.set(b"k", b"1", collection=f"_default.c{number}")
        cluster.drop_collection("", f"c{number}")
    _flush(cluster)
    many = len(data.saved_state)
    before = data.stored_bytes
    _write(cluster, b"k")
    _flush(cluster)
    assert data.stored_bytes < before + 500 < before + many
    crashed = open_cluster(_crash(cluster, folder, "crashed"))
    collections = crashed.bucket.vbuckets[0].documents.collections
    assert collections.high_seqnos == cluster.bucket.vbuckets[0].documents.collections.high_seqnos
    assert set(collections.high_seqnos) == {0}
    cluster.purge_tombstones(0)
    _write(cluster, b"k")
    _flush(cluster)
    assert len(data.saved_state) < many // 4
    assert len(collections.steps) == 100
    assert len(cluster.bucket.vbuckets[0].documents.collections.steps) == 1
    cluster.stop()
    assert _told(open_cluster(folder)) == _told(cluster)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_what_was_purged_is_still_counted_after_a_crash(
    open_cluster: Open, folder: Path, is_reopened: bool
) -> None:
    """Though something newer of its collection was in memory when the log was compacted."""
    cluster = open_cluster(folder)
    number = cluster.create_collection("", "a")
    cluster.set(b"k", b"1", collection=number)
    cluster.delete(b"k", collection=number)
    _write(cluster, b"last")
    _flush(cluster)
    if is_reopened:
        cluster.stop()
        cluster = open_cluster(folder)
    cluster.set(b"k", b"2", collection=number)
    assert cluster.purge_tombstones(0) == 1
    crashed = open_cluster(_crash(cluster, folder, "crashed"))
    assert crashed.bucket.vbuckets[0].documents.collections.high_seqnos == {0: 4, number: 3}


def test_a_change_of_the_manifest_is_saved_once(
    open_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = open_cluster(folder, vbuckets=8)
    saved, replace = [], OsFile.replace

    def watched(file: OsFile, parts: Iterable[Data]) -> None:
        saved.append(str(file))
        replace(file, parts)

    monkeypatch.setattr(OsFile, "replace", watched)
    cluster.create_collection("", "a")
    assert saved == [str(folder / "bucket.json")]


# --- whose folder it is


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"bucket": "other"}, "bucket: found 'default', expected 'other'"),
        ({"vbuckets": 2}, "vbuckets: found 1, expected 2"),
        ({"nodes": 2}, "nodes: found 1, expected 2"),
    ],
)
def test_a_folder_of_another_bucket(
    open_cluster: Open, folder: Path, chosen: dict[str, Any], message: str
) -> None:
    open_cluster(folder).stop()
    for _ in range(2):  # the lock is let go of
        with pytest.raises(ConfigError, match=message):
            open_cluster(folder, **chosen)
    open_cluster(folder)


def _change(**changes: object) -> Callable[[Path], None]:
    """Give bucket.json other fields; without those of which the value is ``...``."""

    def damage(folder: Path) -> None:
        path = folder / "bucket.json"
        tree = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({name: v for name, v in tree.items() if v is not ...}))

    return damage


def _write_record(text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "bucket.json").write_text(text)

    return damage


def _change_log(folder: Path) -> None:
    shutil.copy(folder / "vb_0.log", folder / "vb_1.log")


def _forget_bucket(folder: Path) -> None:
    (folder / "bucket.json").unlink()


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (_change(version=7), ConfigError, "format version: found 7, expected 3"),
        (_change(version=...), ConfigError, "format version: found None, expected 3"),
        (
            _write_record("{"),
            ConfigError,
            r"bucket\.json: found no JSON \(.*\), expected an object",
        ),
        (_write_record("\0\0"), ConfigError, r"bucket\.json: found no JSON"),
        (_write_record("[1]"), ConfigError, r"found \[1\], expected a JSON object"),
        (_change(owner=[0, 0]), ConfigError, "fields: found .*'owner'.*, expected .*'bucket'"),
        (_change(uuid=...), ConfigError, "fields: found .*, expected .*'uuid'"),
        (_change(owners="00"), ConfigError, "owners: found '00', expected a list of numbers"),
        (_change(owners=[0]), ConfigError, "owners: found 1, expected 2"),
        (_change(owners=[0, 1]), ConfigError, "owners: found node 1, expected less than 1"),
        (_change(copies=[[], [-2]]), ConfigError, r"copies: found .*, expected a list of lists"),
        (_change(copies=[[]]), ConfigError, "copies: found 1, expected 2"),
        (_change(copies=[[], [1]]), ConfigError, "copies: found node 1, expected less than 1"),
        (_change(members=[1]), ConfigError, r"members: found \[1\], expected a list of true"),
        (_change(map_rev=True), ConfigError, "map_rev: found True, expected a number"),
        (_change(first_uuids=[1, 1 << 64]), ConfigError, "first_uuids: found .*a list of numbers"),
        (_change(manifest=1), ConfigError, r"manifest: found number 1, expected one of \[0\]"),
        (_change(manifests=[{}]), ConfigError, r"manifests: found \[\{\}\], expected a list of m"),
        (_change(ended_at=[1]), ConfigError, "ended_at: found 1, expected 2"),
        (_change_log, DiskFormatError, "found vbucket 0, expected 1"),
        (_forget_bucket, ConfigError, "found logs of vbuckets without a bucket.json"),
    ],
)
def test_a_folder_that_cannot_be_read(
    open_cluster: Open,
    folder: Path,
    damage: Callable[[Path], None],
    kind: type[DcplakeError],
    message: str,
) -> None:
    first = open_cluster(folder, vbuckets=2)
    first.set(next(k for k in (b"a", b"b", b"c", b"d") if first.vbucket_of(k) == 0), b"1")
    first.stop()
    damage(folder)
    for _ in range(2):
        with pytest.raises(kind, match=message):
            open_cluster(folder, vbuckets=2)


def test_a_folder_serves_one_producer_at_a_time(open_cluster: Open, folder: Path) -> None:
    first = open_cluster(folder)
    with pytest.raises(SourceError, match=r"another producer serves from it \(\{\"pid\": "):
        open_cluster(folder)
    first.stop()
    open_cluster(folder)


def test_what_a_cluster_in_a_folder_does_not_do(open_cluster: Open, folder: Path) -> None:
    cluster = open_cluster(folder)
    log = FailoverLog((FailoverEntry(1, 0),))
    with pytest.raises(LocalProtocolError, match="found one in a data folder"):
        cluster.set_up_vbucket(0, VbucketFacts(log, 0))
    cluster.stop()
    with pytest.raises(LocalProtocolError, match="given up its data folder"):
        cluster.start()


def test_a_folder_that_cannot_be_made(open_cluster: Open, folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(ConfigError, match=r"data folder .*: File exists"):
        open_cluster(folder)

"""Many vbuckets written at once: what is there when some cannot be, and who waits for whom."""

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Barrier, Event

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.failover import fail_over
from dcp.producer.parallel_writes import flush_together, save_together
from dcp.producer.promotion import take_over
from dcp.server.model.versions import Content, Version
from dcp.server.storage.bucket_record import BucketRecord
from dcp.server.storage.data_folder import DataFolder
from dcp.server.storage.disk_file import Data, MemoryFile, OsFile
from dcp.server.storage.disk_log_names import DiskLogNames, first_names
from dcp.server.storage.saved_vbucket import SavedVbucket
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.vocabulary import VbucketState
from tests.producer.compared_replicas import assert_replicas_are_equal
from tests.producer.kept_clusters import NEVER
from tests.producer.raw_client import PATIENCE_SECONDS

MakeCluster = Callable[..., ProducerCluster]


class _File(MemoryFile):
    """A disk that has room, or not."""

    is_full = False

    def append(self, offset: int, parts: Iterable[Data]) -> None:
        if self.is_full:
            raise OSError("disk full")
        super().append(offset, parts)


class _Kept:
    """Data of a vbucket with a few versions of one key, none of them on disk."""

    def __init__(self, vbucket: int) -> None:
        self.file, self.uuid = _File(), 1
        self.data = VbucketData(vbucket, self.file, ClusterSettings(), writes_behind=True)
        self.data.persistence.state.state_at = lambda _: self.state()
        self.write(1)
        self.write(2)

    def state(self) -> SavedVbucket:
        log = FailoverLog((FailoverEntry(self.uuid, 0),))
        return SavedVbucket(VbucketState.ACTIVE, log)

    def write(self, seqno: int) -> None:
        self.data.append(Version(0, b"k", Content(b"1"), seqno=seqno, rev=seqno, cas=seqno))
        self.data.flush_batch()

    @property
    def saved_uuid(self) -> int:
        saved = SavedVbucket.decode(self.data.disk.saved_state)
        return saved.failover_log.current_uuid


@pytest.fixture
def kept() -> list[_Kept]:
    return [_Kept(vbucket) for vbucket in range(40)]


def test_a_flush_that_some_disks_refuse(kept: list[_Kept]) -> None:
    for each in kept[::3]:
        each.file.is_full = True
    with pytest.raises(OSError, match="disk full"):
        flush_together([each.data for each in kept])
    for each in kept:
        each.file.is_full = False
    flush_together([each.data for each in kept])
    assert {each.data.disk.persisted_seqno for each in kept} == {2}
    assert {each.data.persistence.unwritten_bytes for each in kept} == {0}


@pytest.mark.parametrize("is_full", [False, True])
def test_a_flush_behind_a_compaction(kept: list[_Kept], is_full: bool) -> None:
    """One that fails is given up; what waits behind it is written."""
    data = [each.data for each in kept]
    flush_together(data)
    for each in kept[::2]:
        assert each.data.persistence.begin_compaction(leaves_nothing=True) is not None
    for each in kept:
        each.write(3)
        each.write(4)
    with pytest.MonkeyPatch.context() as patched:
        if is_full:
            patched.setattr(MemoryFile, "replace", _refused)
        flush_together(data)
    assert {each.data.disk.persisted_seqno for each in kept} == {4}


def _refused(_: MemoryFile, __: Iterable[Data]) -> None:
    raise OSError("disk full")


def test_states_that_some_disks_refuse(kept: list[_Kept]) -> None:
    """They are as they were, also for what is written next; the others have the new one."""
    flush_together([each.data for each in kept])
    for number, each in enumerate(kept):
        each.uuid, each.file.is_full = 2, number % 3 == 0
    with pytest.raises(OSError, match="disk full"):
        save_together([each.data for each in kept])
    assert [each.saved_uuid for each in kept] == [1 if each.file.is_full else 2 for each in kept]
    for each in kept:
        each.file.is_full, each.uuid = False, 3
    save_together([each.data for each in kept])
    assert {each.saved_uuid for each in kept} == {3}
    sizes = [each.data.disk.size_bytes for each in kept]
    save_together([each.data for each in kept])
    assert [each.data.disk.size_bytes for each in kept] == sizes


@pytest.fixture
def pair(make_cluster: MakeCluster, folder: Path) -> ProducerCluster:
    """Two nodes with four vbuckets each and replicas of the other's, in a folder."""
    cluster = make_cluster(nodes=2, vbuckets=8, replicas=1, data_folder=folder, flush_seconds=NEVER)
    for number in range(40):
        cluster.set(b"k%d" % number, b"1")
    assert_replicas_are_equal(cluster)
    return cluster


def test_a_failover_writes_all_vbuckets_at_once(
    pair: ProducerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, append = Barrier(4, timeout=PATIENCE_SECONDS), OsFile.append

    def appended(file: OsFile, offset: int, parts: Iterable[Data]) -> None:
        at_once.wait()
        append(file, offset, parts)

    with monkeypatch.context() as patched, pair.bucket.lock:
        patched.setattr(OsFile, "append", appended)
        fail_over(pair.bucket, 0)
    assert set(pair.bucket.map.owners) == {1}


def test_a_failover_does_not_wait_until_disk_logs_are_removed(
    pair: ProducerCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are gone when the folder is another's to use."""
    may_go_on, remove = Event(), OsFile.remove

    def removed(file: OsFile) -> None:
        assert may_go_on.wait(PATIENCE_SECONDS)
        remove(file)

    monkeypatch.setattr(OsFile, "remove", removed)
    pair.failover(0)
    assert pair.set(b"k", b"2").value == b"2"
    assert len(list(folder.glob("vb_*.log"))) == 16
    may_go_on.set()
    pair.stop()
    assert len(list(folder.glob("vb_*.log"))) == 8


def test_no_name_is_given_twice_though_its_disk_log_is_gone() -> None:
    names = DiskLogNames(first_names(1), [[]], ())
    gone = names.of_replica(1, 0)
    names.drop_replica(1, 0)
    assert names.copy().of_replica(1, 0) != gone


def test_what_is_taken_over_together_is_saved_once(
    pair: ProducerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[BucketRecord] = []
    save = DataFolder.save

    def watched(folder: DataFolder, record: BucketRecord) -> None:
        saved.append(record)
        save(folder, record)

    monkeypatch.setattr(DataFolder, "save", watched)
    with pair.bucket.lock:
        moved = pair.bucket.map.vbuckets_of(0)
        for vbucket in moved:
            replica = pair.bucket.replicas.at(1, vbucket)
            assert replica is not None
            replica.is_taking_over = True
        take_over(pair.bucket, moved, 1)
    assert [record.owners for record in saved] == [(1,) * 8]
    assert pair.get(b"k1").value == b"1"

"""The flusher beside its turns: what it says, what it forgets, what it lets others know."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from threading import enumerate as enumerate_threads

import pytest

from dcp.errors import SourceError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.bucket.bucket_storage import BucketStorage
from dcp.server.model.refused_error import RefusedError
from dcp.server.node import loop_thread
from dcp.server.node.cluster_nodes import ClusterNodes
from dcp.server.storage.disk_file import Data, OsFile
from dcp.server.storage.pending_write import PendingWrite
from tests.producer.kept_clusters import write

Open = Callable[..., ProducerCluster]
STUCK = "are refused"


def _no_room(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write_in_background(cluster: ProducerCluster) -> None:
    flusher = cluster.bucket.writes.flusher
    assert flusher is not None
    asyncio.run(flusher._write(cluster.bucket.vbuckets[0]))


def _write_until_refused(cluster: ProducerCluster) -> None:
    with pytest.raises(RefusedError):
        for n in range(100):
            cluster.set(b"k%d" % n, b"x" * 1000)


def test_that_none_may_write_is_said_again_when_the_background_had_made_room(
    open_cluster: Open,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = open_cluster(folder, checkpoint_quota_bytes=40_000)
    for times in (1, 2):
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", _no_room)
            _write_until_refused(cluster)
        assert caplog.text.count(STUCK) == times
        _write_in_background(cluster)
        assert cluster.bucket.vbuckets[0].data.persistence.unwritten_bytes == 0


def test_a_vbucket_that_is_forgotten_while_it_is_written_is_not_kept(
    open_cluster: Open,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = open_cluster(folder)
    write(cluster, b"a")
    flusher = cluster.bucket.writes.flusher
    assert flusher is not None

    def forgotten(_: PendingWrite) -> None:
        assert flusher is not None
        with cluster.bucket.lock:
            flusher.forget(cluster.bucket.vbuckets[0])
        raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(PendingWrite, "run", forgotten)
        _write_in_background(cluster)
    assert not flusher._failing
    assert not caplog.messages


@pytest.fixture
def one_broken(
    open_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ProducerCluster, list[str]]]:
    """Two vbuckets, the log of vbucket 0 cannot be written; and a list of the attempts."""
    attempts: list[str] = []
    replace = OsFile.replace

    def failing(file: OsFile, parts: Iterable[Data]) -> None:
        if str(file).endswith("vb_0.log"):
            attempts.append(str(file))
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))
        replace(file, parts)

    with monkeypatch.context() as patched:
        patched.setattr(OsFile, "replace", failing)
        yield open_cluster(folder, vbuckets=2, checkpoint_quota_bytes=40_000), attempts


def _keys_of(cluster: ProducerCluster, vbucket: int) -> Iterator[bytes]:
    return (key for n in count() if cluster.vbucket_of(key := b"k%d" % n) == vbucket)


def _refused(cluster: ProducerCluster, vbucket: int, writes: int) -> list[str]:
    """Write so often to a vbucket; return what was said where it was refused."""
    found: list[str] = []
    for key in islice(_keys_of(cluster, vbucket), writes):
        try:
            cluster.set(key, b"x" * 1000)
        except RefusedError as error:
            found.append(str(error))
    return found


def test_a_disk_log_that_cannot_be_written_keeps_nobody_else_out(
    one_broken: tuple[ProducerCluster, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    cluster, _ = one_broken
    bucket = cluster.bucket
    refused = _refused(cluster, 0, 50)
    assert len(refused) > 30
    assert all("vb_0.log" in text for text in refused)
    assert not _refused(cluster, 1, 100)
    assert bucket.vbuckets[1].data.persistence.unwritten_bytes == 0
    assert 10_000 <= bucket.vbuckets[0].data.persistence.unwritten_bytes < 10_000 + 2 * 1100
    assert caplog.text.count("writes to vbucket 0 are refused") == 1
    assert not bucket.writes.has_room


def test_a_disk_log_that_cannot_be_written_is_not_tried_with_each_write(
    one_broken: tuple[ProducerCluster, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, attempts = one_broken
    flusher, now = cluster.bucket.writes.flusher, [100.0]
    assert flusher is not None
    monkeypatch.setattr(flusher, "_monotonic", lambda: now[0])
    assert len(_refused(cluster, 0, 50)) > 30
    assert len(attempts) == 1
    now[0] += 1.0  # the longest that is waited for
    assert len(_refused(cluster, 0, 50)) == 50
    assert len(attempts) == 2


def test_while_far_too_much_waits_for_broken_disk_logs_none_may_write(
    one_broken: tuple[ProducerCluster, list[str]],
) -> None:
    cluster, _ = one_broken
    with cluster.batch():  # refuses nothing before it is over
        assert not _refused(cluster, 0, 15)
    assert cluster.bucket.vbuckets[0].data.persistence.unwritten_bytes >= 15_000
    refused = _refused(cluster, 1, 10)
    assert len(refused) == 10
    assert all("vb_0.log" in text for text in refused)


def test_writes_go_on_as_soon_as_the_background_wrote(
    open_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after 64 that were refused without need."""
    cluster = open_cluster(folder, checkpoint_quota_bytes=40_000)
    bucket = cluster.bucket
    assert bucket.writes.flusher is not None
    # All of the quota waits for the disk, nobody writes himself.
    monkeypatch.setattr(bucket.writes.flusher, "_most_bytes", 1_000_000)
    _write_until_refused(cluster)
    with pytest.raises(RefusedError, match="checkpoints take"):
        cluster.set(b"k", b"1")
    _write_in_background(cluster)
    assert cluster.set(b"k", b"1").seqno == cluster.high_seqno(0)


def test_the_thread_ends_also_where_the_folder_cannot_be_written(
    open_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = open_cluster(folder)
    write(cluster, b"a")
    _write_in_background(cluster)
    flusher = cluster.bucket.writes.flusher
    assert flusher is not None
    (thread,) = flusher._thread._threads
    real = BucketStorage.close

    def failing(storage: BucketStorage, *held: object) -> None:
        real(storage, *held)  # type: ignore[arg-type]
        raise OSError("full")

    monkeypatch.setattr(BucketStorage, "close", failing)
    with pytest.raises(OSError, match="full"):
        cluster.bucket.close()
    assert not thread.is_alive()


def test_a_start_that_takes_too_long_ends_its_thread_before_the_folder_is_another_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(*_: object) -> None:
        await asyncio.Event().wait()

    cluster = ProducerCluster(ClusterSettings(vbuckets=1, data_folder=tmp_path))
    monkeypatch.setattr(ClusterNodes, "open", endless)
    monkeypatch.setattr(loop_thread, "_START_SECONDS", 0.0)
    close, seen = cluster.bucket.close, list[bool]()

    def noted() -> None:
        seen.append(any(each.name == "producer" for each in enumerate_threads()))
        close()

    monkeypatch.setattr(cluster.bucket, "close", noted)
    with pytest.raises(SourceError, match="did not start in 0 seconds"):
        cluster.start()
    assert seen == [False]
    ProducerCluster(ClusterSettings(vbuckets=1, data_folder=tmp_path)).stop()

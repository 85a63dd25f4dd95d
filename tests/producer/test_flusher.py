"""The flusher beside its turns: what it says, what it forgets, what it lets others know."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import enumerate as enumerate_threads

import pytest

from dcp.errors import SourceError
from dcp.producer import loop_thread
from dcp.producer.bucket_storage import BucketStorage
from dcp.producer.cluster import ProducerCluster
from dcp.producer.documents import DocumentError
from dcp.producer.entrance import OwnEntrance
from dcp.producer.pending_write import PendingWrite
from dcp.producer.settings import ClusterSettings
from tests.producer.kept_clusters import write

Open = Callable[..., ProducerCluster]
STUCK = "none may write"


def _no_room(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write_in_background(cluster: ProducerCluster) -> None:
    flusher = cluster.bucket.flusher
    assert flusher is not None
    asyncio.run(flusher._write(cluster.bucket.vbuckets[0]))


def _write_until_refused(cluster: ProducerCluster) -> None:
    with pytest.raises(DocumentError):
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
    flusher = cluster.bucket.flusher
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


def test_writes_go_on_as_soon_as_the_background_wrote(
    open_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after 64 that were refused without need."""
    cluster = open_cluster(folder, checkpoint_quota_bytes=40_000)
    bucket = cluster.bucket
    assert bucket.flusher is not None
    # All of the quota waits for the disk, nobody writes himself.
    monkeypatch.setattr(bucket.flusher, "_most_bytes", 1_000_000)
    _write_until_refused(cluster)
    with pytest.raises(DocumentError, match="checkpoints take"):
        cluster.set(b"k", b"1")
    _write_in_background(cluster)
    assert cluster.set(b"k", b"1").seqno == cluster.high_seqno(0)


def test_the_thread_ends_also_where_the_folder_cannot_be_written(
    open_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = open_cluster(folder)
    write(cluster, b"a")
    _write_in_background(cluster)
    flusher = cluster.bucket.flusher
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
    monkeypatch.setattr(OwnEntrance, "open", endless)
    monkeypatch.setattr(loop_thread, "_START_SECONDS", 0.0)
    close, seen = cluster.bucket.close, list[bool]()

    def noted() -> None:
        seen.append(any(each.name == "producer cluster" for each in enumerate_threads()))
        close()

    monkeypatch.setattr(cluster.bucket, "close", noted)
    with pytest.raises(SourceError, match="did not start in 0 seconds"):
        cluster.start()
    assert seen == [False]
    ProducerCluster(ClusterSettings(vbuckets=1, data_folder=tmp_path)).stop()

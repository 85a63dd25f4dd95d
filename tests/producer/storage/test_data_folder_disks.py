"""A bucket in a folder on a disk that is slow, full or fails: who waits, and who is refused."""

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.model.refused_error import RefusedError
from dcp.server.storage import disk_writer
from dcp.server.storage.disk_file import Data, OsFile
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, Status, StreamFlag
from tests.producer.kept_clusters import NEVER, all_told, crash_of, flush_all, is_persisted, write
from tests.producer.raw_client import PATIENCE_SECONDS, RawClient

Connect = Callable[..., RawClient]
Open = Callable[..., ProducerCluster]


def test_writes_go_to_disk_by_themselves(
    make_cluster: Open, open_cluster: Open, connect: Connect, folder: Path
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=0.001)
    client = connect(cluster).log_in()
    write(cluster, b"a", b"b")
    while not is_persisted(client, 2):
        pass
    again = open_cluster(crash_of(cluster, folder, "crashed"))
    assert again.get(b"b").value == b'"v"'


def test_clients_are_told_what_is_on_disk(
    make_cluster: Open, connect: Connect, folder: Path
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=NEVER)
    write(cluster, b"a", b"b")
    flush_all(cluster)
    write(cluster, b"c")
    client = connect(cluster).log_in().open_dcp()
    uuid = cluster.failover_log(0).current_uuid
    observed = client.ok(m.ObserveSeqno(uuid), Opcode.OBSERVE_SEQNO)
    assert observed == m.ObserveSeqnoAnswer(0, 0, uuid, 2, 3)
    assert [is_persisted(client, seqno) for seqno in (2, 3)] == [True, False]
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
            assert self.may_go_on.wait(PATIENCE_SECONDS)
            write(file, *arguments)

        monkeypatch.setattr(OsFile, name, slow)


def test_nobody_waits_for_a_slow_disk(
    make_cluster: Open, connect: Connect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=0.001)
    client = connect(cluster).log_in().open_dcp()
    disk = _SlowDisk(monkeypatch)
    write(cluster, b"a")
    assert disk.is_reached.wait(PATIENCE_SECONDS)
    write(cluster, b"b")
    client.request_stream(0)
    assert client.messages_to(2)
    assert not is_persisted(client, 1)
    disk.may_go_on.set()
    while not is_persisted(client, 2):
        pass
    assert cluster.persisted_seqno(0) == 2


def test_a_fork_waits_for_the_write_that_runs(
    make_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=0.001)
    disk = _SlowDisk(monkeypatch)
    write(cluster, b"a")
    assert disk.is_reached.wait(PATIENCE_SECONDS)
    write(cluster, b"b")
    disk.may_go_on.set()
    with cluster.bucket.lock:
        cluster.bucket.vbuckets[0].crash(lost_seqnos=1)
    assert (cluster.high_seqno(0), cluster.persisted_seqno(0)) == (1, 1)
    write(cluster, b"c")
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
    monkeypatch.setattr(disk_writer, "_LEAST_REPLACED_BYTES", 20_000)
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=0.001)
    client = connect(cluster).log_in().open_dcp(window=2000)
    write(cluster, b"first", value=b"x" * 1500)
    while not is_persisted(client, 1):
        pass
    disk = _SlowDisk(monkeypatch, "replace")
    for n in range(2, 42):
        write(cluster, b"k", value=b"x" * 1000)
        if disk.is_reached.is_set():
            break
        while not is_persisted(client, n) and not disk.is_reached.is_set():
            pass
    assert disk.is_reached.wait(PATIENCE_SECONDS)
    high = cluster.high_seqno(0)
    cluster.bucket.vbuckets[0].data.checkpoints.expel()
    client.request_stream(0)
    assert isinstance(marker := client.message(), m.SnapshotMarker)
    assert isinstance(client.message(), m.Mutation)
    write(cluster, b"last")
    assert not is_persisted(client, high + 1)
    disk.may_go_on.set()
    while not is_persisted(client, high + 1):
        pass
    client.ack(5000)
    newest = client.message()
    assert isinstance(newest, m.Mutation)
    assert (newest.key, newest.by_seqno) == (b"\0k", marker.end)
    cluster.stop()
    assert all_told(open_cluster(folder)) == all_told(cluster)


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
    write(cluster, b"a")
    while not is_persisted(client, 1):
        pass
    assert failures == []
    cluster.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "vbucket 0: cannot write to disk; the flusher tries again: disk full",
        "vbucket 0: writes reach the disk again",
    ]


def test_a_compaction_that_cannot_be_written_keeps_nothing_from_the_disk(
    make_cluster: Open,
    connect: Connect,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There is room for what is appended, not for a copy of the log."""
    monkeypatch.setattr(disk_writer, "_LEAST_REPLACED_BYTES", 10_000)
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
            write(cluster, b"k", value=b"x" * 1000)
            while not is_persisted(client, n):
                pass

    write_until(1)
    with monkeypatch.context() as patched:
        patched.setattr(OsFile, "replace", failing)
        write_until(60)
    assert attempts == 1  # until the compactor's turn
    assert "vbucket 0: cannot compact the disk log, which stays as it is: [Errno 28]" in caplog.text
    assert "vb_0.log" in caplog.text
    size = cluster.bucket.vbuckets[0].data.disk.size_bytes
    assert cluster.remove_stale() > size // 2
    assert cluster.get(b"k").seqno == 60
    cluster.stop()
    assert all_told(make_cluster(vbuckets=1, data_folder=folder)) == all_told(cluster)


def test_an_ordered_compaction_that_fails_says_so(
    open_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_writer, "_LEAST_REPLACED_BYTES", 1)
    cluster = open_cluster(folder)
    for n in range(10):
        write(cluster, b"k", value=b"%d" % n)
    flush_all(cluster)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _no_room)
        with pytest.raises(OSError, match=f"No space left on device.*{folder}/vb_0.log"):
            cluster.remove_stale()
    write(cluster, b"k")
    flush_all(cluster)
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
        assert data.persistence.unwritten_bytes < 10_000
    assert data.disk.persisted_seqno > 80


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
    document = m.Store(b"\0k", b"x" * 1000)
    write(cluster, b"first")
    flush_all(cluster)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _no_room)
        answers = [client.call(document, Opcode.SET).status for _ in range(20)]
        refused = answers.index(Status.ETMPFAIL)
        assert 0 < refused < 10
        assert set(answers[refused:]) == {Status.ETMPFAIL}
        assert client.call(m.KeyOnly(b"\0k"), Opcode.GET).status == Status.SUCCESS
        assert cluster.high_seqno(0) == 1 + refused
        with pytest.raises(RefusedError, match=r"too much waits for the disk: .*vb_0\.log"):
            cluster.set(b"k", b"{}")
    text = "vbucket 0: cannot write to disk, writes to vbucket 0 are refused: "
    assert f"{text}[Errno {errno.ENOSPC}]" in caplog.text
    while client.call(document, Opcode.SET).status != Status.SUCCESS:
        pass  # the log is tried again when a second is over
    assert cluster.persisted_seqno(0) >= 1 + refused


def test_a_file_of_mostly_old_versions_is_compacted(
    make_cluster: Open,
    connect: Connect,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk_writer, "_LEAST_REPLACED_BYTES", 20_000)
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=0.001)
    client = connect(cluster).log_in()
    for n in range(1, 101):
        cluster.set(b"k", b"x" * 1000)
        while not is_persisted(client, n):
            pass
    size = (folder / "vb_0.log").stat().st_size
    assert size < 60_000
    cluster.stop()
    assert cluster.get(b"k").seqno == 100

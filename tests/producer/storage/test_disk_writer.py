"""One thing at a time is written of a log: what stays begun, what is given up, what pays."""

from collections.abc import Callable

import pytest

from dcp.server.storage import disk_writer
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.storage.disk_writer import DiskWriter
from dcp.server.storage.pending_write import PendingWrite
from tests.producer.disk_items import item, items, seqnos_of


@pytest.fixture
def store() -> VbucketStore:
    return VbucketStore(MemoryFile(), 0)


@pytest.fixture
def writer(store: VbucketStore) -> DiskWriter:
    return DiskWriter(store, 0)


def _compact(writer: DiskWriter, *, leaves_nothing: bool = True, before_seconds: int = 0) -> bool:
    """Whether a compaction was begun."""
    writer.begin_compaction(before_seconds, lambda: b"new", leaves_nothing=leaves_nothing)
    return writer.pending is not None


def test_a_batch_that_cannot_be_written_stays_begun(
    store: VbucketStore, writer: DiskWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.begin_batch(items([1, 2]), b"state", [1])
    begun = writer.pending
    with monkeypatch.context() as patched:
        patched.delattr(MemoryFile, "append")
        with pytest.raises(AttributeError):
            writer.finish()
    assert writer.pending is begun
    assert store.persisted_seqno == 0
    assert not writer.finish()
    assert (writer.pending, store.persisted_seqno, store.state) == (None, 2, b"state")


def test_a_compaction_that_cannot_be_written_is_given_up(
    store: VbucketStore, writer: DiskWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not tried in passing again, only when somebody means it."""
    monkeypatch.setattr(disk_writer, "_LEAST_REPLACED_BYTES", 1)
    store.write([item(1, size=900), item(2, 1)], b"")
    assert writer.is_mostly_replaced
    assert _compact(writer)
    with monkeypatch.context() as patched:
        patched.delattr(MemoryFile, "replace")
        assert not writer.finish()
    assert (writer.pending, writer.is_mostly_replaced, store.generation) == (None, False, 1)
    assert _compact(writer)
    assert writer.finish()
    assert (store.generation, store.state, seqnos_of(store)) == (2, b"new", [2])
    assert not writer.is_mostly_replaced


def test_small_disk_logs_are_left_alone_unless_nothing_is_to_be_left(
    store: VbucketStore, writer: DiskWriter
) -> None:
    store.write([item(1), item(2, 1)], b"")
    assert not writer.is_mostly_replaced
    assert not _compact(writer, leaves_nothing=False)
    with store.scan(0, each_key_once=True):
        assert not _compact(writer)
    assert _compact(writer)


def test_tombstones_pay_too(
    store: VbucketStore, writer: DiskWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_writer, "_LEAST_REPLACED_BYTES", 1)
    store.write([item(1, deleted_at=5, size=900), item(2)], b"")
    assert not _compact(writer, before_seconds=5)
    assert _compact(writer, before_seconds=6)
    writer.finish()
    assert (store.purge_seqno, seqnos_of(store)) == (1, [2])


@pytest.mark.parametrize("how", ["end", "finish", "complete", "give_up"])
def test_what_is_abandoned_is_not_held_either(how: str) -> None:
    done: list[str] = []
    write = PendingWrite(
        lambda: done.append("written"), lambda: done.append("held"), lambda: done.append("undone")
    )
    write.abandon()
    getattr(write, how)()
    assert (done, write.is_over) == ([], True)


def test_what_is_abandoned_is_never_written(store: VbucketStore, writer: DiskWriter) -> None:
    writer.begin_batch(items([1]), b"", [])
    begun = writer.pending
    assert begun is not None
    writer.abandon()
    begun.run()
    assert (store.size_bytes, writer.pending) == (0, None)
    assert VbucketStore(MemoryFile(), 0).persisted_seqno == 0


@pytest.mark.parametrize("end", [PendingWrite.finish, PendingWrite.end, PendingWrite.give_up])
@pytest.mark.parametrize("fails_before", [False, True])
def test_nobody_is_told_of_what_was_abandoned(
    end: Callable[[PendingWrite], None], fails_before: bool
) -> None:
    done: list[str] = []

    def write() -> None:
        raise OSError("no room")

    def note(what: str) -> Callable[[], None]:
        return lambda: done.append(what)

    pending = PendingWrite(write, note("apply"), note("undo"), is_optional=True)
    if fails_before:
        with pytest.raises(OSError, match="no room"):
            pending.run()
    pending.abandon()
    end(pending)
    assert (done, pending.is_over) == ([], True)


def test_what_was_written_is_not_abandoned() -> None:
    done: list[str] = []
    pending = PendingWrite(lambda: done.append("write"), lambda: done.append("apply"))
    pending.run()
    pending.abandon()
    pending.run()
    assert done == ["write"]

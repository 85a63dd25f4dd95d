"""The one way of all that is written of a log, and what becomes of each kind that cannot be."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from gc import collect
from threading import Event
from weakref import ref

import pytest

from dcp.server.storage.disk_file import Data, MemoryFile
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.storage.pending_write import PendingWrite
from tests.producer.disk_items import item, items, told


class Disk(MemoryFile):
    """Refuses so many writes, and counts all."""

    refuses = 0
    writes = 0

    def append(self, offset: int, parts: Iterable[Data]) -> None:
        self._count()
        super().append(offset, parts)

    def replace(self, parts: Iterable[Data]) -> None:
        self._count()
        super().replace(parts)

    def _count(self) -> None:
        self.writes += 1
        if self.refuses:
            self.refuses -= 1
            raise OSError("disk full")


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def store(disk: Disk) -> VbucketStore:
    store = VbucketStore(disk, 0)
    store.write([item(1), item(2, 1)], b"state")
    disk.writes = 0
    return store


KINDS: dict[str, Callable[[VbucketStore], PendingWrite]] = {
    "items": lambda store: store.begin(items([3]), b"new"),
    "the state alone": lambda store: store.begin([], b"new"),
    "the log anew": lambda store: store.begin_compaction(0, b"new"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_held_when_that_is_known(kind: str, store: VbucketStore) -> None:
    before, write = told(store), KINDS[kind](store)
    write.run()
    assert (told(store), write.is_over) == (before, False)
    write.end()
    after = told(store)
    assert (store.state, write.is_over) == (b"new", True)
    write.finish()
    write.give_up()
    assert told(store) == after


@pytest.mark.parametrize(("kind", "writes"), [("items", 2), ("the state alone", 2),
                                              ("the log anew", 1)])  # fmt: skip
def test_what_must_be_written_is_tried_again_the_disk_log_anew_is_not(
    kind: str, writes: int, store: VbucketStore, disk: Disk
) -> None:
    before, write = told(store), KINDS[kind](store)
    disk.refuses = 1
    with pytest.raises(OSError, match="disk full"):
        write.finish()
    assert (told(store), write.is_over) == (before, False)
    with pytest.raises(ValueError, match="a batch is being written: finish it first"):
        store.write([], b"other")
    if write.is_optional:
        with pytest.raises(OSError, match="disk full"):
            write.finish()
    else:
        write.finish()
    assert (disk.writes, write.is_over) == (writes, not write.is_optional)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_refused", [False, True], ids=["never run", "refused"])
def test_without_what_was_given_up_the_disk_log_goes_on(
    kind: str, is_refused: bool, store: VbucketStore, disk: Disk
) -> None:
    before, write = told(store), KINDS[kind](store)
    disk.refuses = int(is_refused)
    if is_refused:
        with pytest.raises(OSError, match="disk full"):
            write.complete()
    else:
        write.end()
    assert (told(store), write.is_over) == (before, True)
    KINDS[kind](store).complete()
    assert store.state == b"new"
    assert told(VbucketStore(disk, 0)) == told(store)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_abandoned_is_neither_written_nor_held(
    kind: str, store: VbucketStore, disk: Disk
) -> None:
    before, write = told(store), KINDS[kind](store)
    write.abandon()
    for step in (write.run, write.finish, write.end, write.give_up):
        step()
    assert (told(store), disk.writes, write.is_over) == (before, 0, True)


def test_who_finishes_waits_for_the_thread_that_writes() -> None:
    begun, may_end, steps = Event(), Event(), list[str]()

    def write() -> None:
        begun.set()
        assert may_end.wait(30)
        steps.append("written")

    pending = PendingWrite(write, lambda: steps.append("held"))
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(pending.run)
        assert begun.wait(30)
        finishing = threads.submit(pending.finish)
        may_end.set()
        running.result()
        finishing.result()
    assert steps == ["written", "held"]


@pytest.mark.parametrize("way", ["complete", "give_up", "abandon"])
def test_what_is_over_holds_nothing_of_what_was_to_be_written(way: str) -> None:
    """A log keeps its last write: with 1,024 vbuckets that would be a batch of each."""

    def work() -> None:
        """Have, like a batch that is written, what was to be written."""

    write, had = PendingWrite(work, work, work), ref(work)
    del work
    getattr(write, way)()
    collect()
    assert had() is None

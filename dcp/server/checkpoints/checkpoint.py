"""One checkpoint: queued items of one snapshot in seqno order, each key at most once.

What may not be replaced, or replace another, must come in the next checkpoint where the key is here
already: so it is with sync writes, whose prepares, commits and aborts are all told, and with what a
reader was shown and has not had yet: a snapshot that was announced is given as it was then. In
buckets that retain history nothing may be replaced.

An ``OpenCheckpoint`` takes items; ``close`` makes a ``Checkpoint`` of it, to which nothing can be
added. Both can be read from any seqno on, and give up their oldest items (expel). Positions are
seqnos, so no reader is moved when an item goes away: every reader gets the new version, whether it
had the replaced one or not, because the new one has the higher seqno.

The open one has a key index. A replaced item leaves a hole; holes are squeezed out when they
outnumber the items, so that adding costs O(1) amortised. DISK checkpoints have no index and no
holes: they are received from a disk that holds each key once (kv_engine
``engines/ep/src/checkpoint.cc``, ``Checkpoint::queueDirty``).
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

from dcp.types import SnapshotRange

ITEM_OVERHEAD_BYTES: Final = 128
"""What a queued item costs besides itself: two list places, and its entry in the key index."""

_FEW_HOLES: Final = 32


class QueuedItem(Protocol):
    """An item of a checkpoint; none of these facts may change while it is queued."""

    @property
    def seqno(self) -> int:
        """The item's seqno."""

    @property
    def dedup_key(self) -> Hashable | None:
        """The key within which a newer item replaces it; None if no item ever does."""

    @property
    def is_deduplicated(self) -> bool:
        """True if items of its key of the same kind may replace it, and it may replace them."""

    @property
    def size_bytes(self) -> int:
        """The memory that the item itself takes."""


Q = TypeVar("Q", bound=QueuedItem)


class CheckpointKind(Enum):
    """The source of a checkpoint's items."""

    MEMORY = "memory"
    DISK = "disk"
    """A disk snapshot that a replica received."""


@dataclass(frozen=True, slots=True)
class CheckpointHead:
    """The facts of a checkpoint that are fixed when it begins.

    ``begins_after``: the vbucket's high seqno when it was begun; every item is above.
    ``snapshot_start``: where the snapshot starts, by the active or by the received marker.
    ``is_received``: True if it began with a marker, not on an active vbucket.
    """

    id: int
    kind: CheckpointKind
    begins_after: int
    snapshot_start: int
    is_received: bool = False


class Checkpoint(Generic[Q]):
    """Items that can be read and expelled. ``snapshot_end`` may lie above the last of them.

    ``expelled_seqno``: this one and all below it have left memory.
    """

    def __init__(
        self, head: CheckpointHead, snapshot_end: int, expelled_seqno: int, items: Iterable[Q]
    ) -> None:
        self.head = head
        self.snapshot_end = snapshot_end
        self.expelled_seqno = expelled_seqno
        self._items: list[Q | None] = list(items)
        self._seqnos = [item.seqno for item in self._items if item is not None]
        self.item_count = len(self._items)
        self.memory_bytes = sum(_memory_of(item) for item in self._items if item is not None)
        self.high_seqno = self._seqnos[-1] if self._seqnos else expelled_seqno
        """The newest seqno that was ever added; the one before the checkpoint while none was."""

    def after(self, seqno: int) -> tuple[Q, ...]:
        """Return the items above ``seqno``, in seqno order."""
        first = bisect_right(self._seqnos, seqno)
        return tuple(filter(None, self._items[first:]))

    def between(self, after_seqno: int, end_seqno: int, most_items: int) -> list[Q]:
        """Return the first items above a seqno, up to another: none only where there are none."""
        first = bisect_right(self._seqnos, after_seqno)
        last = bisect_right(self._seqnos, end_seqno, first)
        found: list[Q] = []
        while not found and first < last:
            stop = min(first + most_items, last)
            found = [item for item in self._items[first:stop] if item is not None]
            first = stop
        return found

    def expel(self, up_to_seqno: int) -> int:
        """Forget the items up to a seqno; return the bytes that this frees."""
        count = bisect_right(self._seqnos, up_to_seqno)
        gone = [item for item in self._items[:count] if item is not None]
        if not gone:
            return 0
        del self._items[:count], self._seqnos[:count]
        self._forget(gone, count)
        self.expelled_seqno = gone[-1].seqno
        self.item_count -= len(gone)
        freed = sum(_memory_of(item) for item in gone)
        self.memory_bytes -= freed
        return freed

    def _forget(self, gone: list[Q], count: int) -> None:
        """Remove the first ``count`` places, at which ``gone`` were."""


class OpenCheckpoint(Checkpoint[Q]):
    """The checkpoint that items are added to.

    ``received_end``: the end of the marker that it was received with; None on an active, whose
    snapshot ends at its high seqno. ``shown``: up to which seqno each reader, by name, was shown
    what it has not had all of.
    """

    def __init__(self, head: CheckpointHead, received_end: int | None = None) -> None:
        end = head.begins_after if received_end is None else received_end
        super().__init__(head, end, head.begins_after, ())
        self.shown: dict[str, int] = {}
        self._places: dict[Hashable, int] = {}
        self._first_place = 0

    def add(self, item: Q, *, replaces: bool = True, keeps_both: bool = False) -> bool:
        """Add the newest item; an older one of its key goes away where it ``replaces``.

        Where that may not be both stay with ``keeps_both``; else nothing is done, and False said.
        """
        key = item.dedup_key
        if key is not None and self.head.kind is CheckpointKind.MEMORY:
            place = self._places.get(key)
            if place is not None:
                if replaces and self._may_replace(place - self._first_place, item):
                    self._take_out(place - self._first_place)
                elif not keeps_both:
                    return False
            self._places[key] = self._first_place + len(self._items)
        self._items.append(item)
        self.high_seqno = item.seqno
        self._seqnos.append(self.high_seqno)
        self.item_count += 1
        self.memory_bytes += _memory_of(item)
        return True

    def _may_replace(self, index: int, item: Q) -> bool:
        held = self._items[index]
        if held is None:
            raise AssertionError("the key index points at a hole")
        is_awaited = bool(self.shown) and held.seqno <= max(self.shown.values())
        return not is_awaited and held.is_deduplicated and item.is_deduplicated

    def extend(self, bounds: SnapshotRange) -> bool:
        """Take in another received MEMORY snapshot, if it continues this one; return if it does."""
        goes_on = (
            self.head.is_received
            and self.head.kind is CheckpointKind.MEMORY
            and bounds.start <= self.snapshot_end + 1
        )
        if goes_on:
            self.snapshot_end = max(self.snapshot_end, bounds.end)
        return goes_on

    def is_full(self, max_items: int, max_bytes: int) -> bool:
        """Return whether it has reached one of these limits."""
        return self.item_count >= max_items or self.memory_bytes >= max_bytes

    def close(self, snapshot_end: int) -> Checkpoint[Q]:
        """Return the same without a key index and holes, as a snapshot up to ``snapshot_end``."""
        return Checkpoint(self.head, snapshot_end, self.expelled_seqno, self.after(0))

    def _take_out(self, index: int) -> None:
        item = self._items[index]
        if item is None:
            raise AssertionError("the key index points at a hole")
        self.item_count -= 1
        self.memory_bytes -= _memory_of(item)
        if index == len(self._items) - 1:  # the high seqno moves on at once, with the new item
            self._items.pop()
            self._seqnos.pop()
        else:
            self._items[index] = None
            if len(self._items) > 2 * self.item_count + _FEW_HOLES:
                self._squeeze()

    def _squeeze(self) -> None:
        items = self.after(0)
        self._items = list(items)
        self._seqnos = [item.seqno for item in items]
        self._first_place = 0
        self._places = {
            key: place for place, item in enumerate(items) if (key := item.dedup_key) is not None
        }

    def _forget(self, gone: list[Q], count: int) -> None:
        self._first_place += count
        for item in gone:
            if self._places.get(item.dedup_key, self._first_place) < self._first_place:
                del self._places[item.dedup_key]


def _memory_of(item: QueuedItem) -> int:
    return item.size_bytes + ITEM_OVERHEAD_BYTES

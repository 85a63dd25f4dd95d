"""One checkpoint: the queued items of one snapshot in seqno order, each key at most once.

``OpenCheckpoint`` accepts items; its ``close`` returns a ``Checkpoint``, which accepts none.
Source: kv_engine ``engines/ep/src/checkpoint.cc``, ``Checkpoint::queueDirty``.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dcp.server.model.versions import Version, VersionKey
from dcp.types import SnapshotRange

ITEM_OVERHEAD_BYTES: Final = 128
"""Memory of a queued item besides its own: two list entries, and one in the key index."""

_FEW_HOLES: Final = 32
"""Holes that are not worth squeezing out."""


class CheckpointKind(Enum):
    MEMORY = "memory"
    DISK = "disk"
    """A disk snapshot that a replica received. It has each key once, so it needs no key index."""


@dataclass(frozen=True, slots=True)
class CheckpointHead:
    """The facts of a checkpoint that are fixed when it begins."""

    id: int
    kind: CheckpointKind
    begins_after: int
    """The vbucket's high seqno at the beginning; every item lies above."""
    snapshot_start: int
    """Start of the snapshot, by the active vbucket or by the received marker."""
    is_received: bool = False
    """True if a received marker began it, as on a replica."""


class Checkpoint:
    """A closed checkpoint: readers read it from any seqno, and its oldest items can be expelled.

    Readers hold seqnos, not positions, so de-duplication and expelling never move a reader.
    ``snapshot_end`` may lie above the last item. ``expelled_seqno`` and all seqnos below it have
    left memory.
    """

    def __init__(
        self,
        head: CheckpointHead,
        snapshot_end: int,
        expelled_seqno: int,
        items: Iterable[Version],
        *,
        may_repeat: bool = False,
    ) -> None:
        self.head = head
        self.may_repeat = may_repeat
        """True if the snapshot may hold a key twice: it joins parts of two received snapshots."""
        self.snapshot_end = snapshot_end
        self.expelled_seqno = expelled_seqno
        self._items: list[Version | None] = list(items)
        self._seqnos = [item.seqno for item in self._items if item is not None]
        self.item_count = len(self._items)
        self.memory_bytes = sum(_memory_of(item) for item in self._items if item is not None)
        self.high_seqno = self._seqnos[-1] if self._seqnos else expelled_seqno
        """Newest seqno ever added; ``begins_after`` if none was."""

    def after(self, seqno: int) -> tuple[Version, ...]:
        first = bisect_right(self._seqnos, seqno)
        return tuple(filter(None, self._items[first:]))

    def between(self, after_seqno: int, end_seqno: int, most_items: int) -> list[Version]:
        """Return the first items in (``after_seqno``, ``end_seqno``]; empty if there are none."""
        first = bisect_right(self._seqnos, after_seqno)
        last = bisect_right(self._seqnos, end_seqno, first)
        found: list[Version] = []
        # A stretch of ``most_items`` can consist of holes; the next one is read then.
        while not found and first < last:
            stop = min(first + most_items, last)
            found = [item for item in self._items[first:stop] if item is not None]
            first = stop
        return found

    def expel(self, up_to_seqno: int) -> int:
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

    def _forget(self, gone: list[Version], count: int) -> None:
        """Hook: the first ``count`` entries, with ``gone``, have left the list."""


class OpenCheckpoint(Checkpoint):
    """The checkpoint that accepts items; a key index finds an item's older version.

    A replaced item leaves a hole. Holes are squeezed out when they outnumber the items, so adding
    an item costs O(1) amortised.
    """

    def __init__(
        self, head: CheckpointHead, received_end: int | None = None, *, may_repeat: bool = False
    ) -> None:
        """``received_end`` is the end of the received marker; None on an active vbucket."""
        end = head.begins_after if received_end is None else received_end
        super().__init__(head, end, head.begins_after, (), may_repeat=may_repeat)
        # Snapshots that were announced and not yet read: name of the reader, and end of its
        # snapshot. They must stay as announced, so no item up to that end may be replaced.
        self.announced: dict[str, int] = {}
        self._indices: dict[VersionKey, int] = {}
        self._first_index = 0

    def add(self, item: Version, *, replaces: bool = True, keeps_both: bool = False) -> bool:
        """Add the newest item; with ``replaces``, it removes the older item of its key.

        If the older item must stay, the call returns False and adds nothing: the item belongs
        in the next checkpoint. With ``keeps_both`` the item is added beside the older one.
        """
        key = item.dedup_key
        # A disk has each key once, so items of a DISK checkpoint replace nothing.
        if key is not None and self.head.kind is CheckpointKind.MEMORY:
            index = self._indices.get(key)
            if index is not None:
                if replaces and self._may_replace(index - self._first_index, item):
                    self._take_out(index - self._first_index)
                elif not keeps_both:
                    return False
            # Indices count expelled items, too, so expelling changes no entry of the index.
            self._indices[key] = self._first_index + len(self._items)
        self._items.append(item)
        self.high_seqno = item.seqno
        self._seqnos.append(self.high_seqno)
        self.item_count += 1
        self.memory_bytes += _memory_of(item)
        return True

    def _may_replace(self, index: int, item: Version) -> bool:
        older = self._items[index]
        if older is None:
            raise AssertionError("the key index points at a hole")
        # The item was announced to a reader, who must get it as it is.
        is_awaited = bool(self.announced) and older.seqno <= max(self.announced.values())
        return not is_awaited and older.is_deduplicated and item.is_deduplicated

    def extend(self, bounds: SnapshotRange) -> bool:
        """Merge a received MEMORY snapshot that continues this one; return False if it does not."""
        goes_on = (
            self.head.is_received
            and self.head.kind is CheckpointKind.MEMORY
            and bounds.start <= self.snapshot_end + 1
        )
        if goes_on:
            # Each received snapshot has each key once; both together may not.
            self.may_repeat |= bounds.end != self.snapshot_end
            self.snapshot_end = max(self.snapshot_end, bounds.end)
        return goes_on

    def is_full(self, max_items: int, max_bytes: int) -> bool:
        return self.item_count >= max_items or self.memory_bytes >= max_bytes

    def close(self, snapshot_end: int) -> Checkpoint:
        """Return a checkpoint with the same items, as a snapshot up to ``snapshot_end``."""
        return Checkpoint(
            self.head,
            snapshot_end,
            self.expelled_seqno,
            self.after(0),
            may_repeat=self.may_repeat,
        )

    def _take_out(self, index: int) -> None:
        item = self._items[index]
        if item is None:
            raise AssertionError("the key index points at a hole")
        self.item_count -= 1
        self.memory_bytes -= _memory_of(item)
        # No hole is needed: the caller appends a newer item at once.
        if index == len(self._items) - 1:
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
        self._first_index = 0
        self._indices = {
            key: index for index, item in enumerate(items) if (key := item.dedup_key) is not None
        }

    def _forget(self, gone: list[Version], count: int) -> None:
        self._first_index += count
        for item in gone:
            key = item.dedup_key
            if key is not None and self._indices.get(key, self._first_index) < self._first_index:
                del self._indices[key]


def _memory_of(item: Version) -> int:
    return item.size_bytes + ITEM_OVERHEAD_BYTES

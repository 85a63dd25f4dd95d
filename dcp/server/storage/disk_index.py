"""Indexes the items of a vbucket's log: 36 bytes for each, in columns.

Each version knows the seqno that replaced it: it was held at seqno s if seqno <= s < replaced_at.
Rows are in seqno order, which is the order of their frames in the file too.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dcp.server.storage.disk_batch import DiskBatch
from dcp.server.storage.disk_ranges import U64s
from dcp.server.storage.frame_crcs import U32s
from dcp.types import U64_MAX

NEVER: Final = np.uint64(U64_MAX)
"""``replaced_at`` of what is the newest version of its key."""

Rows = slice | npt.NDArray[np.bool_] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Items: their seqnos, where frames start in the file, frame bytes, who replaced them.

    ``deleted`` is 0 for documents, else 1 more than the tombstone's delete time in seconds. The
    CRCs run through all frames of the log (``frame_crcs.py``): of items in a row they are one
    column, ``crcs_before`` a row behind ``crcs_behind``.
    """

    seqnos: U64s
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.uint32]
    replaced_at: U64s
    deleted: npt.NDArray[np.uint32]
    crcs_before: U32s
    crcs_behind: U32s

    @classmethod
    def empty(cls, rows: int) -> "Columns":
        """Return columns with room for ``rows`` items, of which the first is a log's first."""
        crcs = np.zeros(rows + 1, np.uint32)
        return cls(
            np.empty(rows, np.uint64),
            np.empty(rows, np.int64),
            np.empty(rows, np.uint32),
            np.empty(rows, np.uint64),
            np.empty(rows, np.uint32),
            crcs[:-1],
            crcs[1:],
        )

    def __len__(self) -> int:
        return len(self.seqnos)

    def take(self, rows: Rows) -> "Columns":
        """Return some of the items; a slice shares its memory with these."""
        return Columns(
            self.seqnos[rows],
            self.starts[rows],
            self.sizes[rows],
            self.replaced_at[rows],
            self.deleted[rows],
            self.crcs_before[rows],
            self.crcs_behind[rows],
        )

    def put(self, row: int, other: "Columns") -> None:
        """Write other items from ``row`` on, behind those that stand there in the log too."""
        rows = slice(row, row + len(other))
        self.seqnos[rows] = other.seqnos
        self.starts[rows] = other.starts
        self.sizes[rows] = other.sizes
        self.replaced_at[rows] = other.replaced_at
        self.deleted[rows] = other.deleted
        self.crcs_behind[rows] = other.crcs_behind  # also those before the rows that follow


def columns_of(batch: DiskBatch, frames_offset: int) -> Columns:
    """Return a batch's items, not replaced by any; ``frames_offset`` is where its frames are.

    What the first one's CRC goes on from is known where they are put.
    """
    items = Columns.empty(len(batch.seqnos))
    items.seqnos[:] = batch.seqnos
    items.starts[:1] = frames_offset
    np.cumsum(batch.sizes[:-1], out=items.starts[1:], dtype=np.int64)
    items.starts[1:] += frames_offset
    items.sizes[:] = batch.sizes
    items.replaced_at[:] = NEVER
    items.deleted[:] = 0
    tombstones = np.searchsorted(batch.seqnos, batch.tombstones)
    items.deleted[tombstones] = batch.delete_times + np.uint64(1)
    if len(batch.crcs):
        items.crcs_behind[:] = batch.crcs
    return items


def find(held: U64s, seqnos: U64s) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return for each seqno a row, and whether that row of the ascending ``held`` has it.

    ``held`` must not be empty.
    """
    rows = np.minimum(np.searchsorted(held, seqnos), len(held) - 1)
    return rows, held[rows] == seqnos


class ItemIndex:
    """The items of a log, which grow at their end.

    ``live_count`` and ``live_bytes`` are of the items that none replaced, tombstones included.
    Columns that were handed out never change in what they say about seqnos up to their last one.
    """

    def __init__(self, columns: Columns | None = None) -> None:
        self._columns = Columns.empty(0) if columns is None else columns
        self._count = len(self._columns)
        live = self.columns.replaced_at == NEVER
        self.live_count = int(np.count_nonzero(live))
        self.live_bytes = int(self.columns.sizes[live].sum(dtype=np.int64))

    @property
    def columns(self) -> Columns:
        """All items."""
        return self._columns.take(slice(self._count))

    def append(self, items: Columns) -> None:
        """Add items above all others."""
        needed = self._count + len(items)
        if needed > len(self._columns):
            # An eighth more: a copy now and then, and never much room that nothing fills.
            grown = Columns.empty(max(needed, len(self._columns) * 9 // 8))
            grown.put(0, self.columns)
            self._columns = grown
        self._columns.put(self._count, items)
        self._count = needed
        self.live_count += len(items)
        self.live_bytes += int(items.sizes.sum(dtype=np.int64))

    def replace(self, replaced: U64s, replacing: U64s) -> None:
        """Note what replaced which seqnos; of those that are not here nothing is noted."""
        if not len(replaced):
            return
        rows, found = find(self.columns.seqnos, replaced)
        rows = rows[found]
        self._columns.replaced_at[rows] = replacing[found]
        self.live_count -= len(rows)
        self.live_bytes -= int(self._columns.sizes[rows].sum(dtype=np.int64))

    def between(self, after: int, end: int) -> Columns:
        """Return the items with after < seqno <= end."""
        seqnos = self.columns.seqnos
        first = int(np.searchsorted(seqnos, np.uint64(after), side="right"))
        last = int(np.searchsorted(seqnos, np.uint64(end), side="right"))
        return self._columns.take(slice(first, max(first, last)))

    def crc_behind(self, seqno: int) -> int:
        """Return the CRC behind the last item up to a seqno; 0 where there is none."""
        crcs = self.between(0, seqno).crcs_behind
        return int(crcs[-1]) if len(crcs) else 0

    def cut(self, seqno: int) -> "ItemIndex":
        """Return an index without what is above ``seqno``; what that replaced is live again."""
        kept = Columns.empty(len(self.between(0, seqno)))
        kept.put(0, self.between(0, seqno))
        kept.replaced_at[kept.replaced_at > np.uint64(seqno)] = NEVER
        return ItemIndex(kept)

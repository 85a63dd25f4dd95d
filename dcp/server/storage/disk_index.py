"""Indexes the items of a vbucket's disk log, in columns of 36 bytes per item.

A version is current at seqno s if seqno <= s < replaced_at. Rows are in seqno order, which is also
the order of the frames in the file.
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
"""``replaced_at`` of the newest version of a key."""

Rows = slice | npt.NDArray[np.bool_] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """One row per item."""

    seqnos: U64s
    starts: npt.NDArray[np.int64]
    """Offset of each frame in the file."""
    sizes: npt.NDArray[np.uint32]
    """Bytes of each frame."""
    replaced_at: U64s
    deleted: npt.NDArray[np.uint32]
    """0 for documents; for tombstones the delete time in seconds, plus 1."""
    crcs_before: U32s
    """Running CRC before each frame: the array of ``crcs_behind``, one row later."""
    crcs_behind: U32s
    """Running CRC behind each frame (``frame_crcs.py``)."""

    @classmethod
    def empty(cls, rows: int) -> "Columns":
        """Return uninitialized columns; the first row is the first frame of a disk log."""
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
        """Return some rows; the result of a slice shares its memory."""
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
        """Overwrite rows from ``row`` on; ``other`` follows the row before in the disk log."""
        rows = slice(row, row + len(other))
        self.seqnos[rows] = other.seqnos
        self.starts[rows] = other.starts
        self.sizes[rows] = other.sizes
        self.replaced_at[rows] = other.replaced_at
        self.deleted[rows] = other.deleted
        # This also sets ``crcs_before`` of the next rows.
        self.crcs_behind[rows] = other.crcs_behind


def columns_of(batch: DiskBatch, frames_offset: int) -> Columns:
    """Return a batch's items as current rows; its frames begin at ``frames_offset`` of the file.

    ``crcs_before`` of the first row is set only by ``put``.
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


def find(known: U64s, seqnos: U64s) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return for each seqno its row in ``known``, and a mask of those that ``known`` has.

    ``known`` must ascend and not be empty.
    """
    rows = np.minimum(np.searchsorted(known, seqnos), len(known) - 1)
    return rows, known[rows] == seqnos


class ItemIndex:
    """The growing index of one disk log.

    Columns that were handed out stay valid: for seqnos up to their last one they never change.
    """

    def __init__(self, columns: Columns | None = None) -> None:
        self._columns = Columns.empty(0) if columns is None else columns
        self._count = len(self._columns)
        current = self.columns.replaced_at == NEVER
        self.current_count = int(np.count_nonzero(current))
        """Number of items that no other replaced, tombstones included."""
        self.current_bytes = int(self.columns.sizes[current].sum(dtype=np.int64))

    @property
    def columns(self) -> Columns:
        return self._columns.take(slice(self._count))

    def append(self, items: Columns) -> None:
        needed = self._count + len(items)
        if needed > len(self._columns):
            # Growing by an eighth keeps copies rare and unused memory small.
            grown = Columns.empty(max(needed, len(self._columns) * 9 // 8))
            grown.put(0, self.columns)
            self._columns = grown
        self._columns.put(self._count, items)
        self._count = needed
        self.current_count += len(items)
        self.current_bytes += int(items.sizes.sum(dtype=np.int64))

    def replace(self, replaced: U64s, replacing: U64s) -> None:
        """Set ``replaced_at`` of the ``replaced`` seqnos; seqnos that are not here are ignored."""
        if not len(replaced):
            return
        rows, found = find(self.columns.seqnos, replaced)
        rows = rows[found]
        self._columns.replaced_at[rows] = replacing[found]
        self.current_count -= len(rows)
        self.current_bytes -= int(self._columns.sizes[rows].sum(dtype=np.int64))

    def between(self, after: int, end: int) -> Columns:
        """Return the items with after < seqno <= end."""
        seqnos = self.columns.seqnos
        first = int(np.searchsorted(seqnos, np.uint64(after), side="right"))
        last = int(np.searchsorted(seqnos, np.uint64(end), side="right"))
        return self._columns.take(slice(first, max(first, last)))

    def crc_behind(self, seqno: int) -> int:
        """Return the running CRC after the last item up to ``seqno``; 0 if there is none."""
        crcs = self.between(0, seqno).crcs_behind
        return int(crcs[-1]) if len(crcs) else 0

    def cut(self, seqno: int) -> "ItemIndex":
        """Return a new index up to ``seqno``; items that only lost items had replaced are current
        again.
        """
        # A copy: open scans still read the old columns.
        kept = Columns.empty(len(self.between(0, seqno)))
        kept.put(0, self.between(0, seqno))
        kept.replaced_at[kept.replaced_at > np.uint64(seqno)] = NEVER
        return ItemIndex(kept)

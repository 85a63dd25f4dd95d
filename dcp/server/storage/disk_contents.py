"""The contents of a vbucket's disk log, built from its batches.

No I/O happens here. So applying the same batches gives the same contents, when they are written and
when they are read after a restart.
"""

from array import array
from bisect import bisect_right
from itertools import pairwise

import numpy as np

from dcp.server.storage.disk_batch import DiskBatch
from dcp.server.storage.disk_index import NEVER, ItemIndex, columns_of, find
from dcp.server.storage.disk_ranges import CompactedRanges


class Contents:
    """The items, disk snapshots and state of one disk log."""

    def __init__(self) -> None:
        self.state = b""
        self.purge_seqno = 0
        self.index = ItemIndex()
        self.snapshot_ends = array("Q")
        """Last seqno of each disk snapshot since the last compaction, ascending."""
        self.compacted = CompactedRanges()
        """Seqnos to which no rollback is possible, as compaction dropped versions."""
        self.completed = array("Q")
        """Prepares since the last compaction that the items at ``completing`` completed."""
        self.completing = array("Q")
        """Ascending."""
        self.frame_bytes = 0
        """Frames in the file, including those that were replaced or lost."""

    @property
    def persisted_seqno(self) -> int:
        """The disk log is complete up to this seqno; 0 if it is empty."""
        return self.snapshot_ends[-1] if self.snapshot_ends else 0

    @property
    def replaced_bytes(self) -> int:
        """Bytes of frames in the file that were replaced or lost."""
        return self.frame_bytes - self.index.current_bytes

    def apply(self, batch: DiskBatch, offset: int) -> None:
        if batch.keep_up_to < self.persisted_seqno:
            self._cut(batch.keep_up_to)
        if len(batch.seqnos):
            self.index.append(columns_of(batch, offset + batch.frames_at))
            self.index.replace(batch.replaced, batch.replacing)
            self.completed.extend(batch.completed.tolist())
            self.completing.extend(batch.completing.tolist())
        self.snapshot_ends.extend(batch.inner_ends.tolist())
        if batch.snapshot_end > self.persisted_seqno:
            self.snapshot_ends.append(batch.snapshot_end)
        if batch.purge_seqno:
            self.purge_seqno = batch.purge_seqno
        if len(batch.compacted):
            self.compacted = batch.compacted
        self.state = batch.state or self.state
        self.frame_bytes += batch.data_bytes

    def check(self, batch: DiskBatch) -> None:
        """Raise ValueError if the batch does not continue this disk log.

        Seqnos and snapshot ends must ascend from above the persisted seqno. Each replaced seqno
        must be a current item.
        """
        seqnos, persisted = batch.seqnos, self.persisted_seqno
        if batch.snapshot_end < persisted:
            raise ValueError(
                f"found snapshot end {batch.snapshot_end}, expected {persisted} or more"
            )
        ends = [persisted, *batch.inner_ends.tolist(), batch.snapshot_end]
        if len(ends) > 2 and any(end <= before for before, end in pairwise(ends)):
            raise ValueError(
                f"found snapshot ends {ends[1:]}, expected some that ascend from above {persisted}"
            )
        if not len(seqnos):
            return
        if int(seqnos[0]) <= persisted:
            raise ValueError(f"found seqno {seqnos[0]}, expected more than {persisted}")
        falls = np.flatnonzero(seqnos[1:] <= seqnos[:-1])
        if len(falls):
            where = int(falls[0])
            raise ValueError(
                f"found seqno {seqnos[where + 1]} after {seqnos[where]}, "
                "expected seqnos that ascend"
            )
        if int(seqnos[-1]) > batch.snapshot_end or seqnos[-1] == NEVER:
            raise ValueError(
                f"found seqno {seqnos[-1]}, expected at most snapshot end {batch.snapshot_end} "
                f"and less than {NEVER}"
            )
        if len(batch.replaced):
            self._check_replaced(batch)

    def _check_replaced(self, batch: DiskBatch) -> None:
        replaced, items = batch.replaced, self.index.columns
        _, is_known = find(batch.seqnos, replaced)
        if len(items):
            rows, found = find(items.seqnos, replaced)
            is_known |= found & (items.replaced_at[rows] == NEVER)
            # A purged tombstone is gone, but the next version of its key still names it.
            is_known |= ~found & (replaced <= np.uint64(self.purge_seqno))
        order = np.argsort(replaced)
        is_known[order[1:]] &= replaced[order[1:]] != replaced[order[:-1]]
        bad = np.flatnonzero(~is_known | (replaced >= batch.replacing))
        if len(bad):
            where = int(bad[0])
            raise ValueError(
                f"seqno {batch.replacing[where]} replaces seqno {replaced[where]}, "
                "expected the newest version of a key in this store"
            )

    def can_cut(self, seqno: int) -> bool:
        """Return True if every version that was current at ``seqno`` is still here."""
        return seqno >= self.purge_seqno and not self.compacted.covers(seqno)

    def can_cut_within(self, first_seqno: int, end_seqno: int) -> bool:
        """Return True if ``can_cut`` holds for some seqno of [first, end)."""
        first = max(first_seqno, self.purge_seqno)
        return first < end_seqno and not self.compacted.cover_all(first, end_seqno)

    def _cut(self, seqno: int) -> None:
        del self.snapshot_ends[bisect_right(self.snapshot_ends, seqno) :]
        self.index = self.index.cut(seqno)
        self.compacted = self.compacted.cut(seqno)
        left = bisect_right(self.completing, seqno)
        del self.completed[left:], self.completing[left:]
        # An empty disk log has nothing that a purge or compaction could have taken.
        if not seqno:
            self.purge_seqno, self.compacted = 0, CompactedRanges()

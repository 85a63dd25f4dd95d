"""The contents of a vbucket's log, built batch by batch when written or read again.

No I/O happens here, so that a store that was opened anew is what it was before.
"""

from array import array
from bisect import bisect_right
from itertools import pairwise

import numpy as np

from dcp.server.storage.disk_batch import DiskBatch
from dcp.server.storage.disk_index import NEVER, ItemIndex, columns_of, find
from dcp.server.storage.disk_ranges import LostRanges


class Contents:
    """The items, disk snapshots and newest state of a log.

    ``snapshot_ends`` are the last seqnos of the disk snapshots since the last compaction, each of
    which begins after the one before it. ``lost`` are the seqnos to which there is no way back.
    ``completed`` are the seqnos of prepares that were completed since the last compaction, by the
    items at ``completing``, which ascend.
    """

    def __init__(self) -> None:
        self.state = b""
        self.purge_seqno = 0
        self.index = ItemIndex()
        self.snapshot_ends = array("Q")
        self.lost = LostRanges()
        self.completed = array("Q")
        self.completing = array("Q")
        self.frame_bytes = 0

    @property
    def persisted_seqno(self) -> int:
        """The seqno up to which the log is complete; 0 while it holds nothing."""
        return self.snapshot_ends[-1] if self.snapshot_ends else 0

    @property
    def stale_bytes(self) -> int:
        """The bytes of frames in the file that were replaced or lost."""
        return self.frame_bytes - self.index.live_bytes

    def apply(self, batch: DiskBatch, offset: int) -> None:
        """Take a batch that stands at ``offset`` of the file."""
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
        if len(batch.lost):
            self.lost = batch.lost
        self.state = batch.state or self.state
        self.frame_bytes += batch.data_bytes

    def check(self, batch: DiskBatch) -> None:
        """Reject a batch of items that does not follow on what is here.

        Raises:
            ValueError: seqnos or ends of disk snapshots do not ascend from above the persisted
                seqno, or a replaced seqno is not the newest version of any key here.
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
            # A purged tombstone is not here any more, and its key's next version cannot know.
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
        """Return whether all versions held at ``seqno`` are still here."""
        return seqno >= self.purge_seqno and not self.lost.covers(seqno)

    def can_cut_within(self, first_seqno: int, end_seqno: int) -> bool:
        """Return whether ``can_cut`` is true of some seqno of first to end, without the end."""
        first = max(first_seqno, self.purge_seqno)
        return first < end_seqno and not self.lost.cover_all(first, end_seqno)

    def _cut(self, seqno: int) -> None:
        """Forget what is above ``seqno``; at 0 nothing at all is left."""
        del self.snapshot_ends[bisect_right(self.snapshot_ends, seqno) :]
        self.index = self.index.cut(seqno)
        self.lost = self.lost.cut(seqno)
        left = bisect_right(self.completing, seqno)
        del self.completed[left:], self.completing[left:]
        if not seqno:
            self.purge_seqno, self.lost = 0, LostRanges()

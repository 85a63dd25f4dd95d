"""Plans the compaction of a vbucket's log: the newest version of every key, in one disk snapshot.

Several disk snapshots become one, de-duplicated (DCP concepts document, "Deduplication"), and
tombstones up to a seqno go. The item with the highest seqno is never purged, so that clients can
complete a snapshot that ends there. Prepares that were completed go too: from disk the documents
are sent that they became, and without these they would look as if they were under way (kv_engine
``engines/ep/src/kvstore/couch-kvstore/couch-kvstore.cc``, time_purge_hook).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dcp.server.storage.disk_batch import DiskBatch
from dcp.server.storage.disk_contents import Contents
from dcp.server.storage.disk_file import Data
from dcp.server.storage.disk_index import NEVER, Columns, find
from dcp.server.storage.disk_ranges import U64s
from dcp.server.storage.disk_scan import Scan, ScannedFile

_COPIED_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The items that stay, as they stand in the old file, and the batch that will hold them.

    ``purged`` is the number of tombstones that go.
    """

    kept: Columns
    batch: DiskBatch
    purged: int

    def frames(self, file: ScannedFile) -> Iterator[Data]:
        """Yield the frames that stay, read from the old file."""
        bounds = (0, self.batch.snapshot_end)
        with Scan(file, self.kept, bounds, each_key_once=False) as scan:
            while (frames := scan.read(_COPIED_BYTES)) is not None:
                yield frames.data


def is_purged_up_to(columns: Columns, seqno: int) -> npt.NDArray[np.bool_]:
    """Return which items are tombstones that a purge up to a seqno takes."""
    is_purged: npt.NDArray[np.bool_] = columns.seqnos <= np.uint64(seqno)
    is_purged &= (columns.replaced_at == NEVER) & (columns.deleted > 0)
    is_purged[-1:] = False
    return is_purged


def plan_compaction(
    contents: Contents, purge_up_to_seqno: int, state: bytes = b""
) -> CompactionPlan:
    """Decide what stays and what is purged; an empty ``state`` is as it was."""
    columns = contents.index.columns
    is_purged = is_purged_up_to(columns, purge_up_to_seqno)
    ended_at = columns.replaced_at.copy()
    rows, completing = _completed(contents)
    is_left = (ended_at[rows] == NEVER) & ~is_purged[rows]
    ended_at[rows[is_left]] = completing[is_left]
    purged, is_ended = columns.seqnos[is_purged], ended_at != NEVER
    purge_seqno = max(contents.purge_seqno, int(purged[-1]) if len(purged) else 0)
    kept = columns.take(~is_ended & ~is_purged)
    tombstones = kept.deleted > 0
    batch = DiskBatch(
        state or contents.state,
        contents.persisted_seqno,
        seqnos=kept.seqnos,
        sizes=kept.sizes.astype(np.uint64),
        tombstones=kept.seqnos[tombstones],
        delete_times=kept.deleted[tombstones].astype(np.uint64) - np.uint64(1),
        lost=contents.lost.merged(columns.seqnos[is_ended], ended_at[is_ended]).above(purge_seqno),
        purge_seqno=purge_seqno,
    )
    return CompactionPlan(kept, batch, len(purged))


def _completed(contents: Contents) -> tuple[npt.NDArray[np.int64], U64s]:
    """Return the rows of prepares that were completed, and the seqnos of what completed them."""
    completed = np.array(contents.completed, np.uint64)
    if not len(contents.index.columns):
        return np.empty(0, np.int64), completed
    rows, found = find(contents.index.columns.seqnos, completed)
    return rows[found], np.array(contents.completing, np.uint64)[found]

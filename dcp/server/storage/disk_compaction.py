"""Plans the compaction of a vbucket's disk log: what stays is one disk snapshot without duplicates.

Compaction merges disk snapshots (DCP concepts document, "Deduplication") and purges tombstones up
to a seqno. It also drops completed prepares, because a backfill sends their documents instead.
Source: kv_engine ``engines/ep/src/kvstore/couch-kvstore/couch-kvstore.cc`` (time_purge_hook).
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
    kept: Columns
    """The items that stay, with their offsets in the old file."""
    batch: DiskBatch
    """The batch of the new file that holds them."""
    purged: int
    """Number of tombstones that go."""

    def frames(self, file: ScannedFile) -> Iterator[Data]:
        bounds = (0, self.batch.snapshot_end)
        with Scan(file, self.kept, bounds, each_key_once=False) as scan:
            while (frames := scan.read(_COPIED_BYTES)) is not None:
                yield frames.data


def is_purged_up_to(columns: Columns, seqno: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the tombstones that a purge up to ``seqno`` removes."""
    is_purged: npt.NDArray[np.bool_] = columns.seqnos <= np.uint64(seqno)
    is_purged &= (columns.replaced_at == NEVER) & (columns.deleted > 0)
    # The item with the highest seqno stays, or no client could reach the end of the last snapshot.
    is_purged[-1:] = False
    return is_purged


def plan_compaction(
    contents: Contents, purge_up_to_seqno: int, state: bytes = b""
) -> CompactionPlan:
    """Plan a compaction; an empty ``state`` keeps the state as it is."""
    columns = contents.index.columns
    is_purged = is_purged_up_to(columns, purge_up_to_seqno)
    ended_at = columns.replaced_at.copy()
    # Without its commit a prepare would look pending, so a completed prepare goes like a replaced
    # item.
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
        # ``deleted`` is the delete time plus 1.
        delete_times=kept.deleted[tombstones].astype(np.uint64) - np.uint64(1),
        # A rollback to a seqno where a dropped item was current is impossible.
        compacted=contents.compacted.merged(columns.seqnos[is_ended], ended_at[is_ended]).above(
            purge_seqno
        ),
        purge_seqno=purge_seqno,
    )
    return CompactionPlan(kept, batch, len(purged))


def _completed(contents: Contents) -> tuple[npt.NDArray[np.int64], U64s]:
    """Return the rows of completed prepares, and the seqnos of their commits or aborts."""
    completed = np.array(contents.completed, np.uint64)
    if not len(contents.index.columns):
        return np.empty(0, np.int64), completed
    rows, found = find(contents.index.columns.seqnos, completed)
    return rows[found], np.array(contents.completing, np.uint64)[found]

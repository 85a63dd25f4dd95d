"""The disk of one vbucket: its disk log of encoded frames, append-only, survives crashes.

Each flush is one batch of disk snapshots, all or nothing (DCP concepts document, "Disk Snapshots").
A backfill sends the frames as they are, so it is as fast as the file. ``disk_batch.py`` has the
format. One thread at a time may use a store and its scans.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from dcp.server.storage.disk_batch import DiskBatch
from dcp.server.storage.disk_compaction import is_purged_up_to, plan_compaction
from dcp.server.storage.disk_contents import Contents
from dcp.server.storage.disk_file import Data, DiskFile
from dcp.server.storage.disk_index import NEVER
from dcp.server.storage.disk_log import DiskLog
from dcp.server.storage.disk_ranges import U64s
from dcp.server.storage.disk_scan import Frames, Scan
from dcp.server.storage.pending_write import PendingWrite
from dcp.types import U32_MAX, SnapshotRange, require_unsigned

_WARM_UP_BYTES: Final = 4 * 1024 * 1024


class StoredItem(NamedTuple):
    """One version of a key; its frame is ``head + value``, with opaque 0."""

    seqno: int
    head: bytes
    value: bytes
    replaces: Sequence[int]
    """Seqnos of the current items that this one replaces: the key's older version. An event that
    empties a collection replaces all its documents.
    """
    completes: int
    """Seqno of the prepare that this item commits or aborts; 0 if none."""
    is_tombstone: bool
    delete_time: int
    """Seconds since 1970; tombstones only."""


class VbucketStore:
    """A vbucket's items on disk in seqno order, and its newest state."""

    def __init__(self, file: DiskFile, vbucket: int) -> None:
        """Read the disk log of a vbucket; an absent file is an empty disk log.

        An incomplete batch of a crash is cut off. Raises DiskFormatError if the file is damaged, or
        is no disk log of this vbucket and format version.
        """
        self._disk_log = DiskLog(file, vbucket)
        self._vbucket = vbucket
        self._is_closed = False

    @property
    def _contents(self) -> Contents:
        return self._disk_log.contents

    # --- contents

    @property
    def state(self) -> bytes:
        """The state that was written last; empty before the first."""
        return self._contents.state

    @property
    def persisted_seqno(self) -> int:
        """Everything up to this seqno is on disk; 0 if the disk log is empty."""
        return self._contents.persisted_seqno

    @property
    def purge_seqno(self) -> int:
        """The highest seqno of a purged tombstone; 0 if there is none."""
        return self._contents.purge_seqno

    @property
    def item_count(self) -> int:
        """The number of keys, tombstones included."""
        return self._contents.index.current_count

    @property
    def size_bytes(self) -> int:
        return self._disk_log.size_bytes

    @property
    def replaced_bytes(self) -> int:
        """Bytes of replaced and lost frames, which compaction would drop."""
        return self._contents.replaced_bytes

    @property
    def overhead_bytes(self) -> int:
        """Bytes of the disk log that are no frames; in small batches that is most of it."""
        return self._disk_log.size_bytes - self._contents.frame_bytes

    def snapshot_at(self, seqno: int) -> SnapshotRange:
        """Return the newest disk snapshot that ends at or below ``seqno``; 0 to 0 if there is none.

        After a compaction everything up to its end is one snapshot.
        """
        ends = self._contents.snapshot_ends
        index = bisect_right(ends, seqno)
        if not index:
            return SnapshotRange(0, 0)
        return SnapshotRange(ends[index - 2] + 1 if index > 1 else 1, ends[index - 1])

    @property
    def history_start_seqno(self) -> int:
        """From this seqno on no version is missing; 1 if compaction has dropped none."""
        compacted = self._contents.compacted
        return max(self.purge_seqno + 1, int(compacted.ends[-1]) if len(compacted) else 1)

    def purgeable_seqno(self, deleted_before_seconds: int) -> int:
        """Return the highest seqno up to which every tombstone is older than that time."""
        columns = self._contents.index.columns
        # ``deleted`` is the delete time plus 1.
        younger = (columns.replaced_at == NEVER) & (columns.deleted > deleted_before_seconds)
        row = int(np.argmax(younger)) if younger.any() else len(columns)
        return int(columns.seqnos[row]) - 1 if row < len(columns) else self.persisted_seqno

    def purgeable_bytes(self, up_to_seqno: int) -> int:
        columns = self._contents.index.columns
        return int(columns.sizes[is_purged_up_to(columns, up_to_seqno)].sum(dtype=np.int64))

    @property
    def generation(self) -> int:
        return self._disk_log.generation

    @property
    def is_scanned(self) -> bool:
        return self._disk_log.scanned.is_scanned

    # --- writing

    def write(
        self, items: Sequence[StoredItem], state: bytes, *, snapshot_end: int | None = None
    ) -> None:
        """Write one disk snapshot and the state durably.

        Items must ascend from above ``persisted_seqno``. Without items it writes only the state; an
        empty ``state`` keeps the old one. ``snapshot_end`` becomes the persisted seqno if the
        snapshot ends above its last item.

        Raises ValueError if the items do not continue the disk log, and OSError if the file cannot
        be written; the store is then unchanged.
        """
        last = items[-1].seqno if items else self.persisted_seqno
        batch = _batch_of(items, state, last if snapshot_end is None else snapshot_end)
        self._check(batch)
        self._disk_log.append(batch, _frames_of(items))

    def begin(
        self, items: Sequence[StoredItem], state: bytes, inner_ends: Sequence[int] = ()
    ) -> PendingWrite:
        """Prepare ``write`` for any thread to ``run``; meanwhile the store shows its old contents.

        Only one write may be pending. ``inner_ends`` are the last seqnos of all disk snapshots
        among the items but the last. Raises ValueError as ``write`` does.
        """
        last = items[-1].seqno if items else self.persisted_seqno
        batch = _batch_of(items, state, last, inner_ends)
        self._check(batch)
        return self._disk_log.begin(batch, _frames_of(items))

    def _check(self, batch: DiskBatch) -> None:
        self._require_open()
        try:
            self._contents.check(batch)
        except ValueError as error:
            raise ValueError(f"vbucket {self._vbucket}: {error}") from None

    # --- reading

    def scan(
        self,
        after_seqno: int,
        *,
        each_key_once: bool,
        end_seqno: int | None = None,
        before_seqno: int | None = None,
    ) -> Scan:
        """Open a snapshot of everything above ``after_seqno``; later changes do not affect it.

        ``each_key_once`` leaves out versions that were replaced up to ``end_seqno``; otherwise it
        shows all versions that compaction has not dropped. ``before_seqno`` limits what is read,
        not what counts as replaced.

        Raises ValueError if ``end_seqno`` is above the persisted seqno, or the store is closed.
        """
        self._require_open()
        end = self.persisted_seqno if end_seqno is None else end_seqno
        if end > self.persisted_seqno:
            raise ValueError(
                f"vbucket {self._vbucket}: scan to seqno {end}, "
                f"expected at most {self.persisted_seqno}"
            )
        return Scan(
            self._disk_log.scanned,
            self._contents.index.between(
                after_seqno, end if before_seqno is None else min(end, before_seqno - 1)
            ),
            (after_seqno, end),
            each_key_once=each_key_once,
        )

    def read(self, seqno: int) -> bytes | None:
        """Return the frame of one item; None if it does not exist or was compacted.

        Raises OSError if the file cannot be read or the frame is damaged.
        """
        self._require_open()
        found = self._contents.index.between(max(seqno - 1, 0), seqno)
        if not len(found):
            return None
        return bytes(self._disk_log.scanned.read_run(found))

    def count(self, after_seqno: int, end_seqno: int) -> int:
        """Return how many versions with after < seqno <= end are here, replaced ones included."""
        return len(self._contents.index.between(after_seqno, end_seqno))

    def warm_up(self) -> Iterator[Frames]:
        """Yield all current frames in seqno order, as after a restart."""
        with self.scan(0, each_key_once=True) as scan:
            while (frames := scan.read(_WARM_UP_BYTES)) is not None:
                yield frames

    def check_state(self, end_seqno: int) -> None:
        """Read the state at ``end_seqno``; raise OSError if that fails or a frame is damaged."""
        if self._disk_log.may_decay:
            with self.scan(0, each_key_once=True, end_seqno=end_seqno) as scan:
                while scan.read(_WARM_UP_BYTES) is not None:
                    pass

    # --- cuts and compaction

    def cut(self, seqno: int, *, state: bytes | None = None) -> int:
        """Lose everything above ``seqno`` durably; return the new persisted seqno.

        Items that only lost items had replaced are current again. A new ``state`` is written in the
        same batch. It loses everything and returns 0 if compaction has dropped a part of the state
        at ``seqno``, as kv_engine rolls back to 0.
        """
        self._require_open()
        require_unsigned("cut seqno", seqno)
        batch = DiskBatch(self.state if state is None else state, self.persisted_seqno)
        if seqno < self.persisted_seqno:
            kept = seqno if self._contents.can_cut(seqno) else 0
            batch = replace(batch, snapshot_end=kept, keep_up_to=kept)
        elif state is None:
            return self.persisted_seqno
        self._disk_log.append(batch, ())
        return self.persisted_seqno

    def may_be_cut(self, first_seqno: int, end_seqno: int) -> bool:
        return self._contents.can_cut_within(first_seqno, end_seqno)

    def compact(self, *, purge_up_to_seqno: int = 0, state: bytes = b"") -> int:
        """Rewrite the disk log with the current items only; return the number of purged tombstones.

        Tombstones up to ``purge_up_to_seqno`` go, except the item with the highest seqno. After a
        crash the old or the new disk log is there. Raises OSError if the new disk log cannot be
        written, or a remaining frame is damaged; the store is then unchanged.
        """
        self._require_open()
        require_unsigned("purge seqno", purge_up_to_seqno)
        if not self.size_bytes:
            return 0
        plan = plan_compaction(self._contents, purge_up_to_seqno, state)
        self._disk_log.rewrite(plan)
        return plan.purged

    def begin_compaction(self, purge_up_to_seqno: int = 0, state: bytes = b"") -> PendingWrite:
        """Prepare ``compact`` as ``begin`` prepares ``write``; the disk log must not be empty."""
        self._require_open()
        return self._disk_log.begin_rewrite(
            plan_compaction(self._contents, purge_up_to_seqno, state)
        )

    def close(self) -> None:
        """Release the file; open scans continue, even if another process opens it."""
        if not self._is_closed:
            self._disk_log.close()
        self._is_closed = True

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"vbucket {self._vbucket}: the store is closed")


def _frames_of(items: Sequence[StoredItem]) -> list[Data]:
    return [b"".join([part for i in items for part in (i.head, i.value)])]


def _batch_of(
    items: Sequence[StoredItem], state: bytes, snapshot_end: int, inner_ends: Sequence[int] = ()
) -> DiskBatch:
    tombstones = [item for item in items if item.is_tombstone]
    completing = [item for item in items if item.completes]
    for item in tombstones:
        # The index stores delete time + 1 in 32 bits.
        require_unsigned("delete time", item.delete_time, U32_MAX - 1)
    return DiskBatch(
        state,
        snapshot_end,
        seqnos=_u64s([item.seqno for item in items]),
        sizes=_u64s([len(item.head) + len(item.value) for item in items]),
        replacing=_u64s([item.seqno for item in items for _ in item.replaces]),
        replaced=_u64s([seqno for item in items for seqno in item.replaces]),
        tombstones=_u64s([item.seqno for item in tombstones]),
        delete_times=_u64s([item.delete_time for item in tombstones]),
        completed=_u64s([item.completes for item in completing]),
        completing=_u64s([item.seqno for item in completing]),
        inner_ends=_u64s(list(inner_ends)),
    )


def _u64s(numbers: list[int]) -> U64s:
    return np.array(numbers, np.uint64)

"""The disk of one vbucket: an append-only log of ready frames that survives crashes.

Each flush is one batch: one disk snapshot or several, there as a whole or not at all (DCP concepts
document, "Disk Snapshots"). Frames are never parsed: a backfill is as fast as the file. The bytes
are described in ``disk_batch.py``. A store and its scans are used by one thread at a time.
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
from dcp.server.storage.disk_log import Log
from dcp.server.storage.disk_ranges import U64s
from dcp.server.storage.disk_scan import Frames, Scan
from dcp.server.storage.pending_write import PendingWrite
from dcp.types import U32_MAX, SnapshotRange, require_unsigned

_WARM_UP_BYTES: Final = 4 * 1024 * 1024


class StoredItem(NamedTuple):
    """One version of a key; its frame is ``head + value``, with opaque 0.

    ``replaces`` are the seqnos of what it makes an end of, all of it in the store (or earlier in
    the same batch) and replaced by nothing else: the version of the same key, and of the event of a
    collection the documents that go with it. ``completes`` is the seqno of the prepare that is
    completed by it, which compaction need not keep then; 0 where none is. ``delete_time`` is in
    seconds, of tombstones only.
    """

    seqno: int
    head: bytes
    value: bytes
    replaces: Sequence[int]
    completes: int
    is_tombstone: bool
    delete_time: int


class VbucketStore:
    """A vbucket's items on disk, in seqno order, and its newest state."""

    def __init__(self, log: Log, vbucket: int) -> None:
        """See ``open``."""
        self._log = log
        self._vbucket = vbucket
        self._is_closed = False

    @classmethod
    def open(cls, file: DiskFile, vbucket: int) -> "VbucketStore":
        """Read the log of a vbucket, and cut from it what a crash left; an absent file is empty.

        Raises:
            DiskFormatError: this is no log, of another format version, or another vbucket's.
        """
        return cls(Log(file, vbucket), vbucket)

    @property
    def _contents(self) -> Contents:
        return self._log.contents

    # --- what it holds

    @property
    def state(self) -> bytes:
        """The newest state that was written; empty before the first."""
        return self._contents.state

    @property
    def persisted_seqno(self) -> int:
        """The seqno up to which everything is on disk; 0 while there is nothing."""
        return self._contents.persisted_seqno

    @property
    def purge_seqno(self) -> int:
        """The highest seqno of a purged tombstone; 0 while none was purged."""
        return self._contents.purge_seqno

    @property
    def item_count(self) -> int:
        """The number of keys, tombstones included."""
        return self._contents.index.live_count

    @property
    def size_bytes(self) -> int:
        """The length of the file."""
        return self._log.size_bytes

    @property
    def stale_bytes(self) -> int:
        """The bytes of frames that compaction would drop: replaced, or lost by ``cut``."""
        return self._contents.stale_bytes

    @property
    def overhead_bytes(self) -> int:
        """The bytes of the log that are no frames: batches of few items are mostly that."""
        return self._log.size_bytes - self._contents.frame_bytes

    def snapshot_at(self, seqno: int) -> SnapshotRange:
        """Return the newest disk snapshot that ends at or below a seqno; 0 to 0 without any.

        It has the seqnos that one flush wrote, of those since the last compaction; a compacted
        prefix is one.
        """
        ends = self._contents.snapshot_ends
        place = bisect_right(ends, seqno)
        if not place:
            return SnapshotRange(0, 0)
        return SnapshotRange(ends[place - 2] + 1 if place > 1 else 1, ends[place - 1])

    @property
    def history_start_seqno(self) -> int:
        """The seqno from which on all versions are here, replaced ones too; 1 where all are.

        A compaction drops what was replaced, and the next seqno is where history begins again.
        """
        lost = self._contents.lost
        return max(self.purge_seqno + 1, int(lost.ends[-1]) if len(lost) else 1)

    def purgeable_seqno(self, deleted_before_seconds: int) -> int:
        """Return the seqno up to which every tombstone was deleted before that time."""
        columns = self._contents.index.columns
        # ``deleted`` is one more than the delete time.
        younger = (columns.replaced_at == NEVER) & (columns.deleted > deleted_before_seconds)
        row = int(np.argmax(younger)) if younger.any() else len(columns)
        return int(columns.seqnos[row]) - 1 if row < len(columns) else self.persisted_seqno

    def purgeable_bytes(self, up_to_seqno: int) -> int:
        """Return the bytes of the tombstones' frames that a purge up to a seqno takes."""
        columns = self._contents.index.columns
        return int(columns.sizes[is_purged_up_to(columns, up_to_seqno)].sum(dtype=np.int64))

    @property
    def generation(self) -> int:
        """The generation of the file: 1, and 1 more with every compaction."""
        return self._log.generation

    @property
    def is_scanned(self) -> bool:
        """True if a scan is open that reads the present file."""
        return self._log.scanned.is_scanned

    # --- writing

    def write(
        self, items: Sequence[StoredItem], state: bytes, *, snapshot_end: int | None = None
    ) -> None:
        """Write one disk snapshot and the state; both are durable when this returns.

        Items ascend from above ``persisted_seqno``; with none of them only the state is written. An
        empty state says that it is as it was.
        ``snapshot_end`` says that the store is complete up to there, though the last item has a
        lower seqno; it becomes the persisted seqno.

        Raises:
            ValueError: the items do not follow on what is here; nothing is written then.
            OSError: the file cannot be written; the store is what it was.
        """
        last = items[-1].seqno if items else self.persisted_seqno
        batch = _batch_of(items, state, last if snapshot_end is None else snapshot_end)
        self._check(batch)
        self._log.append(batch, _frames_of(items))

    def begin(
        self, items: Sequence[StoredItem], state: bytes, inner_ends: Sequence[int] = ()
    ) -> PendingWrite:
        """Prepare what ``write`` does, for any thread to ``run``.

        Until it is over the store tells what it told, may be read, and takes nothing else.
        ``inner_ends`` are the last seqnos of all disk snapshots in it but the last.

        Raises:
            ValueError: as ``write``.
        """
        last = items[-1].seqno if items else self.persisted_seqno
        batch = _batch_of(items, state, last, inner_ends)
        self._check(batch)
        return self._log.begin(batch, _frames_of(items))

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
        """Open a snapshot of what is here above ``after_seqno``, unaffected by whatever follows.

        ``each_key_once`` leaves out versions that were replaced up to the end. Without it, all
        versions are shown that compaction has not removed: disk snapshots that are merged are not
        de-duplicated (DCP concepts document). Compaction also removes versions that an earlier
        ``end_seqno`` would show. With a ``before_seqno`` only what lies below is read of that.

        Raises:
            ValueError: ``end_seqno`` is above the persisted seqno, or the store is closed.
        """
        self._require_open()
        end = self.persisted_seqno if end_seqno is None else end_seqno
        if end > self.persisted_seqno:
            raise ValueError(
                f"vbucket {self._vbucket}: scan to seqno {end}, "
                f"expected at most {self.persisted_seqno}"
            )
        return Scan(
            self._log.scanned,
            self._contents.index.between(
                after_seqno, end if before_seqno is None else min(end, before_seqno - 1)
            ),
            (after_seqno, end),
            each_key_once=each_key_once,
        )

    def read(self, seqno: int) -> bytes | None:
        """Return the frame of one item; None if there is none, or no more.

        Raises:
            OSError: the file cannot be read, or the frame is damaged.
        """
        self._require_open()
        found = self._contents.index.between(max(seqno - 1, 0), seqno)
        if not len(found):
            return None
        return bytes(self._log.scanned.read_run(found))

    def count(self, after_seqno: int, end_seqno: int) -> int:
        """Return how many versions with after < seqno <= end are here, replaced ones too."""
        return len(self._contents.index.between(after_seqno, end_seqno))

    def warm_up(self) -> Iterator[Frames]:
        """Yield everything that is live, in order, for what is built of it anew."""
        with self.scan(0, each_key_once=True) as scan:
            while (frames := scan.read(_WARM_UP_BYTES)) is not None:
                yield frames

    def check_state(self, end_seqno: int) -> None:
        """Read what was held at ``end_seqno``.

        Raises:
            OSError: it cannot be read, or a frame is damaged.
        """
        if self._log.may_decay:
            with self.scan(0, each_key_once=True, end_seqno=end_seqno) as scan:
                while scan.read(_WARM_UP_BYTES) is not None:
                    pass

    # --- losing and forgetting

    def cut(self, seqno: int, *, state: bytes | None = None) -> int:
        """Lose everything above ``seqno``, durably, and return the persisted seqno then.

        What was replaced by what is lost is live again. Where a compaction dropped what was held
        at ``seqno``, or purged above it, everything is lost and 0 returned, as kv_engine rolls
        back to 0. A new ``state`` is written together with the cut.
        """
        self._require_open()
        require_unsigned("cut seqno", seqno)
        batch = DiskBatch(self.state if state is None else state, self.persisted_seqno)
        if seqno < self.persisted_seqno:
            kept = seqno if self._contents.can_cut(seqno) else 0
            batch = replace(batch, snapshot_end=kept, keep_up_to=kept)
        elif state is None:
            return self.persisted_seqno
        self._log.append(batch, ())
        return self.persisted_seqno

    def may_be_cut(self, first_seqno: int, end_seqno: int) -> bool:
        """Return whether ``cut`` is exact at some seqno of first to end, without the end."""
        return self._contents.can_cut_within(first_seqno, end_seqno)

    def compact(self, *, purge_up_to_seqno: int = 0, state: bytes = b"") -> int:
        """Write the log anew with what is live, without tombstones up to a seqno: return how many.

        A new ``state`` is written with it.

        The tombstone with the highest seqno of all items stays. After a crash the old log is
        there or the new one.

        Raises:
            OSError: the new log cannot be written, or a frame that stays is damaged; the store
                holds what it held.
        """
        self._require_open()
        require_unsigned("purge seqno", purge_up_to_seqno)
        if not self.size_bytes:
            return 0
        plan = plan_compaction(self._contents, purge_up_to_seqno, state)
        self._log.rewrite(plan)
        return plan.purged

    def begin_compaction(self, purge_up_to_seqno: int = 0, state: bytes = b"") -> PendingWrite:
        """Prepare what ``compact`` does, as ``begin``; there must be something here."""
        self._require_open()
        return self._log.begin_rewrite(plan_compaction(self._contents, purge_up_to_seqno, state))

    def close(self) -> None:
        """End the use of this store; scans that are open go on, whoever opens the file next."""
        if not self._is_closed:
            self._log.close()
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
        # Frames have room for a u32; the index keeps one more than it in as many bits.
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

"""Flushes and compacts the disk log of one vbucket.

A flush writes any number of ended batches, all or nothing, and each batch's end stays a rollback
point. The vbucket's state goes to disk with the items, or alone (``begin_save``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from dcp.server.storage.disk_history import DiskHistory
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.storage.disk_writer import DiskWriter
from dcp.server.storage.pending_write import PendingWrite
from dcp.server.storage.saved_vbucket import StateOnDisk
from dcp.server.storage.unwritten_batches import UnwrittenBatches, WriteBatch
from dcp.server.vbucket.memory_history import MemoryHistory
from dcp.server.vbucket.newest_versions import NewestVersions


class Persistence:
    """Writes one vbucket's disk log; any thread may run a flush that it has begun."""

    def __init__(
        self,
        vbucket: int,
        store: VbucketStore,
        unwritten: UnwrittenBatches,
        memory: MemoryHistory,
        disk: DiskHistory,
        newest: NewestVersions,
    ) -> None:
        self._store = store
        self._unwritten = unwritten
        self._memory = memory
        self._disk = disk
        self._newest = newest
        self._unpersisted_seqnos = 0
        self._writer = DiskWriter(store, vbucket)
        self._is_over = False
        self.state = StateOnDisk(lambda: store.state)
        """``Vbucket`` sets ``state.state_at`` after it has opened the disk log."""
        self._on_compaction: Callable[[], None] = lambda: None

    def on_compaction(self, listener: Callable[[], None]) -> None:
        """Set the one listener that is called after compaction has removed rollback points."""
        self._on_compaction = listener

    def lag_by(self, seqnos: int) -> None:
        """Be a slow disk: a batch stays in memory while its end is among so many newest seqnos."""
        self._unpersisted_seqnos = seqnos

    @property
    def unwritten_bytes(self) -> int:
        return self._unwritten.size_bytes

    # --- batches of writes

    def flush(self, up_to: int | None = None) -> None:
        """Write the batches that end at or below ``up_to`` (None: all, but see ``lag_by``).

        Raises OSError if the file cannot be written; the batches then wait for the next call.
        """
        self._finish_pending()
        while self.begin_flush(up_to) is not None:
            self._finish_pending()
        self._memory.free_written()

    def begin_flush(self, up_to: int | None = None) -> PendingWrite | None:
        """Return the next flush, which any thread may ``run``; None if there is nothing to write.

        Call ``finish_flush`` afterwards. A flush that failed is returned again. If this function
        raises, no flush has begun and all batches still wait.
        """
        if self._writer.pending is None:
            newest = self._memory.checkpoints.high_seqno
            most = newest - self._unpersisted_seqnos if up_to is None else up_to
            if due := self._unwritten.due(most):
                self._begin_batches(due)
        return self._writer.pending

    def _begin_batches(self, batches: Sequence[WriteBatch]) -> None:
        # One write for all batches saves fsyncs; each inner end still becomes a rollback point.
        ends = [batch[-1].seqno for batch in batches]
        state = self.state.news_at(ends[-1])
        with self._newest.storing(list(chain.from_iterable(batches))) as items:
            self._writer.begin_batch(items, state, ends[:-1])

    def finish_flush(self, written: PendingWrite) -> None:
        """Record a flush as persisted, or give up a compaction that failed.

        It does nothing if another thread has finished the same write already.
        """
        if self._writer.pending is written:
            self._finish_pending()
            self._memory.free_written()

    def _finish_pending(self) -> None:
        """Wait until the pending write is on disk; give up a compaction that fails."""
        if self._writer.pending is None:
            return
        is_compacted = self._writer.finish()
        written = self._unwritten.take_written(self._store.persisted_seqno)
        if is_compacted:
            self._forget_what_went()
        # Only now can the values be read from disk.
        self._newest.leave_values(written)
        for version in written:
            self._disk.note_stored(version)
        persisted = self._disk.persisted_seqno
        self._memory.note_persisted(persisted)
        gone = self._memory.checkpoints.gone_seqno
        # Snapshots ask for durability seqnos at the persisted seqno, or at a seqno in memory.
        self._newest.durability.forget(min(persisted, gone))

    # --- the vbucket's state

    def begin_save(self) -> PendingWrite | None:
        """Return a write of the vbucket's state; None if the disk has this state.

        ``end`` the write before any other begins. Raises OSError if the pending write fails.
        """
        self._finish_pending()
        state = self.state.encoded_at(self._disk.persisted_seqno)
        if state == self._store.state or self._is_over:
            return None
        return self._store.begin([], state)

    def save_state(self) -> None:
        """Write the vbucket's state durably, unless the disk has it.

        Raises OSError if the file cannot be written.
        """
        if (write := self.begin_save()) is not None:
            write.complete()

    # --- compaction

    @property
    def is_mostly_replaced(self) -> bool:
        """True if compaction pays off without purging tombstones; the check reads no items."""
        return self._writer.is_mostly_replaced

    def begin_compaction(
        self, purge_before_seconds: int = 0, *, leaves_nothing: bool = False
    ) -> PendingWrite | None:
        """Return the pending write, or else a compaction of the disk log; None if neither is due.

        Handle it like the result of ``begin_flush``. The compaction purges tombstones of documents
        deleted before ``purge_before_seconds``, up to the first tombstone that is newer.
        """
        if not self._is_over and self._writer.pending is None:
            state = partial(self.state.encoded_at, self._disk.persisted_seqno)
            self._writer.begin_compaction(
                purge_before_seconds, state, leaves_nothing=leaves_nothing
            )
        return self._writer.pending

    def purge(self, up_to: int) -> int:
        """Compact now and drop tombstones up to a seqno; return how many. The newest item stays."""
        self._finish_pending()
        persisted = self._disk.persisted_seqno
        state = self.state.encoded_at(persisted)
        purged = self._store.compact(purge_up_to_seqno=min(up_to, persisted), state=state)
        self._forget_what_went()
        return purged

    def _forget_what_went(self) -> None:
        self._newest.forget_compacted(self._disk.persisted_seqno)
        self._disk.note_compacted(self._newest.stored_end())
        self._on_compaction()

    # --- end

    def give_up(self) -> None:
        """Drop all unwritten batches; a thread that still holds a write finds nothing to do."""
        self._is_over = True
        self._writer.abandon()
        self._unwritten.clear()

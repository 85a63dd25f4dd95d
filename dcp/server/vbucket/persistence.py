"""Performs the flushes and compactions of one vbucket.

Batches of writes that have ended are written at once, or later by a flusher: many in one flush, all
or nothing, and the end of each stays a rollback point. ``unpersisted_seqnos`` keeps back the
batches that end among so many newest seqnos, as a slow disk would. The vbucket's state goes with
the items, or alone (``begin_save``); and the log is compacted (``begin_compaction``, ``purge``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from dcp.server.storage.disk_history import DiskHistory
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.storage.disk_writer import DiskWriter
from dcp.server.storage.pending_write import PendingWrite
from dcp.server.storage.state_on_disk import StateOnDisk
from dcp.server.storage.unwritten_batches import UnwrittenBatches, WriteBatch
from dcp.server.vbucket.memory_history import MemoryHistory
from dcp.server.vbucket.newest_versions import NewestVersions


class Persistence:
    """Writes the log of one vbucket; ``state`` returns the state to write beside the items."""

    def __init__(
        self,
        vbucket: int,
        store: VbucketStore,
        unwritten: UnwrittenBatches,
        memory: MemoryHistory,
        disk: DiskHistory,
        newest: NewestVersions,
        unpersisted_seqnos: int,
    ) -> None:
        """``memory``, ``disk`` and ``newest`` are told what is on disk now."""
        self._store = store
        self._unwritten = unwritten
        self._memory = memory
        self._disk = disk
        self._newest = newest
        self._unpersisted_seqnos = unpersisted_seqnos
        self._writer = DiskWriter(store, vbucket)
        self._is_over = False
        self.state = StateOnDisk(lambda: store.state)
        self._on_compaction: Callable[[], None] = lambda: None

    def on_compaction(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, and nobody else, when less can be gone back to than before."""
        self._on_compaction = listener

    @property
    def unwritten_bytes(self) -> int:
        """The bytes of ended batches of writes that wait for the disk."""
        return self._unwritten.size_bytes

    # --- batches of writes

    def flush(self, up_to: int | None = None) -> None:
        """Write the batches that end at or below a seqno (None: all but ``unpersisted_seqnos``).

        Raises:
            OSError: the file cannot be written; this may be called again.
        """
        self._finish_pending()
        while self.begin_flush(up_to) is not None:
            self._finish_pending()
        self._memory.free_written()

    def begin_flush(self, up_to: int | None = None) -> PendingWrite | None:
        """Return the next flush, for any thread to ``run``; None where nothing is to be written.

        ``finish_flush`` must follow. What could not be written is returned again. Whatever fails
        here, nothing is begun then, and what waits goes on waiting.
        """
        if self._writer.pending is None:
            newest = self._memory.checkpoints.high_seqno
            most = newest - self._unpersisted_seqnos if up_to is None else up_to
            if due := self._unwritten.due(most):
                self._begin_batches(due)
        return self._writer.pending

    def _begin_batches(self, batches: Sequence[WriteBatch]) -> None:
        ends = [batch[-1].seqno for batch in batches]
        state = self.state.news_at(ends[-1])
        with self._newest.storing(list(chain.from_iterable(batches))) as items:
            self._writer.begin_batch(items, state, ends[:-1])

    def finish_flush(self, written: PendingWrite) -> None:
        """Note that the flush is on disk, or that a compaction failed.

        Nothing is done if another thread could not wait and did that.
        """
        if self._writer.pending is written:
            self._finish_pending()
            self._memory.free_written()

    def _finish_pending(self) -> None:
        """Wait until what is being written is on disk; a compaction that fails is given up."""
        if self._writer.pending is None:
            return
        is_compacted = self._writer.finish()
        written = self._unwritten.take_written(self._store.persisted_seqno)
        if is_compacted:
            self._forget_what_went()
        self._newest.keys.leave_values(written)
        for version in written:
            self._disk.note_stored(version)
        persisted = self._disk.persisted_seqno
        self._memory.note_persisted(persisted)
        gone = self._memory.checkpoints.gone_seqno
        self._newest.keys.durability.forget(min(persisted, gone))

    # --- the state alone

    def begin_save(self) -> PendingWrite | None:
        """Return a write of the state, if it differs from the one on disk; else None.

        It must ``end`` before anything else is written.

        Raises:
            OSError: what was being written cannot be.
        """
        self._finish_pending()
        state = self.state.encoded_at(self._disk.persisted_seqno)
        if state == self._store.state or self._is_over:
            return None
        return self._store.begin([], state)

    def save_state(self) -> None:
        """Write the state durably, if it is another than what is on disk.

        Raises:
            OSError: the file cannot be written.
        """
        if (write := self.begin_save()) is not None:
            write.complete()

    # --- the log anew

    @property
    def is_mostly_stale(self) -> bool:
        """True if compaction pays, tombstones apart: known without a look at the items."""
        return self._writer.is_mostly_stale

    def begin_compaction(
        self, purge_before_seconds: int = 0, *, leaves_nothing: bool = False
    ) -> PendingWrite | None:
        """Return a log without old versions to be written, as ``begin_flush``; None: no need.

        Tombstones go of the seqnos up to which each was deleted before a time.
        """
        if not self._is_over and self._writer.pending is None:
            state = partial(self.state.encoded_at, self._disk.persisted_seqno)
            self._writer.begin_compaction(
                purge_before_seconds, state, leaves_nothing=leaves_nothing
            )
        return self._writer.pending

    def purge(self, up_to: int) -> int:
        """Compact the disk: drop tombstones up to a seqno, not the newest item; return how many."""
        self._finish_pending()
        persisted = self._disk.persisted_seqno
        state = self.state.encoded_at(persisted)
        purged = self._store.compact(purge_up_to_seqno=min(up_to, persisted), state=state)
        self._forget_what_went()
        return purged

    def _forget_what_went(self) -> None:
        """Forget the keys and manifests of which compaction left nothing."""
        self._newest.forget_compacted(self._disk.persisted_seqno)
        self._disk.note_compacted(self._newest.stored_end())
        self._on_compaction()

    # --- its end

    def give_up(self) -> None:
        """Drop all unwritten batches; threads that hold them find nothing to do."""
        self._is_over = True
        self._writer.abandon()
        self._unwritten.clear()

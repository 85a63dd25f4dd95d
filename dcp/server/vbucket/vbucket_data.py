"""The data of one vbucket: versions in memory and on disk.

    memory        memory_history.py   checkpoints: the newest versions, for streams and the disk
    persistence   persistence.py      flushes and compaction, with the vbucket's state
    disk          disk_history.py     persisted versions, and how far a rollback can go
    newest        newest_versions.py  the newest version of every key

This module has the operations that need several of these. Every batch of writes ends at a complete
state, so a crash or a failover can return to the end of any batch.
"""

from collections.abc import Callable

from dcp.server.checkpoints.checkpoint_manager import CheckpointManager
from dcp.server.model.durability import Durability
from dcp.server.model.listeners import Listeners
from dcp.server.model.server_settings import ServerSettings
from dcp.server.model.versions import Version
from dcp.server.storage.disk_file import DiskFile
from dcp.server.storage.disk_history import DiskHistory
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.storage.stored_items import versions_of
from dcp.server.storage.unwritten_batches import UnwrittenBatches
from dcp.server.vbucket.memory_history import MemoryHistory
from dcp.server.vbucket.newest_versions import NewestVersions
from dcp.server.vbucket.persistence import Persistence
from dcp.types import U64_MAX


class VbucketData:
    """The versions of one vbucket; call it with the bucket's lock held."""

    def __init__(
        self,
        vbucket: int,
        file: DiskFile,
        settings: ServerSettings,
        *,
        writes_behind: bool = False,
        base_seqno: int = 0,
        persisted_seqno: int | None = None,
        purge_seqno: int = 0,
    ) -> None:
        """``base_seqno`` is the high seqno before the first version.

        With ``writes_behind`` a background flusher writes; else each batch is flushed at its end.
        """
        self.vbucket = vbucket
        self.on_append: Listeners[[Version]] = Listeners()
        """Called with each appended version; not with those that a replica receives."""
        self._require_room: Callable[[], None] = lambda: None
        self._writes_behind = writes_behind
        self._unwritten = UnwrittenBatches()
        self._store = VbucketStore(file, vbucket)
        self.memory = MemoryHistory(vbucket, settings, base_seqno)
        self.newest = NewestVersions(vbucket, self._store, keeps_values=settings.keeps_values)
        self.disk = DiskHistory(
            self._store,
            self._unwritten,
            base_seqno=base_seqno,
            persisted_seqno=persisted_seqno,
            purge_seqno=purge_seqno,
        )
        self.persistence = Persistence(
            vbucket, self._store, self._unwritten, self.memory, self.disk, self.newest
        )

    # --- listeners

    def check_room_with(self, check: Callable[[], None]) -> None:
        """Let ``require_room`` call this check, which raises OSError for too little room."""
        self._require_room = check

    def require_room(self) -> None:
        """Raise OSError if too much waits for the disk; call it before a client's write."""
        self._require_room()

    # --- state

    @property
    def base_seqno(self) -> int:
        return self.disk.base_seqno

    @property
    def high_seqno(self) -> int:
        return self.memory.checkpoints.high_seqno

    @property
    def checkpoints(self) -> CheckpointManager:
        """The checkpoints in memory; ``cut`` and ``start_at`` replace the object."""
        return self.memory.checkpoints

    @property
    def is_complete(self) -> bool:
        """True if memory and disk both end at the end of a snapshot."""
        return self.checkpoints.is_snapshot_complete and self.disk.is_complete

    def tombstones_on_disk(self) -> int:
        """Return an estimate: all items on disk that hold no document."""
        return max(0, self.disk.item_count - self.newest.document_counts().total())

    def durability_at(self, end_seqno: int) -> Durability:
        """Return the durability seqnos at the persisted seqno, or at one in memory."""
        return self.newest.durability.at(end_seqno, self.base_seqno)

    # --- start and restart

    def start_at(self, base_seqno: int) -> None:
        """Let seqnos begin after ``base_seqno``; raise ValueError after the first write."""
        if self.high_seqno != self.base_seqno:
            raise ValueError(
                f"vbucket {self.vbucket}: found {self.high_seqno - self.base_seqno} versions, "
                "a base seqno must be set before the first write"
            )
        if not 0 <= base_seqno < U64_MAX:
            raise ValueError(f"base seqno: found {base_seqno}, expected 0 to {U64_MAX - 1}")
        self.disk.begin_at(base_seqno)
        self.memory.begin_at(base_seqno)

    def reopen(
        self, base_seqno: int, complete_seqno: int | None = None, learned_purge_seqno: int = 0
    ) -> None:
        """Load what the opened file has; call it before the first write.

        With ``complete_seqno`` it loads items up to there only, and no earlier rollback points:
        those may lie inside snapshots of the active.
        """
        self.disk.begin_at(base_seqno)
        self.disk.take_up(complete_seqno, learned_purge_seqno)
        self.memory.begin_at(self.disk.persisted_seqno)
        self._read_again()

    # --- writing

    def append(self, version: Version) -> None:
        if version.seqno >= U64_MAX:
            raise ValueError(f"vbucket {self.vbucket}: found seqno {version.seqno}, the last one")
        self.checkpoints.queue(version)
        self.newest.note(version)
        self.on_append(version)

    def end_batch(self) -> None:
        """End a batch of writes, which becomes one disk snapshot in any flush."""
        if batch := self.memory.take_batch():
            self._unwritten.add(batch)

    def flush_batch(self) -> None:
        """End a batch and write it at once, unless a background flusher writes later."""
        self.end_batch()
        if not self._writes_behind:
            self.persistence.flush()

    def receive(self, version: Version) -> None:
        """Add an item of a snapshot from the active; call ``store_received`` at the end.

        Raises LocalProtocolError if its seqno is not above the high seqno or outside the snapshot.
        """
        self.checkpoints.receive(version)
        self.newest.note(version)

    def store_received(self) -> None:
        """Flush the received items, or leave them to the flusher, even inside a snapshot."""
        # A rollback must not stop at the end of this batch.
        if not self.checkpoints.is_snapshot_complete:
            self.disk.note_part(self.high_seqno)
        self.flush_batch()
        if not self._writes_behind:
            self.persistence.flush(self.high_seqno)

    def advance_to(self, seqno: int) -> tuple[str, ...]:
        """Raise the high seqno to ``seqno``: the active has no item up to there.

        Return the cursors that are lost; their streams must go back to the disk.
        """
        self.store_received()
        self.persistence.flush(self.high_seqno)
        # No item has this seqno, so only the disk can record that the data reaches it.
        self._store.write([], self.persistence.state.news_at(seqno), snapshot_end=seqno)
        lost = self.memory.drop_stream_cursors()
        self.memory.begin_at(seqno)
        return lost

    # --- cuts and the end

    def cut(self, seqno: int) -> int:
        """Lose every batch that ended above ``seqno``; return the new high seqno.

        If compaction removed what the rollback needs, everything is lost. Raises OSError if the
        file cannot be written, or the rest cannot be read; nothing is lost then.
        """
        self.persistence.flush(seqno)
        left = min(seqno, self._store.persisted_seqno)
        # Find an unreadable state now, while nothing is lost.
        self._store.check_state(left)
        left = self.disk.cut(seqno)
        # Only after the disk was cut: if that fails, these batches must still be written.
        self._unwritten.clear()
        self.memory.begin_at(left)
        self._read_again()
        return left

    def _read_again(self) -> None:
        self.newest.begin_anew()
        self.disk.begin_anew()
        for frames in self._store.warm_up():
            for version in versions_of(frames):
                self.newest.note_read(version)
                self.disk.note_stored(version)

    def give_up(self) -> None:
        """Discard the data and all unwritten batches; a background flusher then finds nothing to
        do.
        """
        self.persistence.give_up()
        self.close()

    def close(self) -> None:
        """Close the file for new operations; open scans continue."""
        self._store.close()

"""The data of one vbucket: its memory, disk, persistence and newest versions.

    memory        memory_history.py   checkpoints: what was written last, for streams and the disk
    persistence   persistence.py      how that gets to disk, with the state; compaction
    disk          disk_history.py     what is there: how far, what can be read, or gone back to
    newest        newest_versions.py  what every key holds now

This module has the operations over several of them: a write, a batch's end, a cut, a beginning.
Each batch on disk ends at a consistent state, so a crash or a failover can return to the end of any
batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dcp.server.checkpoints.checkpoint_manager import CheckpointLimits, CheckpointManager
from dcp.server.model.durability import Durability
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


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The limits of checkpoints, and the number of newest seqnos that are kept from the disk.

    With ``writes_behind`` a flusher has the ``persistence`` flush. ``keeps_values``: whether values
    that are on disk stay in memory, too.
    """

    limits: CheckpointLimits
    unpersisted_seqnos: int = 0
    writes_behind: bool = False
    keeps_values: bool = True


class VbucketData:
    """Versions of one vbucket. ``base_seqno`` is the high seqno before the first of them."""

    def __init__(
        self,
        vbucket: int,
        file: DiskFile,
        settings: DataSettings,
        *,
        base_seqno: int = 0,
        persisted_seqno: int | None = None,
        purge_seqno: int = 0,
    ) -> None:
        self.vbucket = vbucket
        self._on_append: Callable[[Version], None] = lambda _: None
        self._require_room: Callable[[], None] = lambda: None
        self._writes_behind = settings.writes_behind
        self._unwritten = UnwrittenBatches()
        self._store = VbucketStore.open(file, vbucket)
        self.memory = MemoryHistory(vbucket, settings.limits, base_seqno)
        self.newest = NewestVersions(vbucket, self._store, keeps_values=settings.keeps_values)
        self.disk = DiskHistory(
            self._store,
            self._unwritten,
            base_seqno=base_seqno,
            persisted_seqno=persisted_seqno,
            purge_seqno=purge_seqno,
        )
        self.persistence = Persistence(
            vbucket,
            self._store,
            self._unwritten,
            self.memory,
            self.disk,
            self.newest,
            settings.unpersisted_seqnos,
        )

    # --- who hears of writes

    def on_append(self, listener: Callable[[Version], None]) -> None:
        """Call ``listener`` with each version that is appended from now on, and nobody else."""
        self._on_append = listener

    def write_behind(self, require_room: Callable[[], None]) -> None:
        """Call this before clients write: it raises OSError where too much waits for the disk."""
        self._require_room = require_room

    def require_room(self) -> None:
        """Raise OSError where too much waits for the disk; to be called before a client writes."""
        self._require_room()

    # --- where it stands

    @property
    def base_seqno(self) -> int:
        """The high seqno before the first version."""
        return self.disk.base_seqno

    @property
    def high_seqno(self) -> int:
        """The newest seqno; ``base_seqno`` while there is none."""
        return self.memory.checkpoints.high_seqno

    @property
    def checkpoints(self) -> CheckpointManager[Version]:
        """The checkpoints in memory; a cut or a new beginning replaces them."""
        return self.memory.checkpoints

    @property
    def is_whole(self) -> bool:
        """True if all of it, in memory and on disk, is consistent: no partial snapshot."""
        return self.checkpoints.is_snapshot_complete and self.disk.ends_whole

    def tombstones_on_disk(self) -> int:
        """Return about how many keys hold a tombstone on disk: all that is no document there."""
        return max(0, self.disk.item_count - self.newest.document_counts().total())

    def durability_at(self, end_seqno: int) -> Durability:
        """Return the durability seqnos at a seqno, the persisted or one in memory."""
        return self.newest.keys.durability.at(end_seqno, self.base_seqno)

    # --- beginnings

    def start_at(self, base_seqno: int) -> None:
        """Let seqnos begin after ``base_seqno``; only while nothing was written."""
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
        self, base_seqno: int, whole_seqno: int | None = None, learned_purge_seqno: int = 0
    ) -> None:
        """Take what the file held when it was opened as the data; before the first write.

        With a ``whole_seqno`` no more than up to there: earlier disk snapshots may be parts of
        received ones, so they are no rollback points.
        """
        self.disk.begin_at(base_seqno)
        self.disk.take_up(whole_seqno, learned_purge_seqno)
        self.memory.begin_at(self.disk.persisted_seqno)
        self._read_again()

    # --- writing

    def append(self, version: Version) -> None:
        """Add the newest version; its seqno must be the next one."""
        if version.seqno >= U64_MAX:
            raise ValueError(f"vbucket {self.vbucket}: found seqno {version.seqno}, the last one")
        self.checkpoints.queue(version)
        self.newest.note(version)
        self._on_append(version)

    def end_batch(self) -> None:
        """End a batch of writes; whenever it is flushed, it will be a disk snapshot of its own."""
        if batch := self.memory.take_batch():
            self._unwritten.add(batch)

    def finish_batch(self) -> None:
        """End a batch of writes, and flush it unless that is a flusher's work."""
        self.end_batch()
        if not self._writes_behind:
            self.persistence.flush()

    def receive(self, version: Version) -> None:
        """Add an item of the snapshot that a replica is receiving; ``store_received`` follows.

        Raises:
            LocalProtocolError: its seqno is not above the high seqno or outside the snapshot.
        """
        self.checkpoints.receive(version)
        self.newest.note(version)

    def store_received(self) -> None:
        """Write the items that a replica received, or schedule them, even part of a snapshot.

        What came from the active's disk leaves memory when it is written, if no stream wants it.
        """
        if not self.checkpoints.is_snapshot_complete:
            self.disk.note_part(self.high_seqno)
        self.finish_batch()
        if not self._writes_behind:
            self.persistence.flush(self.high_seqno)

    def advance_to(self, seqno: int) -> tuple[str, ...]:
        """Advance to a seqno at which a replica was told that there is no item.

        Returns the cursors that memory lost by it: their streams go back to the disk.
        """
        self.store_received()
        self.persistence.flush(self.high_seqno)
        self._store.write([], self.persistence.state.news_at(seqno), snapshot_end=seqno)
        lost = self.memory.drop_stream_cursors()
        self.memory.begin_at(seqno)
        return lost

    # --- losing

    def cut(self, seqno: int) -> int:
        """Lose every batch that ended above ``seqno``; return where the data now ends.

        That is lower than a batch's end at ``seqno`` only where compaction took away what going
        back needs: then everything is lost.

        Raises:
            OSError: the file cannot be written, or what would stay cannot be read; nothing is
                lost, and what waits goes on waiting.
        """
        self.persistence.flush(seqno)
        left = min(seqno, self._store.persisted_seqno)
        self._store.check_state(left)
        left = self.disk.cut(seqno)
        self._unwritten.clear()  # only now: what the disk did not lose is still to be written
        self.memory.begin_at(left)
        self._read_again()
        return left

    def _read_again(self) -> None:
        """Read the newest versions from disk again."""
        self.newest.begin_anew()
        self.disk.begin_anew()
        for frames in self._store.warm_up():
            for version in versions_of(frames):
                self.newest.note_read(version)
                self.disk.note_stored(version)

    def give_up(self) -> None:
        """Discard the data; what was not written never will be.

        A flusher or compactor that holds it finds nothing to do.
        """
        self.persistence.give_up()
        self.close()

    def close(self) -> None:
        """End the use of the file; scans that are open go on."""
        self._store.close()

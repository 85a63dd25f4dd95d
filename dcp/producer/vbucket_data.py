"""The data of one vbucket: checkpoints in memory, the log on disk, the newest version of every key.

A write goes into the open checkpoint. At the end of a batch of writes its items are taken by a
cursor of their own: they will be one disk snapshot, whatever is written to the same keys later. The
persistence cursor follows when they are on disk. They are written at once, or later by a flusher
(``writes_behind``): many batches in one, all or nothing, and each stays a state that one can go
back to; ``unpersisted_seqnos`` keeps back the ones that end among so many newest seqnos, as a disk
that lags. What was taken is at a state that there was, so a crash or a failover can go back to the
end of any batch (kv_engine ``engines/ep/src/checkpoint_manager.cc``,
``docs/dcp/documentation/concepts.md``).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

from dcp.producer.checkpoint_manager import (
    CheckpointKind,
    CheckpointLimits,
    CheckpointManager,
)
from dcp.producer.disk_file import DiskFile
from dcp.producer.disk_scan import Scan
from dcp.producer.disk_store import StoredItem, VbucketStore
from dcp.producer.disk_writer import DiskWriter
from dcp.producer.durability import Durability
from dcp.producer.key_index import KeyIndex
from dcp.producer.legacy_end import LegacyEnd
from dcp.producer.manifest import DEFAULT_ID
from dcp.producer.pending_write import PendingWrite
from dcp.producer.preload import PreloadedSegment
from dcp.producer.preloaded_documents import PreloadedDocuments
from dcp.producer.received_parts import ReceivedParts
from dcp.producer.resident_values import EvictedVersion, ResidentValues
from dcp.producer.state_on_disk import StateOnDisk
from dcp.producer.stored_items import stored_item, version_of, versions_of
from dcp.producer.unwritten_batches import UnwrittenBatches, WriteBatch
from dcp.producer.vbucket_state import SavedVbucket
from dcp.producer.versions import Version
from dcp.types import U64_MAX

PERSISTENCE: Final = "persistence"
"""The cursor of what must go to disk; it is never dropped."""
_BATCHES: Final = "batches"
"""The cursor that takes what a batch of writes left, at its end."""
_OWN_CURSORS: Final = (_BATCHES, PERSISTENCE)


@dataclass(frozen=True, slots=True)
class DataSettings:
    """When checkpoints are closed; how many of the newest seqnos are kept from the disk.

    With ``writes_behind`` somebody else calls ``flush``, or ``begin_flush`` and ``finish_flush``.
    """

    limits: CheckpointLimits
    unpersisted_seqnos: int = 0
    writes_behind: bool = False


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
        values: ResidentValues | None = None,
    ) -> None:
        """``values`` of all vbuckets decides which values stay in memory; without it all do."""
        self.vbucket = vbucket
        self.base_seqno = base_seqno
        self.on_append: Callable[[Version], None] = lambda _: None
        self.require_room: Callable[[], None] = lambda: None
        """Called before a client writes: raises OSError where too much waits for the disk."""
        self.on_compaction: Callable[[], None] = lambda: None
        """Called when less can be gone back to than before."""
        self._preloaded: PreloadedDocuments | None = None
        self._settings = settings
        self._persisted_floor = base_seqno if persisted_seqno is None else persisted_seqno
        self.learned_purge_seqno = purge_seqno
        """Up to where tombstones went of which nobody knows in which collections they were.

        The vbucket that this was a copy of had none any more, or it is not told since a cut."""
        self._values = values
        self.keys = KeyIndex(values)
        self._legacy_end = LegacyEnd()
        self.scans_opened = 0
        """How often a stream began to read what is on disk."""
        self._unwritten = UnwrittenBatches()
        self._parts = ReceivedParts()
        self.stored_high_seqnos: dict[int, int] = {}
        """The newest seqno of each collection that went to disk, also where it was purged there."""
        self._is_over = False
        self._store = VbucketStore.open(file, vbucket)
        self._writer = DiskWriter(self._store, vbucket)
        self._state = StateOnDisk(lambda: self._store.state)
        self.checkpoints = self._new_checkpoints(base_seqno)

    @property
    def state_at(self) -> Callable[[int], SavedVbucket | None]:
        """What is written beside the items up to a seqno: all else that makes the vbucket."""
        return self._state.state_at

    @state_at.setter
    def state_at(self, state_at: Callable[[int], SavedVbucket | None]) -> None:
        self._state.state_at = state_at

    def _new_checkpoints(self, high_seqno: int) -> CheckpointManager[Version]:
        fresh: CheckpointManager[Version] = CheckpointManager(
            self.vbucket, self._settings.limits, high_seqno
        )
        for cursor in _OWN_CURSORS:
            fresh.register(cursor, high_seqno, droppable=False)
        return fresh

    # --- where it stands

    @property
    def high_seqno(self) -> int:
        """The newest seqno; ``base_seqno`` while there is none."""
        return self.checkpoints.high_seqno

    @property
    def persisted_seqno(self) -> int:
        """The newest seqno on disk; not below where the data begins."""
        return max(self._persisted_floor, self._store.persisted_seqno)

    @property
    def is_whole(self) -> bool:
        """Whether all of it, in memory and on disk, is a state: no part of a received snapshot."""
        on_disk = self._store.persisted_seqno
        return self.checkpoints.is_snapshot_complete and on_disk not in self._parts

    @property
    def unwritten_bytes(self) -> int:
        """What waits for the disk, batches of writes that have ended."""
        return self._unwritten.size_bytes

    @property
    def stored_bytes(self) -> int:
        """The length of the log, with what compaction will drop of it."""
        return self._store.size_bytes

    @property
    def purge_seqno(self) -> int:
        """The highest seqno of a purged tombstone; 0 while none was purged."""
        return max(self.learned_purge_seqno, self._store.purge_seqno)

    def batch_end_at(self, seqno: int) -> int:
        """Return the end of the newest batch of writes that ended at or below ``seqno``.

        Preloaded documents are of different keys: each is a batch of its own. Of what a replica
        received it is the end of a whole snapshot.
        """
        if self.base_seqno <= seqno <= self.preloaded_seqno:
            return seqno
        for end in self._unwritten.ends_down_from(seqno):
            if end not in self._parts:
                return end
        end = self._store.snapshot_at(seqno).end
        while end in self._parts:
            end = self._store.snapshot_at(end - 1).end
        return end if end and end >= self._parts.known_from else self.base_seqno

    def whole_seqno_at(self, seqno: int) -> int | None:
        """Return ``batch_end_at`` of a seqno where a part of a snapshot ended below; else None."""
        return self.batch_end_at(seqno) if self._parts else None

    # --- documents

    def newest(self, key: bytes, collection: int = DEFAULT_ID) -> Version | None:
        """Return the newest version of ``key``, which may be a deletion."""
        version = self.keys.newest(key, collection)
        if version is None and collection == DEFAULT_ID and self._preloaded is not None:
            frame = self._store.read(self._preloaded.seqno_of(key, self.keys))
            version = None if frame is None else version_of(frame)
        return version

    def with_value(self, version: Version) -> Version:
        """Return a newest version with its value, which is read from disk where it was evicted.

        Raises:
            OSError: the file cannot be read.
        """
        if not isinstance(version, EvictedVersion):
            self.keys.use(version)
            return version
        frame = self._store.read(version.seqno)
        if frame is None:
            raise AssertionError(f"vbucket {self.vbucket}: seqno {version.seqno} is not on disk")
        whole = version_of(frame)
        self.keys.restore(whole)
        return whole

    def _note(self, version: Version, *, is_read: bool = False) -> None:
        if self._preloaded is not None:
            self._preloaded.note(version, self.keys)
        if is_read:
            self.keys.note_stored(version)
        else:
            self.keys.note(version)

    def document_counts(self) -> Counter[int]:
        """Return how many documents there are of each collection that has some."""
        counts = Counter(self.keys.live)
        if self._preloaded is not None and DEFAULT_ID not in self.keys.emptied_at:
            counts[DEFAULT_ID] += self._preloaded.count
        return +counts

    def tombstones_on_disk(self) -> int:
        """Return about how many keys hold a tombstone on disk: all that is no document there."""
        return max(0, self._store.item_count - self.document_counts().total())

    @property
    def persisted_snapshot(self) -> tuple[int, int]:
        """Where the newest snapshot on disk begins and ends."""
        found = self._store.snapshot_at(self.persisted_seqno)
        if not found.end:
            return self.persisted_seqno, self.persisted_seqno
        return found.start, found.end

    def newest_versions(self) -> Iterable[Version]:
        """Return the newest version of all that was not only preloaded, events included."""
        return self.keys.versions

    @property
    def preloaded_seqno(self) -> int:
        """The seqno of the last preloaded document; ``base_seqno`` where there is none."""
        return max(self.base_seqno, 0 if self._preloaded is None else self._preloaded.end_seqno)

    # --- writing

    def start_at(self, base_seqno: int) -> None:
        """Let seqnos begin after ``base_seqno``; only while nothing was written."""
        if self.high_seqno != self.base_seqno:
            raise ValueError(
                f"vbucket {self.vbucket}: found {self.high_seqno - self.base_seqno} versions, "
                "a base seqno must be set before the first write"
            )
        if not 0 <= base_seqno < U64_MAX:
            raise ValueError(f"base seqno: found {base_seqno}, expected 0 to {U64_MAX - 1}")
        self.base_seqno = self._persisted_floor = base_seqno
        self.checkpoints = self._new_checkpoints(base_seqno)

    @property
    def saved_state(self) -> bytes:
        """The state that was last written; empty before the first."""
        return self._store.state

    def reopen(
        self, base_seqno: int, whole_seqno: int | None = None, learned_purge_seqno: int = 0
    ) -> None:
        """Take what the file held when it was opened as the data; before the first write.

        With a ``whole_seqno`` no more than up to there: of disk snapshots before it nobody knows
        any more which were parts of what a replica received, so there is no going back to one.
        """
        self.base_seqno = self._persisted_floor = base_seqno
        if whole_seqno is not None:
            self._parts.known_from = self._store.cut(whole_seqno)
        self.learned_purge_seqno = min(learned_purge_seqno, self.persisted_seqno)
        self.checkpoints = self._new_checkpoints(self.persisted_seqno)
        self._read_again()

    def preload(self, segment: PreloadedSegment) -> None:
        """Take a whole segment as the beginning of the data; it is on disk at once."""
        if self.high_seqno != self.base_seqno:
            raise ValueError(f"vbucket {self.vbucket}: a segment must come before the first write")
        self._preloaded = PreloadedDocuments(segment, self._store)
        self._legacy_end = LegacyEnd(self._preloaded.end_seqno)
        self._store.write_frames(
            segment.frames, segment.first_seqno, self._state.news_at(self._preloaded.end_seqno)
        )
        self.checkpoints = self._new_checkpoints(self._store.persisted_seqno)

    def append(self, version: Version) -> None:
        """Add the newest version; its seqno must be the next one."""
        if version.seqno >= U64_MAX:
            raise ValueError(f"vbucket {self.vbucket}: found seqno {version.seqno}, the last one")
        self.checkpoints.queue(version)
        self._note(version)
        self.on_append(version)

    def receive(self, version: Version) -> None:
        """Add an item of the snapshot that a replica is receiving; ``settle_received`` follows.

        Raises:
            LocalProtocolError: its seqno is not above the high seqno or outside the snapshot.
        """
        self.checkpoints.receive(version)
        self._note(version)

    def settle_received(self) -> None:
        """Write what a replica received, or have it written, also where that is a part only.

        What came from the active's disk leaves memory when it is written, if no stream wants it.
        """
        if not self.checkpoints.is_snapshot_complete:
            self._parts.add(self.high_seqno)
        self.settle()
        if not self._settings.writes_behind:
            self.flush(self.high_seqno)

    def advance_to(self, seqno: int) -> tuple[str, ...]:
        """Be complete up to a seqno at which a replica was told that there is no item.

        Returns the cursors that memory lost by it: their streams go back to the disk.
        """
        self.settle_received()
        self.flush(self.high_seqno)
        self._store.write([], self._state.news_at(seqno), snapshot_end=seqno)
        lost = self.drop_stream_cursors()
        self.checkpoints = self._new_checkpoints(seqno)
        return lost

    def drop_stream_cursors(self) -> tuple[str, ...]:
        """Forget the cursors of all streams, and return them: they must be told."""
        lost = tuple(name for name in self.checkpoints.cursors if name not in _OWN_CURSORS)
        for name in lost:
            self.checkpoints.remove(name)
        return lost

    def learn_purge_seqno(self, seqno: int) -> None:
        """Know that the vbucket this is a copy of has no tombstones any more up to a seqno."""
        self.learned_purge_seqno = max(self.learned_purge_seqno, seqno)

    def settle(self) -> None:
        """End a batch of writes: what it left will be a disk snapshot of its own."""
        batch: list[Version] = []
        while (taken := self.checkpoints.next_items(_BATCHES)) is not None:
            batch += taken.items
        if batch:
            self._unwritten.add(batch)
        if not self._settings.writes_behind:
            self.flush()

    def flush(self, up_to: int | None = None) -> None:
        """Write the batches that end at or below a seqno (None: all but ``unpersisted_seqnos``).

        Raises:
            OSError: the file cannot be written; this may be called again.
        """
        self._finish_pending()
        while self.begin_flush(up_to) is not None:
            self._finish_pending()
        self._free_written()

    def begin_flush(self, up_to: int | None = None) -> PendingWrite | None:
        """Return what is to be written next, for any thread to ``run``; None where nothing is.

        ``finish_flush`` must follow. What could not be written is returned again. Whatever fails
        here, nothing is begun then, and what waits goes on waiting.
        """
        if self._writer.pending is None:
            most = self.high_seqno - self._settings.unpersisted_seqnos if up_to is None else up_to
            if due := self._unwritten.due(most):
                self._begin_batches(due)
        return self._writer.pending

    def _begin_batches(self, batches: Sequence[WriteBatch]) -> None:
        ends = [batch[-1].seqno for batch in batches]
        state = self._state.news_at(ends[-1])
        versions = list(chain.from_iterable(batches))
        items: list[StoredItem] = []
        with self.keys.storing(versions):
            for version in versions:
                items.append(self._stored(version, items))
            self._writer.begin_batch(items, state, ends[:-1])

    def begin_compaction(
        self, purge_before_seconds: int = 0, *, leaves_nothing: bool = False
    ) -> PendingWrite | None:
        """Return a log without old versions to be written, as ``begin_flush``; None: no need.

        Tombstones go of the seqnos up to which each was deleted before a time.
        """
        if not self._is_over and self._writer.pending is None:
            state = partial(self._state.encoded_at, self.persisted_seqno)
            self._writer.begin_compaction(
                purge_before_seconds, state, leaves_nothing=leaves_nothing
            )
        return self._writer.pending

    @property
    def is_mostly_stale(self) -> bool:
        """Whether compaction pays, tombstones apart: known without a look at the items."""
        return self._writer.is_mostly_stale

    def finish_flush(self, written: PendingWrite) -> None:
        """Know that it is on disk, or that a compaction could not be written; what waits goes on.

        Nothing is done if somebody else could not wait and did that.
        """
        if self._writer.pending is written:
            self._finish_pending()
            self._free_written()

    def _free_written(self) -> None:
        """Free the memory of what no stream wants: closed checkpoints, and what came from a disk.

        That is one checkpoint, as large as the active's disk may be.
        """
        self.checkpoints.remove_closed()
        if self.checkpoints.open_head.kind is CheckpointKind.DISK:
            self.checkpoints.expel()

    def _finish_pending(self) -> None:
        """Wait until what is being written is on disk; a compaction that fails is given up."""
        if self._writer.pending is None:
            return
        is_compacted = self._writer.finish()
        written = self._unwritten.take_written(self._store.persisted_seqno)
        if is_compacted:
            self._forget_what_went()
        self.keys.may_evict(written)
        for version in written:
            self._note_stored(version)
        self.checkpoints.register(PERSISTENCE, self.persisted_seqno, droppable=False)
        self.keys.durability.forget(min(self.persisted_seqno, self.checkpoints.gone_seqno))

    def save_state(self) -> None:
        """Write the state durably, if it is another than what is on disk.

        Raises:
            OSError: the file cannot be written.
        """
        if (write := self.begin_save()) is not None:
            write.complete()

    def begin_save(self) -> PendingWrite | None:
        """Return the state to be written, if it is another than what is on disk; else None.

        It must ``end`` before anything else is written.

        Raises:
            OSError: what was being written cannot be.
        """
        self._finish_pending()
        state = self._state.encoded_at(self.persisted_seqno)
        if state == self._store.state or self._is_over:
            return None
        return self._store.begin([], state)

    def _stored(self, version: Version, earlier: Sequence[StoredItem]) -> StoredItem:
        """Return a version as it goes to disk, behind ``earlier`` ones that are not there yet."""
        completes = self.keys.prepare_completed_by(version)
        replaces = self.keys.stored(version)
        if self._preloaded is not None:
            more = self._preloaded.ended_by(version, self.keys, replaces, earlier)
            replaces = [*replaces, *more]
        return stored_item(version, replaces, completes)

    # --- losing and forgetting

    def cut(self, seqno: int) -> int:
        """Lose every batch that ended above ``seqno``; return where the data now ends.

        That is lower than a batch's end at ``seqno`` only where compaction took away what going
        back needs: then everything is lost.

        Raises:
            OSError: the file cannot be written; nothing is lost, and what waits goes on waiting.
        """
        self.flush(seqno)
        left = max(self._store.cut(seqno), self.base_seqno)
        self._unwritten.clear()  # only now: what the disk did not lose is still to be written
        self._persisted_floor = min(self._persisted_floor, left)
        learned = min(self.learned_purge_seqno, left)
        self.learned_purge_seqno = max(learned, self._store.purge_seqno)
        if self._preloaded is not None:
            self._preloaded.cut(left)
        self.stored_high_seqnos.clear()
        self._parts.cut(left)
        self.checkpoints = self._new_checkpoints(left)
        self._read_again()
        return left

    def _read_again(self) -> None:
        """Learn the newest versions from disk."""
        self.keys.close()
        self.keys = KeyIndex(self._values)
        self._legacy_end = LegacyEnd(self._newest_preloaded)
        for frames in self._store.warm_up(self.preloaded_seqno):
            for version in versions_of(frames):
                self._note(version, is_read=True)
                self._note_stored(version)

    def _note_stored(self, version: Version) -> None:
        self._legacy_end.note(version)
        self.stored_high_seqnos[version.collection] = version.seqno

    @property
    def _newest_preloaded(self) -> int:
        return 0 if self._preloaded is None else self._preloaded.newest_seqno

    def purge(self, up_to: int) -> int:
        """Compact the disk: drop tombstones up to a seqno, not the newest item; return how many."""
        self._finish_pending()
        last = min(up_to, self.persisted_seqno)
        state = self._state.encoded_at(self.persisted_seqno)
        purged = self._store.compact(purge_up_to_seqno=last, state=state)
        self._forget_what_went()
        return purged

    def _forget_what_went(self) -> None:
        """Forget the keys of which compaction left nothing."""
        self.keys.forget_tombstones(self._store.purge_seqno)
        self.keys.forget_prepares(
            self.persisted_seqno, lambda seqno: self._store.count(seqno - 1, seqno) > 0
        )
        committed, prepared = self.keys.stored_high_seqnos(DEFAULT_ID)
        self._legacy_end = LegacyEnd(max(committed, self._newest_preloaded), prepared)
        self._parts.merge(self.persisted_seqno)
        self.on_compaction()

    def may_be_cut(self, first_seqno: int, end_seqno: int) -> bool:
        """Whether some seqno of first to end, without the end, can be gone back to."""
        return self._store.may_be_cut(first_seqno, end_seqno)

    def give_up(self) -> None:
        """End the use of data that nobody wants any more; what was not written never will be.

        Whoever had it to flush or to compact finds nothing to do.
        """
        self._is_over = True
        self._writer.abandon()
        self._unwritten.clear()
        self.keys.close()
        self.close()

    def close(self) -> None:
        """End the use of the file; scans that are open go on."""
        self._store.close()

    # --- reading

    def durability_at(self, end_seqno: int) -> Durability:
        """Return how far sync writes had come at a seqno, the persisted or one in memory."""
        return self.keys.durability.at(end_seqno, self.preloaded_seqno)

    def legacy_end(self, *, sync_writes: bool) -> int:
        """Return the seqno of the last item on disk that clients without Collections are shown.

        With ``sync_writes`` those that are shown prepares and aborts too. 0 where there is none.
        """
        return self._legacy_end.newest if sync_writes else self._legacy_end.visible

    def scan(self, after_seqno: int) -> Scan:
        """Open one disk snapshot of everything after a seqno, each key at its newest version.

        However many disk snapshots that merges: a store that is indexed by seqno, as kv_engine's,
        has no older version to show. (The DCP concepts document lets merged ones keep them.)
        """
        self.scans_opened += 1
        return self._store.scan(after_seqno, each_key_once=True)

    def scan_state(self, after_seqno: int, end_seqno: int) -> Scan | None:
        """Open what the vbucket held at ``end_seqno``, of it what is above ``after_seqno``.

        None where the disk cannot tell: it is not there yet, or compaction took some of it.
        """
        is_known = after_seqno >= self.purge_seqno and end_seqno <= self._store.persisted_seqno
        if not is_known or not self._store.may_be_cut(end_seqno, end_seqno + 1):
            return None
        self.scans_opened += 1
        return self._store.scan(after_seqno, each_key_once=True, end_seqno=end_seqno)

"""The history of one vbucket on disk: persisted and purge seqno, and rollback points.

Each batch of writes becomes one disk snapshot, so its end is a state that existed: a crash or
failover can return to it (``docs/dcp/documentation/concepts.md``). In a replica only ends of whole
snapshots are such states. Batches that wait for the disk have rollback points, too.
"""

from collections.abc import Mapping

from dcp.server.model.versions import Version
from dcp.server.storage.disk_scan import Scan
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.storage.legacy_end import LegacyEnd
from dcp.server.storage.received_parts import ReceivedParts
from dcp.server.storage.unwritten_batches import UnwrittenBatches


class DiskHistory:
    """The part of a vbucket's history that is on disk, and the batches that wait for it."""

    def __init__(
        self,
        store: VbucketStore,
        unwritten: UnwrittenBatches,
        *,
        base_seqno: int,
        persisted_seqno: int | None,
        purge_seqno: int,
    ) -> None:
        """``base_seqno`` is the high seqno before the first version.

        ``persisted_seqno`` counts as persisted before anything is on disk; None: the base seqno.
        """
        self._store = store
        self._unwritten = unwritten
        self._persisted_floor = 0
        self._parts = ReceivedParts()
        self.begin_at(base_seqno, persisted_seqno)
        self.learned_purge_seqno = purge_seqno
        """Tombstones up to here are gone, and nobody knows in which collections.

        A replica learns this seqno from its active. After a cut it includes the store's own purge
        seqno.
        """
        self._legacy_end = LegacyEnd()
        """End of disk snapshots for clients without Collections."""
        self.high_seqnos: dict[int, int] = {}
        """The newest seqno on disk by collection, purged items included."""
        self.scans_opened = 0
        """For statistics: the number of disk scans that streams opened."""

    def begin_at(self, base_seqno: int, persisted_seqno: int | None = None) -> None:
        self.base_seqno = base_seqno
        self._persisted_floor = base_seqno if persisted_seqno is None else persisted_seqno

    # --- state

    @property
    def persisted_seqno(self) -> int:
        """The newest seqno on disk, at least the base seqno."""
        return max(self._persisted_floor, self._store.persisted_seqno)

    @property
    def persisted_snapshot(self) -> tuple[int, int]:
        found = self._store.snapshot_at(self.persisted_seqno)
        if not found.end:
            return self.persisted_seqno, self.persisted_seqno
        return found.start, found.end

    @property
    def item_count(self) -> int:
        return self._store.item_count

    @property
    def size_bytes(self) -> int:
        return self._store.size_bytes

    @property
    def replaced_bytes(self) -> int:
        return self._store.replaced_bytes

    @property
    def saved_state(self) -> bytes:
        return self._store.state

    def legacy_end(self, *, sync_writes: bool) -> int:
        """Return the seqno of the last item that a client without Collections gets; 0 if none.

        ``sync_writes``: True if the client also gets prepares and aborts.
        """
        return self._legacy_end.newest if sync_writes else self._legacy_end.visible

    def note_stored(self, version: Version) -> None:
        """Record a version that is on disk now; call it in seqno order."""
        self._legacy_end.note(version)
        self.high_seqnos[version.collection] = version.seqno

    def begin_anew(self) -> None:
        """Forget all versions; the caller then reads them again."""
        self._legacy_end = LegacyEnd()
        self.high_seqnos.clear()

    # --- purges

    @property
    def purge_seqno(self) -> int:
        return max(self.learned_purge_seqno, self._store.purge_seqno)

    def learn_purge_seqno(self, seqno: int) -> None:
        """Record that the active has purged up to ``seqno``: a replica never got those
        tombstones.
        """
        self.learned_purge_seqno = max(self.learned_purge_seqno, seqno)

    # --- rollback points

    def batch_end_at(self, seqno: int) -> int:
        """Return the newest rollback point at or below ``seqno``."""
        for end in self._unwritten.ends_down_from(seqno):
            if end not in self._parts:
                return end
        end = self._store.snapshot_at(seqno).end
        while end in self._parts:
            end = self._store.snapshot_at(end - 1).end
        # After a restart nobody knows which older ends lie inside snapshots.
        return end if end and end >= self._parts.known_from else self.base_seqno

    def complete_seqno_at(self, seqno: int) -> int | None:
        """Return ``batch_end_at(seqno)`` if some batch ended inside a snapshot; else None."""
        return self.batch_end_at(seqno) if self._parts else None

    @property
    def is_complete(self) -> bool:
        return self._store.persisted_seqno not in self._parts

    def note_part(self, end_seqno: int) -> None:
        self._parts.add(end_seqno)

    def note_compacted(self, legacy_end: LegacyEnd) -> None:
        """Record that a compaction has merged everything on disk into one complete snapshot."""
        self._legacy_end = legacy_end
        self._parts.merge(self.persisted_seqno)

    def may_be_cut(self, first_seqno: int, end_seqno: int) -> bool:
        return self._store.may_be_cut(first_seqno, end_seqno)

    def take_up(self, complete_seqno: int | None, learned_purge_seqno: int) -> None:
        if complete_seqno is not None:
            self._parts.know_from(self._store.cut(complete_seqno))
        # The cut may have removed the snapshot from which this seqno came.
        self.learned_purge_seqno = min(learned_purge_seqno, self.persisted_seqno)

    def restore_high_seqnos(self, high_seqnos: Mapping[int, int]) -> None:
        self.high_seqnos = dict(high_seqnos)

    def cut(self, seqno: int) -> int:
        """Lose everything above ``seqno``; return the new end. The caller reads all versions again.

        Raises OSError if the file cannot be written; nothing is lost then.
        """
        left = max(self._store.cut(seqno), self.base_seqno)
        self._persisted_floor = min(self._persisted_floor, left)
        learned = min(self.learned_purge_seqno, left)
        self.learned_purge_seqno = max(learned, self._store.purge_seqno)
        self._parts.cut(left)
        return left

    # --- reading

    def scan(self, after_seqno: int, before_seqno: int | None = None) -> Scan:
        """Open one disk snapshot of everything after a seqno, with the newest version of each key.

        It merges any number of disk snapshots, as kv_engine does: its store has no older versions.
        ``before_seqno`` limits what is read, not what counts as newest.
        """
        self.scans_opened += 1
        return self._store.scan(after_seqno, each_key_once=True, before_seqno=before_seqno)

    @property
    def history_start_seqno(self) -> int:
        return self._store.history_start_seqno

    def scan_history(self, after_seqno: int) -> Scan:
        """Open all versions after a seqno, but none before ``history_start_seqno``."""
        self.scans_opened += 1
        after = max(after_seqno, self.history_start_seqno - 1)
        return self._store.scan(after, each_key_once=False)

    def scan_state(
        self, after_seqno: int, end_seqno: int, *, each_key_once: bool = True
    ) -> Scan | None:
        """Open the vbucket as it was at ``end_seqno``, without what is at or below ``after_seqno``.

        With ``each_key_once=False`` it includes versions that were replaced in between. The result
        is None if ``end_seqno`` is not on disk yet, or compaction has dropped some of its state.
        """
        is_known = after_seqno >= self.purge_seqno and end_seqno <= self._store.persisted_seqno
        if not is_known or not self._store.may_be_cut(end_seqno, end_seqno + 1):
            return None
        self.scans_opened += 1
        return self._store.scan(after_seqno, each_key_once=each_key_once, end_seqno=end_seqno)

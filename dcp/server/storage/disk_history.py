"""The history of a vbucket on disk: persisted and purge seqno, and rollback points.

A batch of writes is one disk snapshot, so each end of one is a state that there was: a crash or a
failover can go back to it (``docs/dcp/documentation/concepts.md``). Of what a copy received only
the ends of whole snapshots are. Batches that wait for the disk have such ends too.
"""

from collections.abc import Mapping

from dcp.server.model.versions import Version
from dcp.server.storage.disk_scan import Scan
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.storage.legacy_end import LegacyEnd
from dcp.server.storage.received_parts import ReceivedParts
from dcp.server.storage.unwritten_batches import UnwrittenBatches


class DiskHistory:
    """One vbucket's history on disk; ``base_seqno`` is the high seqno before the first version."""

    def __init__(
        self,
        store: VbucketStore,
        unwritten: UnwrittenBatches,
        *,
        base_seqno: int,
        persisted_seqno: int | None,
        purge_seqno: int,
    ) -> None:
        """A ``persisted_seqno`` is told before anything is on disk; None: the base seqno."""
        self._store = store
        self._unwritten = unwritten
        self._persisted_floor = 0
        self._parts = ReceivedParts()
        self.begin_at(base_seqno, persisted_seqno)
        self.learned_purge_seqno = purge_seqno
        """Up to where tombstones went of which nobody knows in which collections they were.


        As the vbucket says that this was a copy of. After a cut it also holds the store's purge
        seqno, as it is unknown which collections lost tombstones."""
        self._legacy_end = LegacyEnd()
        """The ends of disk snapshots for clients without Collections."""
        self.high_seqnos: dict[int, int] = {}
        """The newest seqno of each collection that went to disk, also where it was purged there."""
        self.scans_opened = 0
        """The number of disk scans that streams began."""

    def begin_at(self, base_seqno: int, persisted_seqno: int | None = None) -> None:
        """Begin after a seqno; ``persisted_seqno`` as when this was made."""
        self.base_seqno = base_seqno
        self._persisted_floor = base_seqno if persisted_seqno is None else persisted_seqno

    # --- how far it goes

    @property
    def persisted_seqno(self) -> int:
        """The newest seqno on disk; not below where the data begins."""
        return max(self._persisted_floor, self._store.persisted_seqno)

    @property
    def persisted_snapshot(self) -> tuple[int, int]:
        """The start and end of the newest snapshot on disk."""
        found = self._store.snapshot_at(self.persisted_seqno)
        if not found.end:
            return self.persisted_seqno, self.persisted_seqno
        return found.start, found.end

    @property
    def item_count(self) -> int:
        """The number of keys on disk, tombstones included."""
        return self._store.item_count

    @property
    def size_bytes(self) -> int:
        """The length of the log, with what compaction will drop of it."""
        return self._store.size_bytes

    @property
    def stale_bytes(self) -> int:
        """The bytes of what compaction would drop: replaced versions, and what was lost."""
        return self._store.stale_bytes

    @property
    def saved_state(self) -> bytes:
        """The state that was last written; empty before the first."""
        return self._store.state

    def legacy_end(self, *, sync_writes: bool) -> int:
        """Return the seqno of the last item that clients without Collections are shown.

        With ``sync_writes`` those that are shown prepares and aborts too. 0 where there is none.
        """
        return self._legacy_end.newest if sync_writes else self._legacy_end.visible

    def note_stored(self, version: Version) -> None:
        """Know of a version that is on disk now; in the order of seqnos."""
        self._legacy_end.note(version)
        self.high_seqnos[version.collection] = version.seqno

    def begin_anew(self) -> None:
        """Know of no version: all are read again."""
        self._legacy_end = LegacyEnd()
        self.high_seqnos.clear()

    # --- what was purged

    @property
    def purge_seqno(self) -> int:
        """The highest seqno of a purged tombstone; 0 while none was purged."""
        return max(self.learned_purge_seqno, self._store.purge_seqno)

    def learn_purge_seqno(self, seqno: int) -> None:
        """Know that the vbucket this is a copy of has no tombstones any more up to a seqno."""
        self.learned_purge_seqno = max(self.learned_purge_seqno, seqno)

    # --- where one can go back to

    def batch_end_at(self, seqno: int) -> int:
        """Return the end of the newest batch of writes that ended at or below ``seqno``.

        Of what a replica received it is the end of a whole snapshot.
        """
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

    @property
    def ends_whole(self) -> bool:
        """True if the disk ends at a consistent state: no part of a received snapshot."""
        return self._store.persisted_seqno not in self._parts

    def note_part(self, end_seqno: int) -> None:
        """Know that what is received will be written up to a seqno inside its snapshot."""
        self._parts.add(end_seqno)

    def note_compacted(self, legacy_end: LegacyEnd) -> None:
        """Know that all on disk is one whole snapshot now, and where that ends."""
        self._legacy_end = legacy_end
        self._parts.merge(self.persisted_seqno)

    def may_be_cut(self, first_seqno: int, end_seqno: int) -> bool:
        """Return whether a rollback to some seqno of first to end, without the end, is possible."""
        return self._store.may_be_cut(first_seqno, end_seqno)

    def take_up(self, whole_seqno: int | None, learned_purge_seqno: int) -> None:
        """Take what the file held when it was opened; see ``VbucketData.reopen``."""
        if whole_seqno is not None:
            self._parts.know_from(self._store.cut(whole_seqno))
        self.learned_purge_seqno = min(learned_purge_seqno, self.persisted_seqno)

    def restore_high_seqnos(self, high_seqnos: Mapping[int, int]) -> None:
        """Take what was saved as the newest seqnos on disk, by collection."""
        self.high_seqnos = dict(high_seqnos)

    def cut(self, seqno: int) -> int:
        """Lose what is above ``seqno``, and return where the disk now ends; all is read anew then.

        Raises:
            OSError: the file cannot be written; nothing is lost.
        """
        left = max(self._store.cut(seqno), self.base_seqno)
        self._persisted_floor = min(self._persisted_floor, left)
        learned = min(self.learned_purge_seqno, left)
        self.learned_purge_seqno = max(learned, self._store.purge_seqno)
        self._parts.cut(left)
        return left

    # --- reading

    def scan(self, after_seqno: int, before_seqno: int | None = None) -> Scan:
        """Open one disk snapshot of everything after a seqno, each key at its newest version.

        However many disk snapshots that merges: a store that is indexed by seqno, as kv_engine's,
        has no older version to show. (The DCP concepts document lets merged ones keep them.)
        Only what lies below ``before_seqno`` is read of it; None: all.
        """
        self.scans_opened += 1
        return self._store.scan(after_seqno, each_key_once=True, before_seqno=before_seqno)

    @property
    def history_start_seqno(self) -> int:
        """The seqno from which on all versions are there: compaction dropped none of them."""
        return self._store.history_start_seqno

    def scan_history(self, after_seqno: int) -> Scan:
        """Open all versions after a seqno, from ``history_start_seqno`` on."""
        self.scans_opened += 1
        after = max(after_seqno, self.history_start_seqno - 1)
        return self._store.scan(after, each_key_once=False)

    def scan_state(
        self, after_seqno: int, end_seqno: int, *, each_key_once: bool = True
    ) -> Scan | None:
        """Open what the vbucket held at ``end_seqno``, of it what is above ``after_seqno``.

        Without ``each_key_once`` also what was replaced between the two. None where the disk cannot
        tell: it is not there yet, or compaction took some of it.
        """
        is_known = after_seqno >= self.purge_seqno and end_seqno <= self._store.persisted_seqno
        if not is_known or not self._store.may_be_cut(end_seqno, end_seqno + 1):
            return None
        self.scans_opened += 1
        return self._store.scan(after_seqno, each_key_once=each_key_once, end_seqno=end_seqno)

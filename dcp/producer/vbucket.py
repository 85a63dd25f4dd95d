"""One vbucket: documents, history, branches, state, and how far replica and disk have come.

A replica is a distance, not a copy: it holds the active's history but for the newest seqnos. A
failover makes that prefix the history (``promote``), a crash what was on disk (``crash``).
"""

from collections.abc import Callable, Iterable, Sequence

from dcp.producer.branch_record import BranchRecord
from dcp.producer.documents import DocumentStore
from dcp.producer.failover import VbucketFacts
from dcp.producer.failover_log import fork
from dcp.producer.history import VbucketHistory
from dcp.producer.hybrid_clock import HybridClock
from dcp.producer.preload import PreloadedSegment
from dcp.producer.settings import ClusterSettings
from dcp.producer.versions import Version
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.vocabulary import VbucketState


class Vbucket:
    """A vbucket of a cluster; used under the bucket's lock. ``fresh_uuid`` gives new branches."""

    def __init__(
        self, vbucket: int, fresh_uuid: Callable[[], int], settings: ClusterSettings
    ) -> None:
        self.id = vbucket
        self._fresh_uuid = fresh_uuid
        self._settings = settings
        self._paused_at: int | None = None
        self._begin(
            VbucketHistory(vbucket, unpersisted_seqnos=settings.unpersisted_seqnos),
            FailoverLog((FailoverEntry(fresh_uuid(), 0),)),
            HybridClock(),
        )

    def _begin(self, history: VbucketHistory, log: FailoverLog, clock: HybridClock) -> None:
        self.history = history
        self.documents = DocumentStore(history, clock)
        self.failover_log = log
        self.state = VbucketState.ACTIVE
        self._collection_high_seqno: int | None = None
        self.record = BranchRecord(self.id, log) if self._settings.record_branches else None
        if self.record is not None:
            history.on_append = self.record.append

    def preload(self, segment: PreloadedSegment) -> None:
        """Take a whole segment as the beginning of an empty vbucket."""
        self.history.preload(segment)
        if self.record is not None:
            self.record.preload(segment)

    @property
    def collection_high_seqno(self) -> int:
        """The newest seqno of the default collection, which is the only one."""
        if self._collection_high_seqno is not None:
            return self._collection_high_seqno
        return self.history.high_seqno

    def facts(self, *, filtered: bool) -> VbucketFacts:
        """Return what decides a stream request; ``filtered`` for a stream of named collections."""
        return VbucketFacts(
            self.failover_log,
            self.history.high_seqno,
            self.history.purge_seqno,
            self.history.persisted_seqno,
            self.collection_high_seqno if filtered else None,
            self.state,
        )

    # --- the replica

    @property
    def replica_seqno(self) -> int:
        """The newest seqno that the replica holds."""
        if self._paused_at is not None:
            return self._paused_at
        lag = self._settings.replica_lag_seqnos
        return max(self.history.base_seqno, self.history.high_seqno - lag)

    @property
    def replica_snapshot_end(self) -> int:
        """The end of the last snapshot that the replica holds whole."""
        held = self.replica_seqno
        return max(self.history.base_seqno, held - held % self._settings.replica_snapshot_seqnos)

    @property
    def replication_is_paused(self) -> bool:
        """Whether the replica stands still."""
        return self._paused_at is not None

    def pause_replication(self) -> None:
        """Let the replica stand still at what it holds now."""
        self._paused_at = self.replica_seqno

    def resume_replication(self) -> None:
        """Let the replica follow again."""
        self._paused_at = None

    # --- forks

    def promote(self) -> None:
        """Go on as the replica: its tail is what the replica had not; a new branch begins."""
        self._fork(self.replica_seqno, self.replica_snapshot_end)

    def crash(self, lost_seqnos: int | None) -> None:
        """Go on with what is on disk, or with ``lost_seqnos`` less than there was; a new branch.

        A branch is added also when nothing was lost: an unclean restart cannot know (kv_engine
        ``engines/ep/src/warmup.cc``).
        """
        high, base = self.history.high_seqno, self.history.base_seqno
        left = self.history.persisted_seqno if lost_seqnos is None else high - lost_seqnos
        left = min(high, max(base, left))
        self._fork(left, left)
        self.history.restart()

    def set_state(self, state: VbucketState) -> None:
        """Change the state; what becomes active without a takeover begins a branch."""
        if state is VbucketState.ACTIVE and self.state is not VbucketState.ACTIVE:
            high = self.history.high_seqno
            self._fork(high, high)
        self.state = state

    def _fork(self, cut_seqno: int, entry_seqno: int) -> None:
        """Begin a branch that holds everything up to ``cut_seqno`` and is told from another on.

        ``entry_seqno`` lies at or below the cut, so that whoever goes on along the log meets
        nothing that was lost.
        """
        vb_uuid = self._fresh_uuid()
        self.history.cut(cut_seqno)
        self.documents.rewind()
        self.failover_log = fork(self.failover_log, entry_seqno, vb_uuid)
        if self._paused_at is not None:
            self._paused_at = min(self._paused_at, cut_seqno)
        if self.record is not None:
            self.record.fork(vb_uuid, cut_seqno)

    # --- any state, for tests

    def set_up(self, facts: VbucketFacts, versions: Sequence[Version] = ()) -> None:
        """Become a vbucket of which ``facts`` are true; CAS values go on growing.

        ``versions`` end at the high seqno; what came before them is nobody's to see.
        """
        high = facts.high_seqno
        persisted = high if facts.persisted_seqno is None else facts.persisted_seqno
        history = VbucketHistory(
            self.id,
            high - len(versions),
            unpersisted_seqnos=high - persisted,
            purge_seqno=facts.purge_seqno,
        )
        self._paused_at = None
        self._begin(history, facts.failover_log, self.documents.clock)
        self.take(versions)
        history.purge(facts.purge_seqno)
        self._collection_high_seqno = facts.collections_high_seqno
        self.state = facts.state

    def take(self, versions: Iterable[Version]) -> None:
        """Append versions as another server made them: their seqnos, revs and CAS values stay.

        Raises:
            ValueError: a seqno is not the next one.
        """
        for version in versions:
            self.history.append(version)
            self.documents.clock.raise_floor(version.cas)
        self.documents.rewind()

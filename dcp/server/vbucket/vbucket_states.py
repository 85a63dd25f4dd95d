"""One vbucket: its documents, data, failover log and state.

After a crash it continues with the data on disk (``crash``). In a failover the vbucket of a replica
takes its place (``prepare_to_replace``).
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from dcp.errors import LocalProtocolError
from dcp.server.model.bucket_type import BucketType
from dcp.server.model.failover_log import fork
from dcp.server.model.hybrid_clock import HybridClock
from dcp.server.model.manifest import DEFAULT_ID, Manifest
from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.model.server_settings import ServerSettings
from dcp.server.model.state_changes import StateEvent, next_state
from dcp.server.model.stream_filter import StreamFilter
from dcp.server.model.versions import Version
from dcp.server.storage.disk_batch import DiskFormatError
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.storage.pending_write import PendingWrite
from dcp.server.storage.saved_vbucket import SavedVbucket, VbucketHome
from dcp.server.vbucket.documents import DocumentStore
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.vocabulary import VbucketState

_LOGGER = logging.getLogger(__name__)


class Vbucket:
    """A vbucket of a cluster; call it with the bucket's lock held."""

    def __init__(
        self,
        vbucket: int,
        fresh_uuid: Callable[[], int],
        settings: ServerSettings,
        home: VbucketHome | None = None,
        state: VbucketState | None = None,
    ) -> None:
        """Start an empty vbucket, or restore the one in ``home``.

        ``fresh_uuid`` returns uuids for new branches. ``state`` overrides the saved state; with
        neither the vbucket is ACTIVE. Raises DiskFormatError if the file belongs to another vbucket
        or another version of dcplake, and OSError if it cannot be read.
        """
        self.id = vbucket
        self._fresh_uuid = fresh_uuid
        self._settings = settings
        self._home = home
        self.shown_as: VbucketState | None = None
        """If set, clients see this state instead of the real one (``BucketOrigin`` decides)."""
        self.promised_seqno = 0
        """In a relay: the cluster's high seqno, which clients see before the items are here. The
        relay fetches them when a client opens a stream. 0: clients see the real high seqno.
        """
        self.is_handed_over = False
        """True from the end of a takeover until the map names the new active. The disk says ACTIVE
        all this time, so that a restart undoes an unfinished move.
        """
        self.named_manifests: frozenset[int] = frozenset()
        """Manifests that the disk log may refer to by number, so bucket.json must keep them."""
        if home is not None:
            data = VbucketData(vbucket, home.file, settings, writes_behind=True)
            self._restore(data, home, state)
            return
        failover_log = FailoverLog((FailoverEntry(fresh_uuid(), 0),))
        data = VbucketData(vbucket, MemoryFile(), settings)
        self._begin(data, failover_log, HybridClock(), state or VbucketState.ACTIVE)

    def _restore(self, data: VbucketData, home: VbucketHome, state: VbucketState | None) -> None:
        saved = SavedVbucket(VbucketState.ACTIVE, FailoverLog((FailoverEntry(home.first_uuid, 0),)))
        if data.disk.saved_state:
            saved = SavedVbucket.decode(data.disk.saved_state)
        data.reopen(saved.base_seqno, saved.complete_seqno, saved.learned_purge_seqno)
        clock = HybridClock(saved.last_cas)
        self._begin(data, saved.failover_log, clock, state or saved.state)
        data.persistence.state.state_at = partial(self._state_at, home)
        self.documents.rewind()
        self.named_manifests = saved.manifest_numbers
        steps = [(seqno, self._manifest(home, number)) for seqno, number in saved.manifests]
        self.documents.collections.restore(steps, saved.high_seqnos, data.high_seqno)
        data.disk.restore_high_seqnos(self.documents.collections.high_seqnos)
        # After a crash items may be newer than the saved clock, and CAS values must not repeat.
        for version in data.newest.versions:
            self.documents.clock.raise_floor(version.cas)

    def _manifest(self, home: VbucketHome, number: int) -> Manifest:
        if number not in home.manifests:
            raise DiskFormatError(
                f"{home.file}: names manifest {number}, which bucket.json lacks; "
                "the two files are of different times, restore both from one copy"
            )
        return home.manifests[number]

    def _compacted(self) -> None:
        """Drop manifests that only a rollback to a compacted seqno could need."""
        self.documents.collections.forget_steps(self.data.disk.may_be_cut)
        if self.data.disk.saved_state:
            saved = SavedVbucket.decode(self.data.disk.saved_state)
            self.named_manifests = saved.manifest_numbers

    def _state_at(self, home: VbucketHome, seqno: int) -> SavedVbucket:
        """Return the state to save together with the items up to ``seqno``."""
        collections, stored = self.documents.collections, self.data.disk.high_seqnos
        highs = {
            # A collection's newest item may still be in memory; then the disk's last value is
            # right.
            collection: high if high <= seqno else stored.get(collection, 0)
            for collection, high in collections.high_seqnos.items()
        }
        state = SavedVbucket(
            self.unmoved_state,
            self.failover_log,
            self.data.base_seqno,
            self.documents.clock.last,
            tuple((at, home.number_of(m)) for at, m in collections.steps if at <= seqno),
            highs,
            self.data.disk.complete_seqno_at(seqno),
            self.data.disk.learned_purge_seqno,
        )
        # The write may fail later; too many numbers do no harm.
        self.named_manifests |= state.manifest_numbers
        return state

    @property
    def unmoved_state(self) -> VbucketState:
        """The state to save; it ignores an unfinished takeover."""
        return VbucketState.ACTIVE if self.is_handed_over else self.state

    def save(self) -> None:
        """Write the state durably, if it changed and there is a data folder.

        Raises OSError if the file cannot be written.
        """
        self.data.persistence.save_state()

    def _begin(
        self, data: VbucketData, failover_log: FailoverLog, clock: HybridClock, state: VbucketState
    ) -> None:
        self.data = data
        self.documents = DocumentStore(data, clock)
        data.persistence.on_compaction(self._compacted)
        self.failover_log = failover_log
        self._state = state
        self._set_up_default_high: tuple[int, int] | None = None

    @property
    def state(self) -> VbucketState:
        """The real state; ``change`` changes it."""
        return self._state

    @property
    def shown_state(self) -> VbucketState:
        """The state that clients see; it decides which requests are allowed."""
        return self.state if self.shown_as is None else self.shown_as

    def show_as(self, state: VbucketState) -> None:
        self.shown_as = state

    def promise(self, seqno: int) -> None:
        self.promised_seqno = seqno

    def take_failover_log(self, failover_log: FailoverLog) -> None:
        self.failover_log = failover_log

    def filtered_high_seqno(self, wanted: StreamFilter) -> int | None:
        """Return the highest seqno of a filter's collections; None if it names none."""
        if wanted.collections == {DEFAULT_ID}:
            return self.default_high_seqno
        return wanted.high_seqno(self.documents.collections.high_seqnos)

    @property
    def default_high_seqno(self) -> int:
        """The newest seqno of the default collection; after ``set_up``, the one given there."""
        newest = self.documents.collections.high_seqnos.get(DEFAULT_ID, 0)
        if self._set_up_default_high is not None:
            given, high_seqno = self._set_up_default_high
            return newest if newest > high_seqno else given
        return newest

    def facts(self, collections_high_seqno: int | None = None) -> VbucketFacts:
        return VbucketFacts(
            self.failover_log,
            self.data.high_seqno,
            self.data.disk.purge_seqno,
            self.data.disk.persisted_seqno,
            collections_high_seqno,
            self.shown_state,
            self.data.disk.learned_purge_seqno,
        )

    @property
    def is_ephemeral(self) -> bool:
        return self._settings.bucket_type is BucketType.EPHEMERAL

    @property
    def public_persisted_seqno(self) -> int:
        """The persisted seqno in statistics: 0 in an ephemeral bucket.

        Streams and SEQNO_PERSISTENCE treat all items of such a bucket as persisted (kv_engine
        ``ephemeral_vb.h``, getPublicPersistenceSeqno and getPersistenceSeqno).
        """
        return 0 if self.is_ephemeral else self.data.disk.persisted_seqno

    @property
    def may_compact(self) -> bool:
        """False while a rollback to an older seqno may be needed.

        A replica needs the last complete snapshot while it receives the next one, and while the
        disk ends inside one: after a power loss it rolls back to it.
        """
        return self.data.is_complete

    def begin_compaction(self, now: float, *, in_passing: bool = False) -> PendingWrite | None:
        """Return a compaction that is due at ``now``, or None; see
        ``Persistence.begin_compaction``.

        ``in_passing`` makes frequent calls cheap: it skips a disk log with few replaced versions.
        """
        if not self.may_compact or (in_passing and not self.data.persistence.is_mostly_replaced):
            return None
        # Retained history is made of replaced versions, so compaction waits until they exceed their
        # share.
        kept_bytes = self._settings.history_retention_bytes
        if kept_bytes and self.data.disk.replaced_bytes <= kept_bytes // self._settings.vbuckets:
            return None
        # Delete times are whole seconds: those up to (now - age) are below the next whole one.
        before = math.floor(max(now - self._settings.purge_age_seconds, -1.0)) + 1
        return self.data.persistence.begin_compaction(before, leaves_nothing=self.is_ephemeral)

    # --- states and branches

    def change(self, event: StateEvent, *, is_first: bool = False) -> None:
        """Change the state by an event of ``state_changes.py``.

        ``is_first``: a new branch starts an empty failover log. The caller updates what depends on
        the state, as the producer's ``bucket_states.py`` does.

        Raises LocalProtocolError if the event is impossible in this state, and OSError if the state
        cannot be saved; nothing has changed then.
        """
        undo = self.begin_change(event, is_first=is_first)
        try:
            self.save()
        except BaseException:
            undo()
            raise

    def begin_change(self, event: StateEvent, *, is_first: bool = False) -> Callable[[], None]:
        """Enter the state after an event, in memory only, with its new branch if it begins one.

        ``save`` it. Return what undoes the change after an error; the disk may still have the new
        state then. Raises LocalProtocolError if the event is impossible in this state.
        """
        before = self._state, self.failover_log

        def undo() -> None:
            self._state, self.failover_log = before

        self._state, begins_branch = next_state(self._state, event)
        if begins_branch:
            self.failover_log = self._forked(self.data.high_seqno, is_first=is_first)
        return undo

    def hand_over(self, *, is_move: bool) -> None:
        """Become dead, because the client of a takeover stream becomes the active.

        ``is_move``: the client is a node of this cluster, and the rebalance decides who is active
        at last. Raises LocalProtocolError if the vbucket is not active, OSError if the state cannot
        be saved.
        """
        # Set first: ``change`` saves the state, and a restart during a move must find ACTIVE.
        self.is_handed_over = is_move
        try:
            self.change(StateEvent.HANDED_OVER)
        except BaseException:
            self.is_handed_over = False
            raise

    def give_back(self) -> bool:
        """Undo ``hand_over`` of an unfinished move; return True if the state changed.

        Raises OSError if the state cannot be saved; the vbucket then stays handed over.
        """
        was_handed_over, self.is_handed_over = self.is_handed_over, False
        if not was_handed_over or self._state is not VbucketState.DEAD:
            return False
        try:
            self.change(StateEvent.GIVEN_BACK)
        except BaseException:
            self.is_handed_over = True
            raise
        return True

    def crash(self, lost_seqnos: int | None) -> None:
        """Continue with the data on disk, or without the last ``lost_seqnos``, on a new branch.

        It loses whole batches only, so it may lose more. An ephemeral vbucket loses everything,
        older branches included. The branch begins even if nothing was lost: after an unclean
        restart a node cannot know (kv_engine ``engines/ep/src/warmup.cc``).
        """
        left = self.data.disk.persisted_seqno
        if self.is_ephemeral:
            left = self.data.base_seqno
        elif lost_seqnos is not None:
            left = self.data.disk.batch_end_at(self.data.high_seqno - lost_seqnos)
        self._go_back(left, is_first=self.is_ephemeral)

    def recover(self) -> None:
        if self._state is VbucketState.ACTIVE:
            self._begin_branch(self.data.high_seqno)
            self.save()

    def _go_back(self, cut_seqno: int, *, is_first: bool) -> None:
        try:
            left = self.data.cut(cut_seqno)
            self.documents.rewind()
        except OSError as error:
            # The other nodes fail over whatever this disk does, so an error must not stop this. The
            # data then stays whole, and the next write saves the branch.
            left = self.data.high_seqno
            _LOGGER.warning(
                "vbucket %d: cannot cut the disk log, so all data stays: %s", self.id, error
            )
        self._begin_branch(left, is_first=is_first)
        try:
            self.save()
        except OSError as error:
            _LOGGER.warning("vbucket %d: cannot save the new branch yet: %s", self.id, error)

    def _begin_branch(self, entry_seqno: int, *, is_first: bool = False) -> None:
        self.failover_log = self._forked(entry_seqno, is_first=is_first)

    def _forked(self, entry_seqno: int, *, is_first: bool) -> FailoverLog:
        vb_uuid = self._fresh_uuid()
        if is_first:
            return FailoverLog((FailoverEntry(vb_uuid, entry_seqno),))
        return fork(self.failover_log, entry_seqno, vb_uuid)

    # --- replacement by a replica

    def prepare_to_replace(self, old: "Vbucket") -> None:
        """Continue the seqnos and CAS values of ``old``; save the vbucket afterwards."""
        is_empty = self.data.high_seqno == self.data.base_seqno
        if is_empty and old.data.base_seqno > self.data.base_seqno:
            self.data.start_at(old.data.base_seqno)
        self.documents.clock.raise_floor(old.documents.clock.last)

    def remove(self) -> None:
        self.data.give_up()
        if self._home is not None:
            self._home.remove()

    # --- arbitrary states, for tests

    def set_up(self, facts: VbucketFacts, versions: Sequence[Version] = ()) -> None:
        """For tests: become a vbucket with these facts; CAS values keep growing.

        ``versions`` must end at the high seqno. Raises LocalProtocolError if they do not, or if the
        vbucket has a data folder.
        """
        if self._home is not None:
            raise LocalProtocolError(f"vbucket {self.id}: set_up: found one in a data folder")
        high = facts.high_seqno
        if versions and versions[-1].seqno != high:
            raise LocalProtocolError(
                f"vbucket {self.id}: set_up: found a last version at seqno {versions[-1].seqno}, "
                f"expected it at the high seqno {high}"
            )
        # Everything below the first given version counts as items that nobody recorded.
        base = versions[0].seqno - 1 if versions else high
        persisted = high if facts.persisted_seqno is None else facts.persisted_seqno
        data = VbucketData(
            self.id,
            MemoryFile(),
            self._settings,
            base_seqno=base,
            persisted_seqno=persisted - (high - base),
            purge_seqno=facts.purge_seqno,
        )
        data.persistence.lag_by(high - persisted)
        self._begin(data, facts.failover_log, self.documents.clock, facts.state)
        self.take(versions)
        if facts.purge_seqno:
            data.persistence.purge(facts.purge_seqno)
        if facts.collections_high_seqno is not None:
            self._set_up_default_high = facts.collections_high_seqno, high

    def take(self, versions: Iterable[Version]) -> None:
        """Append versions of another server: seqnos, revisions and CAS values stay.

        Gaps between seqnos are allowed. System events change the manifest. Raises
        LocalProtocolError if a seqno is not above the high seqno.
        """
        for version in versions:
            self.data.checkpoints.skip_to(version.seqno - 1)
            self.documents.append(version)
            self.data.flush_batch()
            self._follow_event(version)

    def learn(self, version: Version, known: Manifest | None = None) -> None:
        """Note an item that another server made: count it and follow its system event.

        ``known`` is the bucket's manifest; it has details that the event lacks, if its uid matches.
        """
        self.documents.collections.note(version)
        self._follow_event(version, known)

    def _follow_event(self, version: Version, known: Manifest | None = None) -> None:
        collections = self.documents.collections
        if version.event is not None:
            manifest = collections.manifest.after(version.event)
            if known is not None and known.uid == manifest.uid:
                manifest = known
            collections.stand_at(manifest, version.seqno)
        self.documents.clock.raise_floor(version.cas)

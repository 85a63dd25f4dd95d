"""One vbucket: its documents, data, failover log and state.

A crash makes what was on disk its data (``crash``). A copy on another node (``replica_copy.py``)
is a vbucket of its own, which takes this one's place in a failover (``succeed``).
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from dcp.errors import LocalProtocolError
from dcp.server.checkpoints.checkpoint_memory import limits_for
from dcp.server.model.bucket_type import BucketType
from dcp.server.model.cluster_settings import ClusterSettings
from dcp.server.model.failover_log import fork
from dcp.server.model.hybrid_clock import HybridClock
from dcp.server.model.manifest import DEFAULT_ID, Manifest
from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.model.state_changes import StateEvent, next_state
from dcp.server.model.stream_filter import StreamFilter
from dcp.server.model.versions import Version
from dcp.server.storage.disk_batch import DiskFormatError
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.storage.pending_write import PendingWrite
from dcp.server.storage.saved_vbucket import SavedVbucket, VbucketHome
from dcp.server.vbucket.branch_record import BranchRecord
from dcp.server.vbucket.documents import DocumentStore
from dcp.server.vbucket.sync_writes import SyncWrites
from dcp.server.vbucket.vbucket_data import DataSettings, VbucketData
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.vocabulary import VbucketState

_LOG = logging.getLogger(__name__)


class PreviousState(NamedTuple):
    """The state of a vbucket before a change."""

    state: VbucketState
    failover_log: FailoverLog


class Vbucket:
    """A vbucket of a cluster; used under the bucket's lock. ``fresh_uuid`` gives new branches."""

    def __init__(
        self,
        vbucket: int,
        fresh_uuid: Callable[[], int],
        settings: ClusterSettings,
        home: VbucketHome | None = None,
        state: VbucketState | None = None,
    ) -> None:
        """Begin an empty vbucket, or with a ``home`` take up what is there.

        ``state`` is the one that it is in; None: the one that was saved, ACTIVE where none was.

        Raises:
            DiskFormatError: a file of another vbucket or of another version of dcplake.
            OSError: a file that cannot be read.
        """
        self.id = vbucket
        self._fresh_uuid = fresh_uuid
        self._settings = settings
        self._home = home
        self.shown_as: VbucketState | None = None
        """The state that clients are told, where it is another one than its own: ``BucketOrigin``
        decides."""
        self.promised_seqno = 0
        """A seqno that clients are told it has, though it is not here yet: a relay's, that knows
        it from the cluster and gets it once somebody asks for a stream."""
        self.is_handed_over = False
        """True if it is dead because the client of a takeover was told to become active, and the
        map does not name that yet. It is saved as ACTIVE, so that a restart undoes it."""
        self.named_manifests: frozenset[int] = frozenset()
        """The numbers of all manifests that its log names, or may name by now."""
        data_settings = _data_settings(settings)
        if home is not None:
            behind = replace(data_settings, writes_behind=True)
            data = VbucketData(vbucket, home.file, behind)
            self._take_up(data, home, state)
            return
        log = FailoverLog((FailoverEntry(fresh_uuid(), 0),))
        data = VbucketData(vbucket, MemoryFile(), data_settings)
        self._begin(data, log, HybridClock(), state or VbucketState.ACTIVE)

    def _take_up(self, data: VbucketData, home: VbucketHome, state: VbucketState | None) -> None:
        """Restore what was saved; the branch record lacks all earlier writes."""
        saved = SavedVbucket(VbucketState.ACTIVE, FailoverLog((FailoverEntry(home.first_uuid, 0),)))
        if data.disk.saved_state:
            saved = SavedVbucket.decode(data.disk.saved_state, self.id)
        data.reopen(saved.base_seqno, saved.whole_seqno, saved.learned_purge_seqno)
        is_empty = data.high_seqno == data.base_seqno
        clock = HybridClock(saved.last_cas)
        self._begin(data, saved.failover_log, clock, state or saved.state, is_recorded=is_empty)
        data.persistence.state.state_at = partial(self._state_at, home)
        self.documents.rewind()
        self.named_manifests = saved.manifest_numbers
        steps = [(seqno, self._manifest(home, number)) for seqno, number in saved.manifests]
        self.documents.collections.restore(steps, saved.high_seqnos or {}, data.high_seqno)
        data.disk.restore_high_seqnos(self.documents.collections.high_seqnos)
        for version in data.newest.keys.versions:
            self.documents.clock.raise_floor(version.cas)
        self.recover_sync_writes()

    def _manifest(self, home: VbucketHome, number: int) -> Manifest:
        if number not in home.manifests:
            raise DiskFormatError(
                f"{home.file}: names the manifest of number {number}, bucket.json has none; "
                "one of the two is older than the other"
            )
        return home.manifests[number]

    def _compacted(self) -> None:
        """Forget manifests that a cut can no longer need."""
        self.documents.collections.forget_steps(self.data.disk.may_be_cut)
        if self.data.disk.saved_state:
            saved = SavedVbucket.decode(self.data.disk.saved_state, self.id)
            self.named_manifests = saved.manifest_numbers

    def _state_at(self, home: VbucketHome, seqno: int) -> SavedVbucket:
        """Return the state to save with the items up to ``seqno``."""
        collections, stored = self.documents.collections, self.data.disk.high_seqnos
        highs = {
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
            self.data.disk.whole_seqno_at(seqno),
            self.data.disk.learned_purge_seqno,
        )
        self.named_manifests |= state.manifest_numbers
        return state

    @property
    def unmoved_state(self) -> VbucketState:
        """Its state as if no takeover were under way."""
        return VbucketState.ACTIVE if self.is_handed_over else self.state

    def save(self) -> None:
        """Write the state durably where there is a data folder, if it changed.

        Raises:
            OSError: the file cannot be written.
        """
        self.data.persistence.save_state()

    def _begin(
        self,
        data: VbucketData,
        log: FailoverLog,
        clock: HybridClock,
        state: VbucketState,
        *,
        is_recorded: bool = True,
    ) -> None:
        self.data = data
        self.documents = DocumentStore(data, clock)
        data.persistence.on_compaction(self._compacted)
        self.sync_writes = SyncWrites(self.documents)
        self.failover_log = log
        self._state = state
        self._set_up_default_high: tuple[int, int] | None = None
        is_recorded = is_recorded and self._settings.record_branches
        self.record = BranchRecord(self.id, log) if is_recorded else None
        if self.record is not None:
            data.on_append(self.record.append)

    @property
    def state(self) -> VbucketState:
        """Active, replica, pending or dead; ``change`` is how that changes."""
        return self._state

    @property
    def shown_state(self) -> VbucketState:
        """The state that clients see, and that decides which requests are allowed."""
        return self.state if self.shown_as is None else self.shown_as

    def show_as(self, state: VbucketState) -> None:
        """Tell clients this state instead of its own."""
        self.shown_as = state

    def promise(self, seqno: int) -> None:
        """Tell clients that it has a seqno that is not here yet; 0: what is here."""
        self.promised_seqno = seqno

    def take_failover_log(self, log: FailoverLog) -> None:
        """Have the branches of the active, of which this is a copy."""
        self.failover_log = log

    def filtered_high_seqno(self, wanted: StreamFilter) -> int | None:
        """Return the newest seqno of the collections that a filter names; None without names."""
        if wanted.collections == {DEFAULT_ID}:
            return self.default_high_seqno
        return wanted.high_seqno(self.documents.collections.high_seqnos)

    @property
    def default_high_seqno(self) -> int:
        """The newest seqno of the default collection.

        As the vbucket was set up it is what was told, until the collection gets a later one.
        """
        newest = self.documents.collections.high_seqnos.get(DEFAULT_ID, 0)
        if self._set_up_default_high is not None:
            told, high_seqno = self._set_up_default_high
            return newest if newest > high_seqno else told
        return newest

    def facts(self, collections_high_seqno: int | None = None) -> VbucketFacts:
        """Return the facts that decide a stream request; see ``filtered_high_seqno``."""
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
        """True if there is no disk: persisted seqnos are only reported."""
        return self._settings.bucket_type is BucketType.EPHEMERAL

    @property
    def public_persisted_seqno(self) -> int:
        """The persisted seqno that statistics report.

        0 of an ephemeral bucket, though streams and SEQNO_PERSISTENCE take all of it for persisted
        (kv_engine ``ephemeral_vb.h``, getPublicPersistenceSeqno and getPersistenceSeqno).
        """
        return 0 if self.is_ephemeral else self.data.disk.persisted_seqno

    @property
    def may_compact(self) -> bool:
        """True if no state older than the newest seqno may be needed for a rollback.

        That is the last whole snapshot while the next one is received, or while the disk ends
        inside one: a power loss goes back to it.
        """
        return self.data.is_whole

    def begin_compaction(self, now: float, *, in_passing: bool = False) -> PendingWrite | None:
        """Prepare a compaction if one is due at ``now``, for ``Persistence.finish_flush``.

        Tombstones go that are as old as the settings say, with all of lower seqnos. Of an ephemeral
        vbucket nothing is left that was replaced. Where history is retained nothing is due before
        its share of the bytes is used up. ``in_passing`` is for frequent callers: it costs nothing
        where replaced versions are few.
        """
        if not self.may_compact or (in_passing and not self.data.persistence.is_mostly_stale):
            return None
        kept_bytes = self._settings.history_retention_bytes
        if kept_bytes and self.data.disk.stale_bytes <= kept_bytes // self._settings.vbuckets:
            return None
        # Delete times are whole seconds: those up to (now - age) are below the next whole one.
        before = math.floor(max(now - self._settings.purge_age_seconds, -1.0)) + 1
        return self.data.persistence.begin_compaction(before, leaves_nothing=self.is_ephemeral)

    # --- states and branches

    def change(self, event: StateEvent, *, is_first: bool = False) -> None:
        """Change the state by an event, as ``state_changes.py`` has it.

        ``is_first``: if a branch begins, nothing is known of any before it. In a bucket
        ``bucket_states.py`` does this, and what follows for others.

        Raises:
            LocalProtocolError: that does not happen to a vbucket in this state.
            OSError: the state cannot be saved; nothing has changed.
        """
        before = self.begin_change(event, is_first=is_first)
        try:
            self.save()
        except BaseException:
            self.undo_change(before)
            raise
        self.complete_change(before)

    def begin_change(self, event: StateEvent, *, is_first: bool = False) -> PreviousState:
        """Take the state after an event, on its branch, in memory only.

        It must be on disk before ``complete_change`` follows; else ``undo_change`` does.

        Raises:
            LocalProtocolError: that does not happen to a vbucket in this state.
        """
        before = PreviousState(self._state, self.failover_log)
        self._state, begins_branch = next_state(self._state, event)
        if begins_branch:
            self.failover_log = self._forked(self.data.high_seqno, is_first=is_first)
        return before

    def undo_change(self, before: PreviousState) -> None:
        """Restore the state and branch before the change; the disk may hold others."""
        self._state, self.failover_log = before

    def complete_change(self, before: PreviousState) -> None:
        """Complete a change with what is not on disk: the record of branches, sync writes."""
        if self.failover_log is not before.failover_log:
            self._record_branch(before.failover_log)
        self.recover_sync_writes()

    def hand_over(self, *, is_move: bool) -> None:
        """Be dead, as the client of a takeover is to be active.

        ``is_move``: the client is a node, and a rebalance will say where the vbucket is.

        Raises:
            LocalProtocolError: the vbucket is not active.
            OSError: the state cannot be saved; nothing has changed.
        """
        self.is_handed_over = is_move
        try:
            self.change(StateEvent.HANDED_OVER)
        except BaseException:
            self.is_handed_over = False
            raise

    def give_back(self) -> bool:
        """Be active again if it was handed over in a move; whether its state changed.

        Raises:
            OSError: the state cannot be saved; it is handed over as before.
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
        """Go on with what is on disk, or with ``lost_seqnos`` less than there was; a new branch.

        More is lost where that lies within a batch of writes: there is no state to go back to. An
        ephemeral vbucket loses everything and is as new: it knows no older branch.
        A branch is added also when nothing was lost: an unclean restart cannot know (kv_engine
        ``engines/ep/src/warmup.cc``).
        """
        left = self.data.disk.persisted_seqno
        if self.is_ephemeral:
            left = self.data.base_seqno
        elif lost_seqnos is not None:
            left = self.data.disk.batch_end_at(self.data.high_seqno - lost_seqnos)
        self._go_back(left, is_first=self.is_ephemeral)

    def recover(self) -> None:
        """Begin a branch after an unclean restart, if active: the data is what was on disk."""
        if self._state is VbucketState.ACTIVE:
            self._begin_branch(self.data.high_seqno)
            self.save()

    def recover_sync_writes(self) -> None:
        """Follow a history that was cut, handed over or read anew, in the state it is in now."""
        self.sync_writes.recover(is_active=self._state is VbucketState.ACTIVE)

    def _go_back(self, cut_seqno: int, *, is_first: bool) -> None:
        """Begin a branch of everything up to ``cut_seqno``.

        It cannot be refused, as a node is gone whatever the disk does: data that the disk cannot
        cut off is kept, and the branch is saved with the next write.
        """
        try:
            left = self.data.cut(cut_seqno)
            self.documents.rewind()
        except OSError as error:
            left = self.data.high_seqno
            _LOG.warning("vbucket %d: nothing is lost, the disk cannot be cut: %s", self.id, error)
        self._begin_branch(left, is_first=is_first)
        self.recover_sync_writes()
        try:
            self.save()
        except OSError as error:
            _LOG.warning("vbucket %d: its new branch is not on disk yet: %s", self.id, error)

    def _begin_branch(self, entry_seqno: int, *, is_first: bool = False) -> None:
        """Begin a branch that holds what is here, and is told from ``entry_seqno`` on."""
        parent = self.failover_log
        self.failover_log = self._forked(entry_seqno, is_first=is_first)
        self._record_branch(parent)

    def _forked(self, entry_seqno: int, *, is_first: bool) -> FailoverLog:
        vb_uuid = self._fresh_uuid()
        if is_first:
            return FailoverLog((FailoverEntry(vb_uuid, entry_seqno),))
        return fork(self.failover_log, entry_seqno, vb_uuid)

    def _record_branch(self, parent: FailoverLog) -> None:
        if self.record is not None:
            current = self.failover_log.current_uuid
            self.record.fork(current, self.data.high_seqno, parent.current_uuid)

    # --- what is another vbucket from here on

    def prepare_to_succeed(self, old: "Vbucket") -> None:
        """Let seqnos and CAS values begin above those of ``old``; all must be on disk then."""
        is_empty = self.data.high_seqno == self.data.base_seqno
        if is_empty and old.data.base_seqno > self.data.base_seqno:
            self.data.start_at(old.data.base_seqno)
        self.documents.clock.raise_floor(old.documents.clock.last)

    def succeed(self, old: "Vbucket") -> None:
        """Be what ``old`` was, with the data and branches that are here: it was a copy of that.

        It is on disk as that (``prepare_to_succeed``); ``complete_change`` follows.
        """
        self._settings = old._settings
        self.record = old.record
        if self.record is not None:
            self.data.on_append(self.record.append)
        self.documents.rewind()
        self.sync_writes.tell_later(old.sync_writes.give_up())

    def remove(self) -> None:
        """End, and leave nothing on disk, soon; a log that cannot be removed is nobody's."""
        self.data.give_up()
        if self._home is not None:
            self._home.remove()

    # --- any state, for tests

    def set_up(self, facts: VbucketFacts, versions: Sequence[Version] = ()) -> None:
        """Become a vbucket of which ``facts`` are true; CAS values go on growing.

        ``versions`` end at the high seqno; nothing else before and between them is visible.

        Raises:
            LocalProtocolError: the vbucket lives in a data folder, or they end elsewhere.
        """
        if self._home is not None:
            raise LocalProtocolError(f"vbucket {self.id}: set_up: found one in a data folder")
        high = facts.high_seqno
        if versions and versions[-1].seqno != high:
            raise LocalProtocolError(
                f"vbucket {self.id}: set_up: found a last version at seqno {versions[-1].seqno}, "
                f"expected it at the high seqno {high}"
            )
        base = versions[0].seqno - 1 if versions else high
        persisted = high if facts.persisted_seqno is None else facts.persisted_seqno
        settings = replace(_data_settings(self._settings), unpersisted_seqnos=high - persisted)
        data = VbucketData(
            self.id,
            MemoryFile(),
            settings,
            base_seqno=base,
            persisted_seqno=persisted - (high - base),
            purge_seqno=facts.purge_seqno,
        )
        told = self.sync_writes.give_up()
        self._begin(data, facts.failover_log, self.documents.clock, facts.state)
        self.sync_writes.tell_later(told)
        self.take(versions)
        if facts.purge_seqno:
            data.persistence.purge(facts.purge_seqno)
        if facts.collections_high_seqno is not None:
            self._set_up_default_high = facts.collections_high_seqno, high

    def take(self, versions: Iterable[Version]) -> None:
        """Append versions as another server made them: their seqnos, revs and CAS values stay.

        Seqnos may be left out: their items are unknown. Their system events change the manifest
        that the vbucket stands at.

        Raises:
            LocalProtocolError: a seqno is not above the high seqno.
        """
        for version in versions:
            self.data.checkpoints.skip_to(version.seqno - 1)
            self.documents.append(version)
            self.data.finish_batch()
            self._stand_behind(version)

    def learn(self, version: Version, known: Manifest | None = None) -> None:
        """Follow an item that another server made: count it, stand at the manifest it makes.

        ``known`` is that manifest where it has its uid: an event tells only a part of it.
        """
        self.documents.collections.note(version)
        self._stand_behind(version, known)

    def _stand_behind(self, version: Version, known: Manifest | None = None) -> None:
        collections = self.documents.collections
        if version.event is not None:
            manifest = collections.manifest.after(version.event)
            if known is not None and known.uid == manifest.uid:
                manifest = known
            collections.stand_at(manifest, version.seqno)
        self.documents.clock.raise_floor(version.cas)


def _data_settings(settings: ClusterSettings) -> DataSettings:
    share = limits_for(settings.checkpoint_quota_bytes, settings.vbuckets)
    limits = replace(
        share,
        max_items=max(1, settings.checkpoint_items),
        keeps_versions=settings.history_retention_bytes > 0,
    )
    return DataSettings(limits, settings.unpersisted_seqnos, keeps_values=settings.keeps_values)

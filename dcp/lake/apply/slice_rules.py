"""Decides which rows of the log bring a replica to a later round. No Spark.

For each vbucket the replica stands at a position a (epoch, complete seqno) and shall come to b:

* a is on b's branch: publish the live rows above a, up to b.
* a is on a dead branch that leaves b's branch at a seqno E > 0: the *base* is the newest older
  version of the replica that is on b's branch. The apply touches each key that has a published dead
  row or a new row. The key gets its newest live row above the base, else its row of the base. A key
  with neither is deleted. Seqnos of the table do not matter: a new branch may have lower ones.
* E is 0: the replica's rows of the vbucket stay *stale* until the new history is whole. Then the
  new history replaces them.
* No base is readable: if the log is whole, the base is the empty table of the beginning. Otherwise
  the vbucket is stale, and the next round streams it again from its beginning.

Flushes and drops of the replica's collection then change the ranges (`clearing_rules`).

The rules read facts through `ReplicaFacts`, so that a model in memory can replace Delta.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dcp.errors import LakeError
from dcp.lake.apply.clearing_rules import keeps_dropped_rows, with_events
from dcp.lake.change_log.collection_events import CollectionEvent
from dcp.lake.change_log.epochs import Fork, is_live, live_up_to
from dcp.lake.store.log_slice import EMPTY_TABLE, REPLACED, LogSlice, Role, RowRange, Undo
from dcp.lake.tables.applied_version import BEGINNING, AppliedVersion
from dcp.lake.tables.vbucket_state import VbucketProgress

_VERSIONS_AT_ONCE: Final = 16
_UNREADABLE_MOST: Final = 3
"""After so many unreadable versions the search ends: the remaining versions are older."""


class ReplicaFacts(Protocol):
    """The facts about one replica and the log that decide a slice."""

    @property
    def cleaned_round(self) -> int:
        """The log may lack published rows up to this round; 0 if it is whole."""

    def states(self, rounds: Collection[int]) -> Mapping[int, Mapping[int, VbucketProgress]]:
        """Return every vbucket's state after each given round. Round 0 has no states."""

    def forks(
        self, after_round: int, to_round: int, vbuckets: Collection[int]
    ) -> Sequence[Fork]: ...

    def collection_events(
        self, from_round: int, to_round: int, vbuckets: Collection[int]
    ) -> Sequence[CollectionEvent]: ...

    def older_versions(self) -> Sequence[AppliedVersion]:
        """Return the versions that may be readable, newest first."""

    def may_be_readable(self, version: int, vbucket: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Standing:
    """The position of one vbucket in a version of the replica."""

    round: int
    state: VbucketProgress
    version: int = EMPTY_TABLE

    @property
    def first_round(self) -> int:
        """The oldest round with rows that this position may lack."""
        return self.state.first_pending_round or self.round + 1

    def is_live(self, to: VbucketProgress, forks: Iterable[Fork]) -> bool:
        """Return whether it is on the history of ``to``; ``forks`` are the later ones."""
        return is_live(self.state.epoch, self.state.complete_seqno, to.epoch, forks)


def slice_between(held: AppliedVersion, to_round: int, facts: ReplicaFacts) -> LogSlice:
    """Return the slice that brings a replica from ``held`` to ``to_round``.

    It raises LakeError if the log contradicts itself.
    """
    return _Decision(held, to_round, facts).log_slice()


class _Decision:
    def __init__(self, held: AppliedVersion, to_round: int, facts: ReplicaFacts) -> None:
        self._facts = facts
        self._cleaned_round = facts.cleaned_round  # read once: each read queries the lake
        self._held = held
        self._to_round = to_round
        self._states: dict[int, Mapping[int, VbucketProgress]] = {}
        self._forks: list[Fork] = []
        self._begins_anew = self._learn_where_from()
        self._ranges: list[RowRange] = []
        self._first_rounds: list[int] = []
        self._undone: list[Undo] = []
        self._cleared: list[int] = []
        self._revived: list[int] = []
        self._stale: dict[int, int] = {}
        self._events: dict[int, set[CollectionEvent]] = {}

    def log_slice(self) -> LogSlice:
        self._learn_events({v: self._standing(v, self._held) for v in self._after})
        undo: dict[int, _Standing] = {}
        for vbucket, new in sorted(self._after.items()):
            old = self._standing(vbucket, self._held)
            forks = self._forks_after(vbucket, old)
            _require_consistent(old.state, new, forks)
            is_live = old.is_live(new, forks)
            is_short = old.round < self._cleaned_round  # cleaning may have taken needed rows
            anew = any(fork.seqno == 0 for fork in forks)
            if self._begins_anew or (anew and (is_short or not is_live)):
                self._replace_when_whole(old, new, forks)
            elif is_live:
                self._publish(old, old, new, forks)
            else:
                undo[vbucket] = old
        self._undo(undo)
        return LogSlice(
            ranges=tuple(self._ranges),
            first_round=min(self._first_rounds, default=self._to_round),
            to_round=self._to_round,
            log_from_round=oldest_pending_round(self._after.values(), self._to_round),
            undone=tuple(sorted(self._undone)),
            cleared=tuple(sorted(self._cleared)),
            revived=tuple(sorted(self._revived)),
            stale=self._stale,
            begins_anew=self._begins_anew,
        )

    # --- the ways of a vbucket

    def _publish(
        self, base: _Standing, old: _Standing, new: VbucketProgress, forks: Sequence[Fork]
    ) -> None:
        """Take the rows above a base; rows that have been published are kept or undone."""
        if base is old and not forks and not may_have_rows(old.state, new, old.round):
            return
        # Cleaning may have removed rows that the vbucket needs, so that it must stream again.
        if base.round < self._cleaned_round:
            self._stale[new.vbucket] = old.round
            return
        ranges = row_ranges(base.state, old.state, new, forks)
        found = with_events(ranges, self._events.get(new.vbucket, ()))
        # The table already has all these rows.
        if not found.clears and all(each.role is Role.KEPT for each in found.ranges):
            return
        self._ranges += found.ranges
        self._first_rounds.append(base.first_round)
        if found.clears and old.round:
            self._cleared.append(new.vbucket)
        if base is old:
            return
        # The old position is on a dead branch: the vbucket goes back to the base.
        version = EMPTY_TABLE if found.base_is_empty else base.version
        if found.revives and version != EMPTY_TABLE:
            self._revived.append(new.vbucket)
        lost = self._forks_after(new.vbucket, old)
        fork_seqno = min(fork.seqno for fork in lost)
        self._undone.append(Undo(new.vbucket, version, fork_seqno))

    def _replace_when_whole(
        self, old: _Standing, new: VbucketProgress, forks: Sequence[Fork]
    ) -> None:
        # A vbucket may begin anew more than once; only the last beginning counts.
        beginning = max((fork for fork in forks if fork.seqno == 0), key=lambda fork: fork.epoch)
        # Rows of an incomplete history would show a state that the source never had.
        if not new.is_whole or beginning.round <= self._cleaned_round:
            self._stale[new.vbucket] = old.round
            return
        start = VbucketProgress(new.vbucket, beginning.epoch, VbucketProgress.beginning(0).position)
        ranges, events = row_ranges(start, start, new, forks), self._events.get(new.vbucket, set())
        found = with_events(ranges, events)
        self._ranges += found.ranges
        self._first_rounds.append(beginning.round)
        if any(event.keeps for event in events):
            epoch_before = min(fork.epoch for fork in forks if fork.seqno == 0) - 1
            every_fork = self._facts.forks(0, self._to_round, [new.vbucket])
            if keeps_dropped_rows(ranges, events, epoch_before, every_fork):
                return
        self._undone.append(Undo(new.vbucket, REPLACED, 0))

    def _undo(self, undo: Mapping[int, _Standing]) -> None:
        bases = self._bases(undo)
        # If the log is whole, the empty table is a base; if not, `_publish` makes them stale.
        if baseless := sorted(undo.keys() - bases.keys()):
            self._learn([BEGINNING], baseless)
            bases |= {v: self._standing(v, BEGINNING) for v in baseless}
        self._learn_events(bases)
        for vbucket, old in undo.items():
            forks = self._forks_after(vbucket, bases[vbucket])
            self._publish(bases[vbucket], old, self._after[vbucket], forks)

    def _bases(self, undo: Mapping[int, _Standing]) -> dict[int, _Standing]:
        found: dict[int, _Standing] = {}
        unreadable = dict.fromkeys(undo, 0)
        versions = self._facts.older_versions() if undo else ()
        for start in range(0, len(versions), _VERSIONS_AT_ONCE):
            some = versions[start : start + _VERSIONS_AT_ONCE]
            waiting = [v for v in undo if v not in found and unreadable[v] < _UNREADABLE_MOST]
            if not waiting:
                break
            self._learn(some, waiting)
            for version in some:
                live = {
                    vbucket: standing
                    for vbucket in waiting
                    if vbucket not in found
                    and unreadable[vbucket] < _UNREADABLE_MOST
                    and (standing := self._live_base(vbucket, version)) is not None
                }
                for vbucket, standing in live.items():
                    if self._facts.may_be_readable(version.version, vbucket):
                        found[vbucket] = standing
                    else:
                        unreadable[vbucket] += 1
        return found

    def _live_base(self, vbucket: int, version: AppliedVersion) -> _Standing | None:
        """Return a version's position of a vbucket, if it is live and older than the held one.

        After a RESTORE, versions of later rounds do not describe the table's rows.
        """
        standing = self._standing(vbucket, version)
        if standing.round >= self._held.round_of(vbucket):
            return None
        forks = self._forks_after(vbucket, standing)
        return standing if standing.is_live(self._after[vbucket], forks) else None

    # --- known facts

    def _standing(self, vbucket: int, version: AppliedVersion) -> _Standing:
        number = version.round_of(vbucket)
        state = self._states[number].get(vbucket) or VbucketProgress.beginning(vbucket)
        return _Standing(number, state, version.version)

    def _forks_after(self, vbucket: int, standing: _Standing) -> list[Fork]:
        forks = (fork for fork in self._forks if fork.vbucket == vbucket)
        return [fork for fork in forks if standing.round < fork.round <= self._to_round]

    def _learn_where_from(self) -> bool:
        """Read the states at both ends and the forks between; return whether all begins anew.

        If all begins anew, the replica's old states do not matter. A damaged log may lack them.
        """
        held_rounds = {self._held.to_round, *self._held.stale.values()}
        lost: LakeError | None = None
        try:
            self._states |= self._facts.states({self._to_round, *held_rounds})
        except LakeError as error:
            lost = error
            self._states |= {number: {} for number in held_rounds}
            self._states |= self._facts.states({self._to_round})
        self._forks = self._read_forks()
        begins_anew = all(
            any(fork.seqno == 0 for fork in self._forks_after(v, self._standing(v, self._held)))
            for v in self._after
        )
        if lost is not None and not begins_anew:
            raise lost
        return begins_anew

    @property
    def _after(self) -> Mapping[int, VbucketProgress]:
        return self._states[self._to_round]

    def _read_forks(self) -> list[Fork]:
        moved: dict[int, int] = {}
        for vbucket, new in self._after.items():
            old = self._standing(vbucket, self._held)
            if new.epoch != old.state.epoch:
                moved[vbucket] = old.round
        if not moved:
            return []
        return list(self._facts.forks(min(moved.values()), self._to_round, sorted(moved)))

    def _learn_events(self, bases: Mapping[int, _Standing]) -> None:
        """Read the collection's events above some positions. Usually there are none.

        A vbucket that began anew needs all events: a drop that kept its rows may be long ago.
        """
        first_rounds: dict[int, int] = {}
        for vbucket, base in bases.items():
            last = self._after[vbucket].last_collection_round
            anew = any(fork.seqno == 0 for fork in self._forks_after(vbucket, base))
            first_round = 1 if anew else base.first_round
            if last is not None and last >= first_round:
                first_rounds[vbucket] = first_round
        if first_rounds:
            for event in self._facts.collection_events(
                min(first_rounds.values()), self._to_round, sorted(first_rounds)
            ):
                self._events.setdefault(event.vbucket, set()).add(event)

    def _learn(self, versions: Sequence[AppliedVersion], vbuckets: Sequence[int]) -> None:
        rounds = {version.round_of(vbucket) for version in versions for vbucket in vbuckets}
        self._states |= self._facts.states(rounds - self._states.keys())
        known = set(self._forks)
        older = self._facts.forks(min(rounds), self._to_round, vbuckets)
        self._forks += [fork for fork in older if fork not in known]


def row_ranges(
    base: VbucketProgress, old: VbucketProgress, new: VbucketProgress, forks: Sequence[Fork]
) -> list[RowRange]:
    """Return the rows above a base that are published at ``old``, live at ``new``, or both.

    ``forks`` are the vbucket's forks after the base. Older forks do not matter: above the base's
    complete seqno they had left no live row of an older epoch.
    """
    ranges: list[RowRange] = []
    low = base.complete_seqno
    for epoch in range(base.epoch, new.epoch + 1):
        published = low
        if epoch <= old.epoch:
            published = min(old.complete_seqno, live_up_to(epoch, old.epoch, forks))
        live = min(new.complete_seqno, live_up_to(epoch, new.epoch, forks))
        # A row below both limits is kept. Between them it is undone, or fresh.
        for role, bottom, top in (
            (Role.KEPT, low, min(published, live)),
            (Role.UNDONE, max(low, live), published),
            (Role.FRESH, max(low, published), live),
        ):
            if top > bottom:
                ranges.append(RowRange(new.vbucket, epoch, bottom, top, role))
    return ranges


def may_have_rows(old: VbucketProgress, new: VbucketProgress, from_round: int) -> bool:
    """Return whether the log can have rows to publish for this vbucket, within one epoch.

    Such a row is a document, or the flush or drop of a collection.
    """
    if new.complete_seqno <= old.complete_seqno:
        return False
    brought = max(new.last_data_round or 0, new.last_collection_round or 0)
    return brought > from_round or old.first_pending_round is not None


def oldest_pending_round(states: Iterable[VbucketProgress], otherwise: int) -> int:
    """Return a round such that no row of an older round waits in any of these states.

    It is at most ``otherwise``: the caller reads all rounds from there on anyway.
    """
    pending = (state.first_pending_round for state in states)
    return min([otherwise, *(number for number in pending if number)])


def _require_consistent(old: VbucketProgress, new: VbucketProgress, forks: Sequence[Fork]) -> None:
    # A fork at 0 replaces all earlier rows, so the log need not have the epochs before it.
    anew = max((fork.epoch for fork in forks if fork.seqno == 0), default=0)
    begun = {fork.epoch for fork in forks if fork.epoch >= anew}
    expected = set(range(max(anew, old.epoch + 1), new.epoch + 1))
    wayout = f"dcplake resync --vbuckets {new.vbucket} streams it again from the beginning"
    if begun != expected or new.epoch < old.epoch:
        raise LakeError(
            f"changes: vbucket {new.vbucket} is in epoch {new.epoch} (was {old.epoch}), found the "
            f"forks of epochs {sorted(begun) or '(none)'}, expected {sorted(expected) or '(none)'};"
            f" {wayout}"
        )
    if not forks and new.complete_seqno < old.complete_seqno:
        raise LakeError(
            f"changes: vbucket {new.vbucket} went back from complete seqno {old.complete_seqno} "
            f"to {new.complete_seqno} without a rollback; {wayout}"
        )

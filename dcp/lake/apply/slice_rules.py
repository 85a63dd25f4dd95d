"""Decides which rows of the log bring a replica to a later round. Pure functions of facts.

The replica has each vbucket up to some a (epoch, complete seqno), and shall have it up to b:

* a is on b's branch: publish the live rows above a, up to b.
* a is on a dead branch that leaves b's branch at a seqno E > 0: the *restored version* is the
  newest older version of the replica that is on b's branch. The apply touches each key that has a
  published dead row or a new row. The key gets its newest live row above the restored version, else
  its row there. A key with neither is deleted. Seqnos of the table do not matter: a new branch may
  have lower ones.
* E is 0: the replica's rows of the vbucket stay *stale* until the new history is whole. Then the
  new history replaces them.
* No such version is readable: if the log is whole, the restored version is the empty table of the
  beginning. Otherwise the vbucket is stale, and the next round streams it again from its beginning.

Flushes and drops of the replica's collection then change the ranges (`clearing_rules`).

The decisions come in steps, as each needs facts that the one before asks for. `SliceReader` reads
the facts (`LogFacts`) between the steps:

1. `rounds_before_forks` asks for the forks, `rounds_of_events` for the collection's events.
2. `vbuckets_to_take_back` finds the vbuckets on dead branches; `restored_versions_among` chooses
   the versions.
3. `vbuckets_with_kept_rows` asks for all forks of some vbuckets.
4. `decide_slice` returns the slice.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dcp.errors import LakeError
from dcp.lake.apply.clearing_rules import keeps_dropped_rows, with_events
from dcp.lake.change_log.collection_events import CollectionEvent
from dcp.lake.change_log.epochs import Fork, live_up_to, newest_beginning
from dcp.lake.store.log_slice import EMPTY_TABLE, REPLACED, LogSlice, Role, RowRange, Undo
from dcp.lake.tables.applied_version import BEGINNING, AppliedVersion
from dcp.lake.tables.vbucket_state import LakeVbucketState, state_of

_UNREADABLE_MOST: Final = 3
"""After so many unreadable versions the search ends: the remaining versions are older."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A version of a replica, a later round, and what has been read of the log between them."""

    current: AppliedVersion
    to_round: int
    cleaned_round: int = 0
    """The log may lack published rows up to this round; 0 if it is whole."""
    states: Mapping[int, Mapping[int, LakeVbucketState]] = field(default_factory=dict)
    """By round, every vbucket's state after it. Round 0 has no states."""
    forks: Mapping[int, Sequence[Fork]] = field(default_factory=dict)
    """By vbucket, up to ``to_round``."""
    events: Mapping[int, Collection[CollectionEvent]] = field(default_factory=dict)
    """By vbucket, the events of the replica's collection."""
    unreadable: Collection[tuple[int, int]] = ()
    """The older versions that cannot be read, each with a vbucket."""
    decided: Mapping[int, int] = field(default_factory=dict)
    """By vbucket, the version to which an earlier decision of this slice went back.

    Empty for a new decision (`SliceReader.slice_again`).
    """
    restored_versions: Mapping[int, AppliedVersion] = field(default_factory=dict)
    """By vbucket on a dead branch."""

    @property
    def after(self) -> Mapping[int, LakeVbucketState]:
        return self.states[self.to_round]

    def state(self, version: AppliedVersion, vbucket: int) -> LakeVbucketState:
        return state_of(self.states[version.round_of(vbucket)], vbucket)

    def forks_after(self, version: AppliedVersion, vbucket: int) -> list[Fork]:
        known = self.forks.get(vbucket, ())
        if not known:
            return []
        number = version.round_of(vbucket)
        return [fork for fork in known if number < fork.round <= self.to_round]

    def first_round(self, version: AppliedVersion, vbucket: int) -> int:
        """Return the oldest round that may have rows of a vbucket which the version lacks."""
        incomplete = self.state(version, vbucket).first_incomplete_round
        return incomplete or version.round_of(vbucket) + 1

    def with_forks(self, found: Mapping[int, Iterable[Fork]]) -> "LogFacts":
        forks = {
            vbucket: tuple(dict.fromkeys((*self.forks.get(vbucket, ()), *each)))
            for vbucket, each in found.items()
        }
        return replace(self, forks={**self.forks, **forks})

    def with_collection_events(self, found: Iterable[CollectionEvent]) -> "LogFacts":
        events = {vbucket: set(known) for vbucket, known in self.events.items()}
        for event in found:
            events.setdefault(event.vbucket, set()).add(event)
        return replace(self, events=events)


def rounds_before_forks(facts: LogFacts) -> dict[int, int]:
    """Return the vbuckets that forked after their round in the current version, with that round."""
    return {
        vbucket: facts.current.round_of(vbucket)
        for vbucket, new in facts.after.items()
        if new.epoch != facts.state(facts.current, vbucket).epoch
    }


def begins_anew(facts: LogFacts) -> bool:
    """Return whether every vbucket began again at 0, so that the replica's rows do not matter."""
    return all(_has_begun_anew(facts, facts.current, vbucket) for vbucket in facts.after)


def rounds_of_events(facts: LogFacts, versions: Mapping[int, AppliedVersion]) -> dict[int, int]:
    """Return the vbuckets that may have events above a version, with the first round to read.

    Usually there are none. A vbucket that began anew needs all events: a drop that kept its rows
    may be long ago.
    """
    rounds: dict[int, int] = {}
    for vbucket, version in versions.items():
        if (last := facts.after[vbucket].last_collection_round) is None:
            continue
        is_anew = _has_begun_anew(facts, version, vbucket)
        first_round = 1 if is_anew else facts.first_round(version, vbucket)
        if last >= first_round:
            rounds[vbucket] = first_round
    return rounds


def vbuckets_to_take_back(facts: LogFacts) -> tuple[int, ...]:
    """Return the vbuckets on a dead branch that leaves the live one above seqno 0.

    It raises LakeError if the log contradicts itself.
    """
    anew = begins_anew(facts)
    found = []
    for vbucket, new in sorted(facts.after.items()):
        forks = facts.forks_after(facts.current, vbucket)
        _require_consistent(facts.state(facts.current, vbucket), new, forks)
        if not _is_replaced(facts, vbucket, anew=anew) and not is_on_live_branch(
            facts, facts.current, vbucket
        ):
            found.append(vbucket)
    return tuple(found)


def restored_versions_among(
    facts: LogFacts, vbuckets: Iterable[int], versions: Sequence[AppliedVersion]
) -> dict[int, AppliedVersion]:
    """Return the restored version of each vbucket, out of ``versions``, newest first.

    The result lacks a vbucket if only older versions can decide. `BEGINNING` is the oldest: it is
    the result if no other version will do, or after too many unreadable ones.
    """
    found: dict[int, AppliedVersion] = {}
    for vbucket in vbuckets:
        unreadable = 0
        for version in versions:
            if version is BEGINNING:
                found[vbucket] = BEGINNING
                break
            if facts.decided.get(vbucket, version.version) != version.version:
                continue
            # After a RESTORE, versions of later rounds do not describe the table's rows.
            if version.round_of(vbucket) >= facts.current.round_of(vbucket):
                continue
            if not is_on_live_branch(facts, version, vbucket):
                continue
            if (version.version, vbucket) not in facts.unreadable:
                found[vbucket] = version
                break
            unreadable += 1
            if unreadable == _UNREADABLE_MOST:
                found[vbucket] = BEGINNING
                break
    return found


def vbuckets_with_kept_rows(facts: LogFacts) -> tuple[int, ...]:
    """Return the vbuckets to replace that may keep the rows of a dropped collection."""
    if all(event.ends_documents for events in facts.events.values() for event in events):
        return ()
    anew = begins_anew(facts)
    return tuple(
        vbucket
        for vbucket, events in sorted(facts.events.items())
        if not all(event.ends_documents for event in events)
        and _is_replaced(facts, vbucket, anew=anew)
        and _whole_beginning(facts, vbucket) is not None
    )


def decide_slice(facts: LogFacts) -> LogSlice:
    """Return the slice that brings the replica from the current version to ``to_round``."""
    anew = begins_anew(facts)
    parts = [
        part
        for vbucket in sorted(facts.after)
        if (part := _slice_of(facts, vbucket, anew=anew)) is not None
    ]
    return LogSlice(
        ranges=tuple(each for part in parts for each in part.ranges),
        first_round=min((part.first_round for part in parts), default=facts.to_round),
        to_round=facts.to_round,
        log_from_round=oldest_incomplete_round(facts.after.values(), facts.to_round),
        undone=tuple(each for part in parts for each in part.undone),
        cleared=tuple(each for part in parts for each in part.cleared),
        revived=tuple(each for part in parts for each in part.revived),
        stale={vb: number for part in parts for vb, number in part.stale.items()},
        begins_anew=anew,
    )


def no_slice(current: AppliedVersion) -> LogSlice:
    """Return the slice without work: the replica stays at its round."""
    return LogSlice(
        (), current.to_round, current.to_round, current.log_from_round, stale=current.stale
    )


def is_on_live_branch(facts: LogFacts, version: AppliedVersion, vbucket: int) -> bool:
    """Return whether all that a version has of a vbucket is live at ``to_round``."""
    state, forks = facts.state(version, vbucket), facts.forks_after(version, vbucket)
    is_known = state.epoch <= facts.after[vbucket].epoch
    return is_known and state.complete_seqno <= live_up_to(state.epoch, forks)


def _has_begun_anew(facts: LogFacts, version: AppliedVersion, vbucket: int) -> bool:
    return newest_beginning(facts.forks_after(version, vbucket)) is not None


def _is_replaced(facts: LogFacts, vbucket: int, *, anew: bool) -> bool:
    # Cleaning may have taken rows that the vbucket needs, so the whole history comes instead.
    is_short = facts.current.round_of(vbucket) < facts.cleaned_round
    return anew or (
        _has_begun_anew(facts, facts.current, vbucket)
        and (is_short or not is_on_live_branch(facts, facts.current, vbucket))
    )


def _slice_of(facts: LogFacts, vbucket: int, *, anew: bool) -> LogSlice | None:
    """Return the slice of one vbucket; None if nothing of it changes."""
    if _is_replaced(facts, vbucket, anew=anew):
        return _replacement(facts, vbucket)
    if is_on_live_branch(facts, facts.current, vbucket):
        return _rows_above(facts, vbucket, facts.current)
    return _rows_above(facts, vbucket, facts.restored_versions[vbucket])


def _rows_above(facts: LogFacts, vbucket: int, version: AppliedVersion) -> LogSlice | None:
    """Take the rows above a version; rows that have been published are kept or undone."""
    current, to_round, goes_back = facts.current, facts.to_round, version is not facts.current
    current_round, forks = current.round_of(vbucket), facts.forks_after(version, vbucket)
    old, new = facts.state(current, vbucket), facts.after[vbucket]
    if not goes_back and not forks and not may_have_rows(old, new, current_round):
        return None
    # Cleaning may have removed rows that the vbucket needs, so that it must stream again.
    if version.round_of(vbucket) < facts.cleaned_round:
        return _stale(facts, vbucket)
    ranges = row_ranges(facts.state(version, vbucket), old, new, forks)
    found = with_events(ranges, facts.events.get(vbucket, ()))
    # The table already has all these rows.
    if not found.clears and all(each.role is Role.KEPT for each in found.ranges):
        return None
    undone: tuple[Undo, ...] = ()
    restored = EMPTY_TABLE if found.restores_no_row else version.version
    if goes_back:
        fork_seqno = min(fork.seqno for fork in facts.forks_after(current, vbucket))
        undone = (Undo(vbucket, restored, fork_seqno),)
    return LogSlice(
        ranges=tuple(found.ranges),
        first_round=facts.first_round(version, vbucket),
        to_round=to_round,
        log_from_round=to_round,
        undone=undone,
        cleared=(vbucket,) if found.clears and current_round else (),
        revived=(vbucket,) if goes_back and found.revives and restored != EMPTY_TABLE else (),
    )


def _replacement(facts: LogFacts, vbucket: int) -> LogSlice:
    if (beginning := _whole_beginning(facts, vbucket)) is None:
        return _stale(facts, vbucket)
    new, forks = facts.after[vbucket], facts.forks_after(facts.current, vbucket)
    events = facts.events.get(vbucket, ())
    start = LakeVbucketState(vbucket, beginning.epoch, LakeVbucketState.beginning(0).position)
    ranges = row_ranges(start, start, new, forks)
    epoch_before = min(fork.epoch for fork in forks if fork.seqno == 0) - 1
    keeps_rows = keeps_dropped_rows(ranges, events, epoch_before, facts.forks[vbucket])
    return LogSlice(
        ranges=tuple(with_events(ranges, events).ranges),
        first_round=beginning.round,
        to_round=facts.to_round,
        log_from_round=facts.to_round,
        undone=() if keeps_rows else (Undo(vbucket, REPLACED, 0),),
    )


def _whole_beginning(facts: LogFacts, vbucket: int) -> Fork | None:
    """Return the fork at 0 whose history replaces a vbucket; None if the vbucket waits for it.

    Rows of an incomplete history would show a state that the source never had.
    """
    beginning = newest_beginning(facts.forks_after(facts.current, vbucket))
    is_whole = facts.after[vbucket].is_whole
    is_left = beginning is not None and beginning.round > facts.cleaned_round
    return beginning if is_whole and is_left else None


def _stale(facts: LogFacts, vbucket: int) -> LogSlice:
    to_round = facts.to_round
    return LogSlice(
        (), to_round, to_round, to_round, stale={vbucket: facts.current.round_of(vbucket)}
    )


def row_ranges(
    start: LakeVbucketState, old: LakeVbucketState, new: LakeVbucketState, forks: Sequence[Fork]
) -> list[RowRange]:
    """Return the rows above ``start`` that are published at ``old``, live at ``new``, or both.

    ``forks`` are the vbucket's forks after ``start``. Older forks decide nothing: no row of an
    epoch before ``start`` is live above ``start``.
    """
    ranges: list[RowRange] = []
    low = start.complete_seqno
    old_forks = [fork for fork in forks if fork.epoch <= old.epoch]
    for epoch in range(start.epoch, new.epoch + 1):
        published = low
        if epoch <= old.epoch:
            published = min(old.complete_seqno, live_up_to(epoch, old_forks))
        live = min(new.complete_seqno, live_up_to(epoch, forks))
        # A row below both limits is kept. Between them it is undone, or fresh.
        for role, bottom, top in (
            (Role.KEPT, low, min(published, live)),
            (Role.UNDONE, max(low, live), published),
            (Role.FRESH, max(low, published), live),
        ):
            if top > bottom:
                ranges.append(RowRange(new.vbucket, epoch, bottom, top, role))
    return ranges


def may_have_rows(old: LakeVbucketState, new: LakeVbucketState, from_round: int) -> bool:
    """Return whether the log can have rows to publish for this vbucket, within one epoch.

    Such a row is a document, or the flush or drop of a collection.
    """
    if new.complete_seqno <= old.complete_seqno:
        return False
    brought = max(new.last_data_round or 0, new.last_collection_round or 0)
    return brought > from_round or old.first_incomplete_round is not None


def oldest_incomplete_round(states: Iterable[LakeVbucketState], otherwise: int) -> int:
    """Return the oldest round that may have rows above the complete seqno of some state.

    It is at most ``otherwise``: the caller reads all rounds from there on anyway.
    """
    incomplete = (state.first_incomplete_round for state in states)
    return min([otherwise, *(number for number in incomplete if number)])


def _require_consistent(
    old: LakeVbucketState, new: LakeVbucketState, forks: Sequence[Fork]
) -> None:
    # A fork at 0 replaces all earlier rows, so the log need not have the epochs before it.
    beginning = newest_beginning(forks)
    anew = 0 if beginning is None else beginning.epoch
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

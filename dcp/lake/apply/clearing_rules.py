"""Decides what events of a collection do to the row ranges of an apply. No Spark.

An event that ends a collection's documents is live or dead by the same definition as a document,
and takes effect with the snapshot that carries it. Where it is live the collection was empty at its
seqno: that is a state of the vbucket like the one that a version of the replica holds, and newer.
So:

* a live one that is not published yet: what the table has goes, what is live above it comes.
* a live one that is published, above the version to go back to: nothing of that version is needed.
* a dead one that was published: it is undone, so every row of the version to go back to returns.

A backfill that brought the collection anew is such an event, too, with a difference: what is live
at and below its seqno are the rows of its own epoch. One that is dead changes nothing: of its epoch
the rows above the fork count by their seqnos like any others, and what it took away stays away.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from dcp.lake.log.epochs import Fork, is_live, live_up_to
from dcp.lake.log.log_slice import CollectionEvent, Role, RowRange
from dcp.lake.tables.vbucket_state import VbucketProgress


@dataclass(frozen=True, slots=True)
class ClearedRanges:
    """Row ranges of one vbucket with the effect of its collection's events.

    ``clears``: what the table has of it goes. ``base_is_empty``: of the version to go back to
    nothing is needed. ``revives``: all that this version has returns, and what is live above it.
    """

    ranges: Sequence[RowRange]
    clears: bool = False
    base_is_empty: bool = False
    revives: bool = False


@dataclass(frozen=True, slots=True)
class BroughtAnew:
    """The newest live backfill of a vbucket's collection since a base.

    The rows of its ``epoch`` are live above ``low_seqno``, the newest flush that it met itself, up
    to ``live_seqno``, and published up to ``published_seqno``: 0 where the backfill is not.
    """

    vbucket: int
    epoch: int
    seqno: int
    low_seqno: int
    live_seqno: int
    published_seqno: int


def brought_anew(
    events: Collection[CollectionEvent],
    base_round: int,
    old: tuple[int, VbucketProgress],
    new: VbucketProgress,
    forks: Sequence[Fork],
) -> BroughtAnew | None:
    """Return the newest live backfill above a base, or None.

    Args:
        events: the vbucket's, of the collection.
        base_round: the round that the base holds; its events are in it already.
        old: the round that the replica holds, and the state then.
        new: the state to come to.
        forks: the vbucket's since the base.

    """
    old_round, before = old
    found: BroughtAnew | None = None
    for event in (each for each in events if each.brings_anew):
        live = min(new.complete_seqno, live_up_to(event.epoch, new.epoch, forks))
        if event.round <= base_round or event.seqno > live:
            continue
        low = max((each.seqno for each in events if _is_met_by(event, each)), default=0)
        published = 0
        if event.round <= old_round:
            published = min(
                before.complete_seqno, live_up_to(event.epoch, before.epoch, forks), live
            )
        if event.seqno > published:
            published = 0
        if found is None or event.epoch > found.epoch:
            found = BroughtAnew(new.vbucket, event.epoch, event.seqno, low, live, published)
    return found


def _is_met_by(backfill: CollectionEvent, event: CollectionEvent) -> bool:
    """Return whether a backfill's own stream brought an event that ends documents."""
    is_end = not (event.keeps or event.brings_anew)
    return is_end and event.epoch == backfill.epoch and event.seqno <= backfill.seqno


def with_events(
    ranges: Sequence[RowRange],
    events: Iterable[CollectionEvent],
    brought: BroughtAnew | None = None,
) -> ClearedRanges:
    """Return what becomes of a vbucket's row ranges above a base by its collection's events.

    Events outside the ranges are in the base already, dead and never published, or not complete.
    """
    roles = {
        event: role
        for event in events
        if not (event.keeps or event.brings_anew) and (role := _role_of(event, ranges)) is not None
    }
    live = [event for event, role in roles.items() if role is not Role.UNDONE]
    revives = Role.UNDONE in roles.values()
    # Live seqnos ascend over all epochs, so the newest event is the one with the highest.
    newest_live = max(live, key=lambda event: event.seqno, default=None)
    is_fresh = False
    if brought is not None and (newest_live is None or newest_live.seqno <= brought.seqno):
        ranges, is_fresh = _from(brought, ranges), not brought.published_seqno
    elif newest_live is not None:
        ranges, is_fresh = _above(newest_live.seqno, ranges), roles[newest_live] is Role.FRESH
    if is_fresh:
        rows = [each for each in ranges if each.role is not Role.UNDONE]
        return ClearedRanges(rows, clears=True, base_is_empty=True)
    if revives:  # of what is published and live, the dead event may have taken any row
        ranges = _all_fresh(ranges)
    base_is_empty = newest_live is not None or brought is not None
    return ClearedRanges(ranges, base_is_empty=base_is_empty, revives=revives)


def keeps_dropped_rows(
    ranges: Sequence[RowRange],
    events: Iterable[CollectionEvent],
    epoch_before: int,
    forks: Sequence[Fork],
) -> bool:
    """Return whether a vbucket's rows stay although it was streamed again from its beginning.

    They do where the collection was dropped, the rows are kept, and the new stream, whose row
    ranges these are, does not tell that it exists again. ``epoch_before`` is the last one before
    the vbucket began anew: a drop that was undone by then is none. ``forks`` are all of them.
    """
    told = [
        event for event in events if not event.brings_anew and _role_of(event, ranges) is not None
    ]
    newest = max(told, key=lambda event: event.seqno, default=None)
    was_dropped = any(
        event.keeps and is_live(event.epoch, event.seqno, epoch_before, forks) for event in events
    )
    return was_dropped if newest is None else newest.keeps


def _role_of(event: CollectionEvent, ranges: Iterable[RowRange]) -> Role | None:
    for each in ranges:
        if each.epoch == event.epoch and each.low < event.seqno <= each.high:
            return each.role
    return None


def _from(brought: BroughtAnew, ranges: Iterable[RowRange]) -> list[RowRange]:
    """Return the ranges of a vbucket whose live rows begin with those of a backfill."""
    undone = [each for each in ranges if each.role is Role.UNDONE]
    later = [each for each in ranges if each.role is not Role.UNDONE and each.epoch > brought.epoch]
    published, live = brought.published_seqno, brought.live_seqno
    own = [
        RowRange(brought.vbucket, brought.epoch, low, high, role)
        for low, high, role in (
            (brought.low_seqno, published, Role.KEPT),
            (max(brought.low_seqno, published), live, Role.FRESH),
        )
        if low < high
    ]
    return [*undone, *own, *later]


def _above(seqno: int, ranges: Iterable[RowRange]) -> list[RowRange]:
    """Return the ranges without the live rows up to ``seqno``."""
    cut = (
        each if each.role is Role.UNDONE else replace(each, low=max(each.low, seqno))
        for each in ranges
    )
    return [each for each in cut if each.low < each.high]


def _all_fresh(ranges: Iterable[RowRange]) -> list[RowRange]:
    """Return the ranges with what is published and live as if it were not published."""
    return [replace(each, role=Role.FRESH) if each.role is Role.KEPT else each for each in ranges]

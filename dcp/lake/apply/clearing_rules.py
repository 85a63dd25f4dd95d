"""Decides what events of a collection do to the row ranges of an apply. No Spark.

An event that ends a collection's documents is live or dead by the same definition as a document,
and takes effect with the snapshot that carries it. Where it is live the collection was empty at its
seqno: that is a state of the vbucket like the one that a version of the replica holds, and newer.
So:

* a live one that is not published yet: what the table has goes, what is live above it comes.
* a live one that is published, above the version to go back to: nothing of that version is needed.
* a dead one that was published: it is undone, so every row of the version to go back to returns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dcp.lake.change_log.collection_events import CollectionEvent, newest_event
from dcp.lake.change_log.epochs import Fork
from dcp.lake.store.log_slice import Role, RowRange


@dataclass(frozen=True, slots=True)
class ClearedRanges:
    ranges: Sequence[RowRange]
    clears: bool = False
    """The vbucket's rows of the collection leave the table."""
    base_is_empty: bool = False
    """No row of the base is needed."""
    revives: bool = False
    """All rows of the base return, and all live rows above it."""


def with_events(ranges: Sequence[RowRange], events: Iterable[CollectionEvent]) -> ClearedRanges:
    """Apply the events of a vbucket's collection to its row ranges above a base.

    Events outside the ranges are in the base already, dead and never published, or not complete.
    """
    roles = {
        event: role
        for event in events
        if not event.keeps and (role := _role_of(event, ranges)) is not None
    }
    live = [event for event, role in roles.items() if role is not Role.UNDONE]
    revives = Role.UNDONE in roles.values()
    # Live seqnos ascend over all epochs, so the newest event is the one with the highest.
    newest_live = max(live, key=lambda event: event.seqno, default=None)
    if newest_live is not None:
        cut = (
            each
            if each.role is Role.UNDONE
            else replace(each, low=max(each.low, newest_live.seqno))
            for each in ranges
        )
        ranges = [each for each in cut if each.low < each.high]
        if roles[newest_live] is Role.FRESH:
            rows = [each for each in ranges if each.role is not Role.UNDONE]
            return ClearedRanges(rows, clears=True, base_is_empty=True)
    if revives:  # of what is published and live, the dead event may have taken any row
        ranges = [
            replace(each, role=Role.FRESH) if each.role is Role.KEPT else each for each in ranges
        ]
    return ClearedRanges(ranges, base_is_empty=newest_live is not None, revives=revives)


def keeps_dropped_rows(
    ranges: Sequence[RowRange],
    events: Iterable[CollectionEvent],
    epoch_before: int,
    forks: Sequence[Fork],
) -> bool:
    """Return whether a vbucket keeps its rows although it was streamed again from its beginning.

    It does if the newest event is a drop that keeps them: of the new stream, with these row ranges,
    or else of the epochs up to ``epoch_before``, the last one before the vbucket began anew.
    ``forks`` are all of them.
    """
    told = [
        event
        for event in events
        if event.epoch <= epoch_before or not event.seqno or _role_of(event, ranges) is not None
    ]
    newest = newest_event(told, forks)
    return newest is not None and newest.keeps


def _role_of(event: CollectionEvent, ranges: Iterable[RowRange]) -> Role | None:
    for each in ranges:
        if each.epoch == event.epoch and each.low < event.seqno <= each.high:
            return each.role
    return None

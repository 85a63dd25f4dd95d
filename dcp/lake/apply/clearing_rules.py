"""Decides how flushes and drops of a collection change the row ranges of an apply. No Spark.

An event that ends a collection's documents is live or dead by the same rule as a document. It takes
effect with the snapshot that carries it. At the seqno of a live event the collection was empty:

* A live event that is not published: the table's rows go, and the live rows above it come.
* A live event that is published, above the restored version: no row of that version returns.
* A dead event that was published is undone: every row of the restored version returns.
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
    """The collection's rows of the vbucket leave the table (`LogSlice.cleared`)."""
    restores_no_row: bool = False
    """The apply needs no row of the restored version."""
    revives: bool = False
    """All rows of the restored version return, and all live rows above it."""


def with_events(ranges: Sequence[RowRange], events: Iterable[CollectionEvent]) -> ClearedRanges:
    """Apply the events of a vbucket's collection to its row ranges above a version.

    It ignores events outside the ranges. The version includes them, or they are dead and
    unpublished, or their snapshot is incomplete.
    """
    roles = {
        event: role
        for event in events
        if event.ends_documents and (role := _role_of(event, ranges)) is not None
    }
    live = [event for event, role in roles.items() if role is not Role.UNDONE]
    revives = Role.UNDONE in roles.values()
    # Live seqnos ascend over all epochs, so the newest event has the highest seqno.
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
            return ClearedRanges(ranges, clears=True, restores_no_row=True)
    if revives:  # the dead event may have removed any published live row
        ranges = [
            replace(each, role=Role.REVIVED) if each.role is Role.KEPT else each for each in ranges
        ]
    return ClearedRanges(ranges, restores_no_row=newest_live is not None, revives=revives)


def keeps_dropped_rows(
    ranges: Sequence[RowRange],
    events: Iterable[CollectionEvent],
    epoch_before: int,
    forks: Sequence[Fork],
) -> bool:
    """Return whether a vbucket that streams again from its beginning keeps its rows.

    It does if the newest event is a drop that keeps them. That event belongs to the new stream
    (``ranges``), or to an epoch up to ``epoch_before``, the last one before the new beginning.
    ``forks`` are all forks of the vbucket.
    """
    told = [
        event
        for event in events
        if event.epoch <= epoch_before or not event.seqno or _role_of(event, ranges) is not None
    ]
    newest = newest_event(told, forks)
    return newest is not None and not newest.ends_documents


def _role_of(event: CollectionEvent, ranges: Iterable[RowRange]) -> Role | None:
    for each in ranges:
        if each.epoch == event.epoch and each.low < event.seqno <= each.high:
            return each.role
    return None

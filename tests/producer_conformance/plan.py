"""From sightings to orders: which state each vbucket must be brought into, before which line.

The lines of a vbucket are cut into eras, in each of which there is one history (``eras.py``).
Nothing is put in earlier than a line proves it: what a snapshot from disk shows was there when its
stream was asked for, what comes in a memory snapshot is written when the server was seen to send
it. What a recorded request wrote is not put in at all: our producer gets the request, at the same
seqno.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dcp.producer.vbucket.documents import RELATIVE_EXPIRY_SECONDS
from dcp.types import FailoverLog
from dcp.wire.vocabulary import VbucketState
from tests.producer_conformance.eras import Era, eras_of
from tests.producer_conformance.histories import complete, lost_in
from tests.producer_conformance.sightings import (
    ANY_STATE,
    Item,
    Sightings,
    State,
    VbucketSightings,
    Written,
    next_of,
)

_LIKELIEST = (
    VbucketState.ACTIVE,
    VbucketState.REPLICA,
    VbucketState.PENDING,
    None,
    VbucketState.DEAD,
)


@dataclass(frozen=True, slots=True)
class SetUp:
    """The vbucket becomes exactly this; its streams end, for its state has changed."""

    vbucket: int
    log: FailoverLog
    high_seqno: int
    items: tuple[Item, ...]
    purge_seqno: int
    state: State
    default_high_seqno: int | None
    unpersisted_seqnos: int


@dataclass(frozen=True, slots=True)
class Write:
    """The next items come, all at once.

    Who had the last snapshot that a marker shows has all before them: none ends between them.
    """

    vbucket: int
    items: tuple[Item, ...]
    checkpoint_begins: bool


@dataclass(frozen=True, slots=True)
class Purge:
    """Tombstones up to a seqno are purged."""

    vbucket: int
    up_to_seqno: int


@dataclass(frozen=True, slots=True)
class DropCursors:
    """Memory forgets the cursors of the vbucket's streams, as it does when it is short."""

    vbucket: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """A recorded write, by its line and opaque, was carried out, though its answer comes later."""

    vbucket: int
    request: tuple[int, int]


Order = SetUp | Write | Purge | DropCursors | HandOver


@dataclass(frozen=True, slots=True)
class Requested:
    """What a recorded write makes, and the server's clock then, in seconds since 1970.

    The time is what its CAS says, which holds the server's (kv_engine ``engines/ep/src/hlc.h``), or
    what the document says that was deleted then, or given so long to live.
    """

    item: Item
    now_seconds: int

    @classmethod
    def of(cls, written: Written, item: Item) -> "Requested":
        """Return what a request made as the item that was shown, if it was."""
        now = item.delete_time or written.item.cas // 1_000_000_000
        if item.expiry and 0 < written.ttl_seconds <= RELATIVE_EXPIRY_SECONDS:
            now = item.expiry - written.ttl_seconds
        return cls(item, now)


@dataclass(frozen=True, slots=True)
class Plan:
    """Orders by the line before which they must be carried out.

    ``requested`` are the recorded writes, by their line and opaque.
    """

    before: dict[int, list[Order]]
    requested: dict[tuple[int, int], Requested]


def make_plan(sightings: Sightings) -> Plan:
    """Return what must be done when, for all vbuckets of which anything was seen."""
    before: dict[int, list[Order]] = defaultdict(list)
    requested: dict[tuple[int, int], Requested] = {}
    for number, era, items in _histories(sightings):
        about = sightings.vbuckets[number]
        for line, order in _era_orders(number, era, about, items):
            before[line].append(order)
        for seqno, written in sorted(era.requested.items()):
            if seqno in era.shown:  # the last one, where there is a prepare before it
                requested[written.id] = Requested.of(written, era.shown[seqno])
    return Plan(dict(before), requested)


_History = tuple[int, Era, tuple[Item, ...]]


def _histories(sightings: Sightings) -> list[_History]:
    """Return the eras of all vbuckets with their items.

    No recording lost more than one frame: if more seem to be, the bucket hides things.
    """
    eras = [
        (number, era)
        for number, about in sorted(sightings.vbuckets.items())
        if number < sightings.vbucket_count
        for era in eras_of(about)
    ]

    def all_with(*, hides: bool) -> list[_History]:
        return [
            (number, era, _items_of(era, sightings.vbuckets[number], hides=hides))
            for number, era in eras
        ]

    found = all_with(hides=sightings.hides)
    lost = sum(lost_in(items) for _, _, items in found)
    return found if lost <= 1 else all_with(hides=True)


def _items_of(era: Era, about: VbucketSightings, *, hides: bool) -> tuple[Item, ...]:
    purge_seqno = era.purges[-1][1] if era.purges else 0
    reached = {seqno for _, seqno in era.reached}

    def heard(seqno: int) -> set[frozenset[int] | None]:
        line = era.line_of(seqno)
        return {
            hears
            for first, last, born, hears in about.listened
            if first <= line < last and era.has(born)
        }

    return complete(
        era.shown, era.base, reached, purge_seqno, era.snapshots, hides=hides, heard=heard
    )


def _era_orders(
    vbucket: int, era: Era, about: VbucketSightings, items: tuple[Item, ...]
) -> Iterator[tuple[int, Order]]:
    seqnos = [item.seqno for item in items]
    set_ups = _set_up_lines(era, about)
    dropped = [line for line in about.cursor_dropped if era.has(line)]
    ends = sorted({one.end for one in about.snapshots})
    lines = sorted({*set_ups, *dropped, *(line for line, _ in era.reached)})
    done = 0
    for line in lines:
        high = era.high_at(line)
        come = items[: bisect_right(seqnos, high)]
        if line in set_ups:
            purged = max((seqno for since, seqno in era.purges if since <= line), default=0)
            default_high = next_of(about.default_high, line)
            if default_high is not None and default_high > high:  # it comes with later items
                default_high = None
            unpersisted = next_of(about.unpersisted, line) or 0
            yield (
                line,
                SetUp(
                    vbucket,
                    era.log,
                    high,
                    come,
                    purged,
                    set_ups[line],
                    default_high,
                    unpersisted,
                ),
            )
        elif high > done:
            new = come[bisect_right(seqnos, done) :]
            for each in _in_turn(vbucket, new, era, line):
                others = each if isinstance(each, list) else []
                yield from ((line, write) for write in _writes(vbucket, others, ends, about))
                if isinstance(each, HandOver):
                    yield line, each
        if line not in set_ups:
            yield from ((line, Purge(vbucket, up_to)) for at, up_to in era.purges if at == line)
        if line in dropped:
            yield line, DropCursors(vbucket)
        done = max(done, high)


def _in_turn(
    vbucket: int, new: Sequence[Item], era: Era, line: int
) -> Iterator[list[Item] | HandOver]:
    """Yield the items that nobody asked for, and between them the requests that made the others.

    A request whose answer is due is handed over by itself.
    """
    for written, items in groupby(new, key=lambda item: era.requested.get(item.seqno)):
        if written is None:
            yield list(items)
        elif line < written.answered or new[-1].seqno > max(item.seqno for item in items):
            yield HandOver(vbucket, written.id)


def _writes(
    vbucket: int, items: Sequence[Item], ends: Sequence[int], about: VbucketSightings
) -> Iterator[Write]:
    """Yield the items as so many writes as there are snapshots that end between them."""
    for _, together in groupby(items, key=lambda item: bisect_left(ends, item.seqno)):
        part = tuple(together)
        first, last = part[0].seqno, part[-1].seqno
        yield Write(vbucket, part, any(first <= seqno <= last for seqno in about.checkpoints))


def _set_up_lines(era: Era, about: VbucketSightings) -> dict[int, State]:
    """The lines at which the vbucket must be made anew, with the state that fits what follows."""
    seen = [(line, states) for line, states in about.states if era.has(line)]
    found: dict[int, State] = {}
    for line, states in _stretches(era.start, seen):
        found[line] = next(state for state in _LIKELIEST if state in states)
    return found


def _stretches(
    start: int, seen: Sequence[tuple[int, frozenset[State]]]
) -> Iterator[tuple[int, frozenset[State]]]:
    """Yield where a stretch begins in which one state explains everything, and those that do."""
    line, possible = start, ANY_STATE
    for seen_line, states in sorted(seen, key=lambda one: one[0]):
        if possible & states:
            possible &= states
            continue
        yield line, possible
        line, possible = seen_line, states
    yield line, possible

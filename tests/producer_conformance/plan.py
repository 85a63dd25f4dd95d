"""From sightings to orders: which state each vbucket must be brought into, before which line.

The lines of a vbucket are cut into *eras*: a new one begins where another failover log is seen (or
before it, where streams ended for a change of state or a client was sent back to the new branch).
In an era the log is one, items only come, and the purge seqno only rises. An era's history is
worked out as a whole (``histories.py``); how far it has come at a line is the highest seqno that a
line up to it proves. Nothing is put in earlier than that: what a snapshot from disk shows was there
when its stream was asked for, what comes in a memory snapshot is written when the server was seen
to send it.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dcp.producer.manifest import DEFAULT_ID
from dcp.types import END_OF_TIME, FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.system_event import CollectionBegun, CollectionEnded
from dcp.wire.vocabulary import Opcode, Status, VbucketState
from tests.producer_conformance.histories import complete, merged, missed_by
from tests.producer_conformance.sightings import (
    ANY_STATE,
    Item,
    Sightings,
    State,
    VbucketSightings,
    What,
)

_NO_LOG = FailoverLog((FailoverEntry(1, 0),))
"""That of a vbucket of which no log was seen."""
_TOMBSTONE_OPCODES = frozenset({Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION})
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
    """The next items come, all at once."""

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


Order = SetUp | Write | Purge | DropCursors


@dataclass(frozen=True, slots=True)
class Plan:
    """Orders by the line before which they must be carried out."""

    before: dict[int, list[Order]]


def make_plan(sightings: Sightings) -> Plan:
    """Return what must be done when, for all vbuckets of which anything was seen."""
    before: dict[int, list[Order]] = defaultdict(list)
    for number in range(sightings.vbucket_count):
        about = sightings.vbuckets.get(number)
        if about is not None:
            for line, order in _orders(number, about):
                before[line].append(order)
    return Plan(dict(before))


@dataclass(slots=True)
class _Era:
    """Lines [start, end) of a vbucket, and what was true in them."""

    start: int
    end: int
    log: FailoverLog
    shown: dict[int, Item] = field(default_factory=dict)
    reached: list[tuple[int, int]] = field(default_factory=list)
    purges: list[tuple[int, int]] = field(default_factory=list)
    """Lines and seqnos, both rising."""

    def has(self, line: int) -> bool:
        return self.start <= line < self.end

    def high_at(self, line: int) -> int:
        """The highest seqno that is proved up to a line."""
        lines = [reached_line for reached_line, _ in self.reached]
        index = bisect_right(lines, line)
        return max((seqno for _, seqno in self.reached[:index]), default=0)


def _orders(vbucket: int, about: VbucketSightings) -> Iterator[tuple[int, Order]]:
    eras = _eras(about)
    for before, era in zip([None, *eras], eras, strict=False):
        _fill(era, about, before)
        yield from _era_orders(vbucket, era, about)


def _eras(about: VbucketSightings) -> list[_Era]:
    """Cut a vbucket's lines where its log changes."""
    starts: list[tuple[int, FailoverLog]] = []
    for line, log in sorted(about.logs, key=lambda seen: seen[0]):
        if not starts:
            starts.append((about.first_line, log))
        elif starts[-1][1] != log:
            since = max(seen for seen, same in about.logs if seen < line and same == starts[-1][1])
            ended = [end for end in about.ended if since < end < line]
            begun = min([*ended, line])
            shown = (seen for seen, _ in about.items if seen < begun)
            alive = max([since, *shown])  # streams end where a branch begins
            starts.append((min([*_sent_back(about, alive, begun, log), begun]), log))
    if not starts:
        starts = [(about.first_line, _NO_LOG)]
    last_log_line = max((line for line, _ in about.logs), default=0)
    for line in about.ended:  # a change of state after which no log was seen
        if line > last_log_line:
            starts.append((line, starts[-1][1]))
    starts.append((END_OF_TIME, _NO_LOG))
    return [_Era(start, end, log) for (start, log), (end, _) in pairwise(starts)]


def _sent_back(about: VbucketSightings, since: int, line: int, log: FailoverLog) -> list[int]:
    """Return the lines before ``line`` whose clients were sent back to where the branch began."""
    branch = log.entries[0].seqno
    told = {(seen, seqno) for seen, seqno in about.at_least if seqno <= branch}
    return [
        seen
        for seen, _, status in about.verdicts
        if since < seen < line
        and status == Status.ROLLBACK
        and any(told_line == seen for told_line, _ in told)
    ]


def _fill(era: _Era, about: VbucketSightings, before: _Era | None) -> None:
    views: dict[int, list[Item]] = defaultdict(list)
    for line, item in about.items:
        if era.has(line):
            views[item.seqno].append(item)
    if before is not None:
        shared = _shared_up_to(before, era.log)
        era.reached.append((era.start, shared))
        for seqno, item in before.shown.items():
            if seqno <= shared:
                views[seqno].append(item)
    era.shown = {seqno: merged(seen) for seqno, seen in views.items()}
    _hear(era, about)
    for line, collection in about.dropped:
        gone = (seqno for seqno, item in era.shown.items() if _ends(item, collection))
        era.reached += [(line, seqno) for seqno in gone if era.has(line)]
    era.reached += _known(era, about)
    era.reached += [seen for seen in about.at_least if era.has(seen[0])]
    era.reached += [(era.start, entry.seqno) for entry in era.log.entries]
    era.reached.sort()
    era.purges = _purges(era, about)
    highest = era.high_at(END_OF_TIME)
    for line, seqno in era.purges:  # the newest item is never purged
        era.reached.append((line, min(seqno + 1, max(seqno, highest))))
    era.reached.sort()


def _ends(item: Item, collection: int) -> bool:
    event = item.event
    return isinstance(event, CollectionEnded) and event.collection_id == collection


def _hear(era: _Era, about: VbucketSightings) -> None:
    """Let there be a collection of which nothing but its newest seqno was ever told.

    Where nothing of it was shown it begins right after what the default collection has.
    """
    for line, collection, high in about.collection_high:
        if not era.has(line) or high in era.shown:
            continue
        default_high = _next_of(about.default_high, line) or 0
        begun = CollectionBegun(1, DEFAULT_ID, collection, b"unseen")
        era.shown[default_high + 1] = Item(
            default_high + 1, begun.name, What.SYSTEM_EVENT, collection, event=begun
        )
        for seqno in range(default_high + 2, high + 1):
            key = b"unseen %d" % seqno
            mutation = int(Opcode.DCP_MUTATION)
            era.shown[seqno] = Item(
                seqno, key, collection_id=collection, opcode=mutation, value=b"{}"
            )


def _known(era: _Era, about: VbucketSightings) -> Iterator[tuple[int, int]]:
    """Yield the lines of stream requests that were granted, and where what they name had begun."""
    for line, request, status in about.verdicts:
        if status != Status.SUCCESS or not request.value or not era.has(line):
            continue
        for name in json.loads(request.value).get("collections", ()):
            for seqno, item in era.shown.items():
                begun = item.event
                if isinstance(begun, CollectionBegun) and begun.collection_id == int(name, 16):
                    yield line, seqno


def _shared_up_to(before: _Era, log: FailoverLog) -> int:
    """Return up to which seqno the history of ``log`` is that of the era before."""
    known = {entry.vb_uuid for entry in before.log.entries}
    if not any(entry.vb_uuid in known for entry in log.entries):
        return 0
    new = [entry.seqno for entry in log.entries if entry.vb_uuid not in known]
    return min([before.high_at(END_OF_TIME), *new])


def _purges(era: _Era, about: VbucketSightings) -> list[tuple[int, int]]:
    """Return from which lines tombstones were purged, and up to which seqnos.

    A client on our branch that is told to go back to 0 missed purged tombstones: the purge seqno
    lies above where it stood, and not above where others could go on. And a tombstone that was
    shown, and in a later snapshot was not though nothing replaced it, was purged.
    """
    taken = sorted(
        (request.start, line)
        for line, request, status in about.verdicts
        if era.has(line) and status == Status.SUCCESS
    )
    found = []
    for line, request, status in about.verdicts:
        is_told = status == Status.ROLLBACK and (line, 0) in about.at_least
        if era.has(line) and is_told and _is_on_branch(request, era, line):
            low = request.start + 1
            found.append((line, next((at for at, on in taken if at >= low and on > line), low)))
    unseen = [seqno for seqno in range(1, max(era.shown, default=0)) if seqno not in era.shown]
    for one in about.snapshots:
        for item in missed_by(one, era.shown) if era.has(one.line) else ():
            purged: int | None = item.seqno
            if item.opcode not in _TOMBSTONE_OPCODES:  # it was deleted unseen before
                after = item.seqno
                purged = next((seqno for seqno in unseen if after < seqno <= one.end), None)
            if purged is not None:
                found.append((one.taken_line, purged))
    rising: list[tuple[int, int]] = []
    for line, seqno in sorted(found):
        if not rising or seqno > rising[-1][1]:
            rising.append((line, seqno))
    return rising


def _is_on_branch(request: m.StreamRequest, era: _Era, line: int) -> bool:
    end = max(era.high_at(line), era.log.entries[0].seqno)
    found = None
    for entry in era.log.entries:
        if entry.vb_uuid == request.vb_uuid:
            found = end
        end = entry.seqno
    if not found or not request.start:
        return False
    goes_back_to_0 = request.snap_start == 0 and request.start != request.snap_end > found
    return not goes_back_to_0


def _era_orders(vbucket: int, era: _Era, about: VbucketSightings) -> Iterator[tuple[int, Order]]:
    snapshots = [one for one in about.snapshots if era.has(one.line)]
    purge_seqno = era.purges[-1][1] if era.purges else 0
    # What lies before all that was shown is nobody's to see: an old vbucket may have billions.
    first = min([*era.shown, era.high_at(era.start) + 1])
    seqnos = range(first, era.high_at(END_OF_TIME) + 1)
    items = complete(era.shown, seqnos, purge_seqno, snapshots)
    set_ups = _set_up_lines(era, about)
    dropped = [line for line in about.cursor_dropped if era.has(line)]
    lines = sorted({*set_ups, *dropped, *(line for line, _ in era.reached)})
    done = 0
    for line in lines:
        high = era.high_at(line)
        if line in set_ups:
            purged = max((seqno for since, seqno in era.purges if since <= line), default=0)
            default_high = _next_of(about.default_high, line)
            yield (
                line,
                SetUp(
                    vbucket,
                    era.log,
                    high,
                    items[: max(high + 1 - first, 0)],
                    purged,
                    set_ups[line],
                    default_high,
                    _next_of(about.unpersisted, line) or 0,
                ),
            )
        elif high > done:
            begins = any(done < seqno <= high for seqno in about.checkpoints)
            yield line, Write(vbucket, items[done + 1 - first : high + 1 - first], begins)
        if line not in set_ups:
            yield from ((line, Purge(vbucket, up_to)) for at, up_to in era.purges if at == line)
        if line in dropped:
            yield line, DropCursors(vbucket)
        done = max(done, high)


def _next_of(seqnos: Sequence[tuple[int, int]], line: int) -> int | None:
    """Return what was said next, from a line on."""
    return next((seqno for seen, seqno in seqnos if seen >= line), None)


def _set_up_lines(era: _Era, about: VbucketSightings) -> dict[int, State]:
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

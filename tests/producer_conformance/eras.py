"""A vbucket's lines, cut into eras, and what was true in each.

A new era begins with each branch (``branches.py``). In an era the log is one, items only come, and
the purge seqno only rises. An era's history is worked out as a whole (``histories.py``); how
far it has come at a line is the highest seqno that a line up to it proves.

The history begins behind ``base``: right before the first item that was shown, or lower where the
vbucket was seen to stand lower. What lay there nobody was shown: it was replaced, or deleted and
purged. An old vbucket may have billions of such seqnos, and they cost nothing.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from dcp.producer.model.manifest import DEFAULT_ID
from dcp.types import END_OF_TIME, U64_MAX, FailoverLog
from dcp.wire.system_event import CollectionEnded
from dcp.wire.vocabulary import Status
from tests.producer_conformance.branches import branches_of
from tests.producer_conformance.completions import merged_history
from tests.producer_conformance.missed_items import replaced_in_the_rest
from tests.producer_conformance.purges import purges_of
from tests.producer_conformance.request_seqnos import place
from tests.producer_conformance.sightings import (
    Item,
    Presence,
    Snapshot,
    VbucketSightings,
    What,
    Written,
)
from tests.producer_conformance.unseen_collections import (
    FILTER_WAS_TAKEN,
    begun_by_filters,
    beyond_default,
    unseen_collections,
)
from tests.producer_conformance.unseen_documents import (
    came_later,
    missing_versions,
    read_documents,
)


@dataclass(slots=True)
class Era:
    """Lines [start, end) of a vbucket, and what was true in them.

    ``reached`` and ``purges`` are lines with seqnos, both rising. ``requested`` are the seqnos of
    what recorded requests wrote in this era: those the requests bring themselves.
    """

    start: int
    end: int
    log: FailoverLog
    base: int = 0
    shown: dict[int, Item] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    reached: list[tuple[int, int]] = field(default_factory=list)
    purges: list[tuple[int, int]] = field(default_factory=list)
    requested: dict[int, Written] = field(default_factory=dict)
    _lines: list[int] = field(default_factory=list)
    _highs: list[int] = field(default_factory=list)

    def has(self, line: int) -> bool:
        """Whether the line lies in the era."""
        return self.start <= line < self.end

    def within(self, line: int) -> int:
        """Return a line, or the era's last one where a client read late what it was sent in it."""
        return min(line, self.end - 1)

    def high_at(self, line: int) -> int:
        """Return the highest seqno that is proved up to a line."""
        index = bisect_right(self._lines, line)
        return max(self.base, self._highs[index - 1]) if index else self.base

    @property
    def high(self) -> int:
        """The highest seqno of all."""
        return self.high_at(END_OF_TIME)

    def line_of(self, seqno: int) -> int:
        """Return the first line up to which a seqno is proved."""
        index = next((at for at, high in enumerate(self._highs) if high >= seqno), None)
        return self.end if index is None else self._lines[index]

    def settle(self) -> None:
        """Put in order what was proved. What a request wrote is not there before it is sent.

        It is there once it was answered, and so is all that came before it.
        """
        proved = self.reached
        firsts = {request.id: seqno for seqno, request in sorted(self.requested.items())[::-1]}
        for seqno, request in self.requested.items():
            proved = [
                (max(line, request.line + 1), high) if high >= seqno else (line, high)
                for line, high in proved
            ]
        for seqno, request in self.requested.items():
            proved.append((request.answered, seqno))
            before = firsts[request.id] - 1
            if before > self.base and before not in self.requested:
                proved.append((request.line, before))
        self.reached = sorted(proved)
        self._lines = [line for line, _ in self.reached]
        self._highs = list(accumulate((seqno for _, seqno in self.reached), max))


def eras_of(about: VbucketSightings) -> Iterator[Era]:
    """Cut a vbucket's lines where its log changes, and say what was true in each era."""
    before = None
    for start, end, log in branches_of(about):
        era = Era(start, end, log)
        _fill(era, about, before)
        yield era
        before = era


def _fill(era: Era, about: VbucketSightings, before: Era | None) -> None:
    views: dict[int, list[Item]] = defaultdict(list)
    for _, item, born in about.items:
        if era.has(born):
            views[item.seqno].append(item)
    if before is not None:
        shared = _shared_up_to(before, era.log)
        era.reached.append((era.start, shared))
        for seqno, item in before.shown.items():
            if seqno <= shared:
                views[seqno].append(item)
    era.shown = merged_history(views)
    era.snapshots = [one for one in about.snapshots if era.has(one.born)]
    for one in era.snapshots:
        one.line, one.taken_line = era.within(one.line), era.within(one.taken_line)
    era.snapshots += [  # nothing above could be shown, and of what lies below it says nothing
        Snapshot(line + 1, seqno, seqno, seqno, taken_line=line, is_unfiltered=True, born=line)
        for line, seqno in about.visible
        if era.has(line)
    ]
    era.reached += [seen for seen in about.at_least if era.has(seen[0])]
    era.reached += [(era.within(line), at) for line, at, born in about.streamed if era.has(born)]
    era.reached += [(era.start, entry.seqno) for entry in era.log.entries]
    era.base = _base_of(era, about)
    told = [one for one in about.collection_high if era.has(one[0])]
    told = told or [one for one in beyond_default(about, era.shown) if era.has(one[0])]
    unseen_collections(era.shown, told, about)
    _take_writes(era, [each for each in about.written if era.has(each.line)])
    read = [one for one in about.read if era.has(one[0])]
    for line, item in list(read_documents(read, era.shown, era.base, era.snapshots)):
        era.shown[item.seqno] = item
        era.reached.append((line, item.seqno))
    _take_presence(era, [one for one in about.presence if era.has(one.line)])
    for line, collection in [one for one in about.dropped if era.has(one[0])]:
        gone = [seqno for seqno, item in era.shown.items() if _ends(item, collection)]
        gone = gone or [_drop_unseen(era, line, collection)]
        era.reached += [(line, seqno) for seqno in gone]
    granted = [one for one in about.verdicts if era.has(one[0]) and one[2] in FILTER_WAS_TAKEN]
    known = [one for one in about.known_collections if era.has(one[0])]
    era.reached += begun_by_filters(
        era.shown, granted, known, era.snapshots, lambda line: _proved_before(era, line + 1)
    )
    era.base = max(0, min([era.base, *(seqno - 1 for seqno in era.shown)]))
    era.settle()
    for one in era.snapshots:
        if one.is_unfiltered and one.taken_line < one.line and not era.requested:
            one.stood_at = era.high_at(one.taken_line)
    for item in list(replaced_in_the_rest(era.snapshots, era.shown)):
        era.shown[item.seqno] = item
    era.purges = purges_of(era.has, era.high_at, era.log, era.shown, about)
    for line, seqno in era.purges:  # the newest item is never purged
        era.reached.append((line, min(seqno + 1, max(seqno, era.high))))
    era.settle()


def _shared_up_to(before: Era, log: FailoverLog) -> int:
    """Return up to which seqno the history of ``log`` is that of the era before."""
    known = {entry.vb_uuid for entry in before.log.entries}
    if not any(entry.vb_uuid in known for entry in log.entries):
        return 0
    new = [entry.seqno for entry in log.entries if entry.vb_uuid not in known]
    return min([before.high, *new])


def _base_of(era: Era, about: VbucketSightings) -> int:
    """Return the seqno behind which the history begins.

    Where nothing was shown it is all that was reached first: an empty vbucket that stands there.
    """
    stood = [seqno for line, seqno in about.exact if era.has(line)]
    ends = [one.end - 1 for one in era.snapshots if one.end]  # something was at a snapshot's end
    first = [seqno - 1 for seqno in era.shown]
    first += [seqno - 1 for line, seqno in about.visible if era.has(line)]  # there is something
    writes = [each.item.seqno - 1 for each in about.written if each.item.seqno]
    bounds = [  # a stream that was sent something had not reached its end where the history begins
        request.end - 1
        for line, request, status in about.verdicts
        if era.has(line) and status == Status.SUCCESS and request.start < request.end < U64_MAX
    ]
    found = [seqno for seqno in (*stood, *ends, *first, *writes, *bounds) if seqno >= 0]
    if found:
        return min(found)
    if about.written:
        return 0
    return max((seqno for line, seqno in era.reached if line <= era.start), default=0)


def _ends(item: Item, collection: int) -> bool:
    event = item.event
    return isinstance(event, CollectionEnded) and event.collection_id == collection


def _drop_unseen(era: Era, line: int, collection: int) -> int:
    """Let a collection be dropped behind all that was there, though nobody was shown that."""
    seqno = max([_proved_before(era, line), *era.shown]) + 1
    event = CollectionEnded(1, DEFAULT_ID, collection)
    era.shown[seqno] = Item(seqno, b"", What.SYSTEM_EVENT, collection, event=event)
    return seqno


def _take_writes(era: Era, written: Sequence[Written]) -> None:
    """Let every write have its seqno."""
    for seqno, each in place(written, era.shown, era.base, lambda line: _proved_before(era, line)):
        era.requested[seqno] = each
        if each.is_durable:
            era.requested[seqno - 1] = each  # its prepare comes right before
        era.shown.setdefault(seqno, replace(each.item, seqno=seqno, rev=0))


def _take_presence(era: Era, presence: Sequence[Presence]) -> None:
    """Let there be the versions that requests found, and no longer those that they did not find."""
    seqnos = {each.id: seqno for seqno, each in era.requested.items()}
    firsts = {each.id: seqno for seqno, each in sorted(era.requested.items())[::-1]}
    prepares = {
        seqno: Item(seqno, b"", What.PREPARE) for seqno in era.requested if seqno not in era.shown
    }
    for one in presence:
        of = one.line, one.opaque
        wrote = firsts.get(of, seqnos.get(of))
        before = _proved_before(era, one.line + 1) + 1 if wrote is None else wrote
        came = came_later(one, before, era.shown)
        if came is not None and came not in era.requested and (wrote is None or came < wrote):
            era.reached.append((one.line, came))
            continue
        item = missing_versions(
            one,
            before,
            prepares | era.shown,
            era.base,
            era.snapshots,
            may_come=wrote is None,
        )
        if item is not None:
            made = era.shown.get(seqnos.get(of, 0))
            if made is not None and item.rev < made.rev - 1:  # it is the version right before
                item = replace(item, rev=made.rev - 1)
            era.shown[item.seqno] = _as_touched(item, era, wrote)
            era.reached.append((one.line, item.seqno))


def _as_touched(item: Item, era: Era, wrote: int | None) -> Item:
    """Return a document with the content that a TOUCH of it was shown to leave as it was."""
    written = era.requested.get(wrote or 0)
    if wrote is None or written is None or written.item.value:
        return item
    after = era.shown[wrote]
    return replace(item, value=after.value, datatype=after.datatype, flags=after.flags)


def _proved_before(era: Era, line: int) -> int:
    return max([era.base, *(seqno for seen, seqno in era.reached if seen < line)])

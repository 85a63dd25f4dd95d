"""A vbucket's lines, cut into eras, and what was true in each.

A new era begins where another failover log is seen (or before it, where streams ended for a change
of state or a client was sent back to the new branch). In an era the log is one, items only come,
and the purge seqno only rises. An era's history is worked out as a whole (``histories.py``); how
far it has come at a line is the highest seqno that a line up to it proves.

The history begins behind ``base``: right before the first item that was shown, or lower where the
vbucket was seen to stand lower. What lay there nobody was shown: it was replaced, or deleted and
purged. An old vbucket may have billions of such seqnos, and they cost nothing.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from dcp.types import END_OF_TIME, FailoverEntry, FailoverLog
from dcp.wire.system_event import CollectionEnded
from dcp.wire.vocabulary import Status
from tests.producer_conformance.completions import merged_history
from tests.producer_conformance.purges import purges_of
from tests.producer_conformance.sightings import (
    Item,
    Snapshot,
    VbucketSightings,
    What,
    Written,
)
from tests.producer_conformance.unseen_collections import begun_by_filters, unseen_collections

_NO_UUID = 1
"""That of a vbucket of whose branches nothing was seen."""


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

    def high_at(self, line: int) -> int:
        """Return the highest seqno that is proved up to a line."""
        index = bisect_right(self._lines, line)
        return max(self.base, self._highs[index - 1]) if index else self.base

    @property
    def high(self) -> int:
        """The highest seqno of all."""
        return self.high_at(END_OF_TIME)

    def settle(self) -> None:
        """Put in order what was proved. What a request wrote was not there before its answer."""
        proved = self.reached
        firsts = {request.id: seqno for seqno, request in sorted(self.requested.items())[::-1]}
        for seqno, request in self.requested.items():
            proved = [
                (max(line, request.answered + 1), high) if high >= seqno else (line, high)
                for line, high in proved
            ]
            before = firsts[request.id] - 1
            if before > self.base and before not in self.requested:
                proved.append((request.line, before))
        self.reached = sorted(proved)
        self._lines = [line for line, _ in self.reached]
        self._highs = list(accumulate((seqno for _, seqno in self.reached), max))


def eras_of(about: VbucketSightings) -> Iterator[Era]:
    """Cut a vbucket's lines where its log changes, and say what was true in each era."""
    before = None
    for start, end, log in _cut(about):
        era = Era(start, end, log)
        _fill(era, about, before)
        yield era
        before = era


def _cut(about: VbucketSightings) -> list[tuple[int, int, FailoverLog]]:
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
        uuid = next((uuid for _, uuid in about.uuids), _NO_UUID)
        starts = [(about.first_line, FailoverLog((FailoverEntry(uuid, 0),)))]
    last_log_line = max((line for line, _ in about.logs), default=0)
    for line in about.ended:  # a change of state after which no log was seen
        if line > last_log_line:
            starts.append((line, starts[-1][1]))
    starts.append((END_OF_TIME, starts[-1][1]))
    return [(start, end, log) for (start, log), (end, _) in pairwise(starts)]


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


def _fill(era: Era, about: VbucketSightings, before: Era | None) -> None:
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
    era.shown = merged_history(views)
    era.snapshots = [one for one in about.snapshots if era.has(one.line)]
    era.snapshots += [  # nothing above could be shown, and of what lies below it says nothing
        Snapshot(line + 1, seqno, seqno, seqno, taken_line=line, is_unfiltered=True)
        for line, seqno in about.visible
        if era.has(line)
    ]
    era.reached += [seen for seen in about.at_least if era.has(seen[0])]
    era.reached += [(era.start, entry.seqno) for entry in era.log.entries]
    era.base = _base_of(era, about)
    unseen_collections(era.shown, [one for one in about.collection_high if era.has(one[0])], about)
    _take_writes(era, [each for each in about.written if era.has(each.line)])
    _take_read(era, [item for line, item in about.read if era.has(line)])
    for line, collection in about.dropped:
        gone = (seqno for seqno, item in era.shown.items() if _ends(item, collection))
        era.reached += [(line, seqno) for seqno in gone if era.has(line)]
    granted = [one for one in about.verdicts if era.has(one[0]) and one[2] == Status.SUCCESS]
    era.reached += begun_by_filters(era.shown, granted)
    era.base = max(0, min([era.base, *(seqno - 1 for seqno in era.shown)]))
    era.settle()
    for one in era.snapshots:
        if one.is_unfiltered and one.taken_line < one.line and not era.requested:
            one.stood_at = era.high_at(one.taken_line)
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
    writes = [each.item.seqno - 1 for each in about.written if each.item.seqno]
    found = [seqno for seqno in (*stood, *ends, *first, *writes) if seqno >= 0]
    if found:
        return min(found)
    if about.written:
        return 0
    return max((seqno for line, seqno in era.reached if line <= era.start), default=0)


def _ends(item: Item, collection: int) -> bool:
    event = item.event
    return isinstance(event, CollectionEnded) and event.collection_id == collection


def _take_writes(era: Era, written: Sequence[Written]) -> None:
    """Find the seqno of every write: as it was told, that of its CAS, or the next that is free.

    Of writes before the first whose seqno is known the last ones come right before that, if the
    next free ones lie behind it.
    """
    by_cas = {
        (item.collection_id, item.key, item.cas): seqno
        for seqno, item in era.shown.items()
        if item.what is What.DOCUMENT
    }
    known = [
        each.item.seqno or by_cas.get((each.item.collection_id, each.item.key, each.item.cas))
        for each in written
    ]
    first_known = next((index for index, seqno in enumerate(known) if seqno), 0)
    last = 0
    for index, each in enumerate(written):
        item, seqno = each.item, known[index]
        if seqno is None:
            last = max(last, _proved_before(era, each.line))
            seqno = next_free(last, era.shown)
            if index < first_known:
                seqno = min(seqno, _free_before(known[first_known] or 0, first_known - index, era))
        last = seqno
        era.requested[seqno] = each
        if each.is_durable:
            era.requested[seqno - 1] = each  # its prepare comes right before
        era.shown.setdefault(seqno, replace(item, seqno=seqno, rev=0))


def _take_read(era: Era, read: Sequence[Item]) -> None:
    """Let there be the documents that were read, before all that was shown.

    Not where a stream should have shown them: then that will be the difference.
    """
    known = {(item.collection_id, item.key, item.cas) for item in era.shown.values()}
    for item in read:
        of = item.collection_id, item.key, item.cas
        seqno = min([era.base + 1, *era.shown]) - 1
        is_seen = any(one.after < seqno <= one.up_to for one in era.snapshots)
        if of not in known and seqno > 0 and not is_seen:
            known.add(of)
            era.shown[seqno] = replace(item, seqno=seqno, rev=1)
            era.reached.append((era.start, max(seqno, era.base)))


def _proved_before(era: Era, line: int) -> int:
    return max([era.base, *(seqno for seen, seqno in era.reached if seen < line)])


def _free_before(seqno: int, count: int, era: Era) -> int:
    """Return where the first of ``count`` seqnos lies that are free, the last ones before one."""
    found = seqno
    while count and found > 1:
        found -= 1
        count -= found not in era.shown
    return found


def next_free(seqno: int, shown: Mapping[int, Item]) -> int:
    """Return the first seqno above one at which nothing was shown."""
    seqno += 1
    while seqno in shown:
        seqno += 1
    return seqno

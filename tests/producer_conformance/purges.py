"""Which tombstones were purged, and when: it shows in answers, and in what later snapshots lack."""

from collections.abc import Callable, Iterable, Mapping

from dcp.types import FailoverLog
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, Status
from tests.producer_conformance.missed_items import missed_by_all
from tests.producer_conformance.sightings import Item, VbucketSightings

_TOMBSTONE_OPCODES = frozenset({Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION})


def purges_of(
    has: Callable[[int], bool],
    high_at: Callable[[int], int],
    log: FailoverLog,
    shown: Mapping[int, Item],
    about: VbucketSightings,
) -> list[tuple[int, int]]:
    """Return from which of the lines that ``has`` tells tombstones were purged, up to which seqnos.

    A client on our branch that is told to go back to 0 missed purged tombstones: the purge seqno
    lies above where it stood, and not above where others could go on. And a tombstone that was
    shown, and in a later snapshot was not though nothing replaced it, was purged. A statistic may
    say so outright.
    """
    taken = sorted(
        (request.start, line)
        for line, request, status in about.verdicts
        if has(line) and status == Status.SUCCESS
    )
    found = [(line, seqno) for line, seqno in about.purged if has(line)]
    told_zero = {line for line, seqno in about.at_least if not seqno}
    for line, request, status in about.verdicts:
        is_told = status == Status.ROLLBACK and line in told_zero
        if has(line) and is_told and _is_on_branch(request, log, high_at(line)):
            low = request.start + 1
            found.append((line, next((at for at, on in taken if at >= low and on > line), low)))
    snapshots = [one for one in about.snapshots if has(one.born)]
    for one, missed in zip(snapshots, missed_by_all(snapshots, shown), strict=True):
        for item in missed:
            purged: int | None = item.seqno
            if item.opcode not in _TOMBSTONE_OPCODES:  # it was deleted unseen before
                purged = _first_unseen(item.seqno + 1, one.end, shown)
            if purged is not None:
                found.append((one.taken_line, purged))
    return _rising(found)


def _first_unseen(first: int, end: int, shown: Mapping[int, Item]) -> int | None:
    """Return the first seqno of [first, end] that was not shown, below the last that was."""
    last = max(shown, default=0)
    while first in shown:
        first += 1
    return first if first <= end and first < last else None


def _rising(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    rising: list[tuple[int, int]] = []
    for line, seqno in sorted(found):
        if seqno and (not rising or seqno > rising[-1][1]):
            rising.append((line, seqno))
    return rising


def _is_on_branch(request: m.StreamRequest, log: FailoverLog, high: int) -> bool:
    end = max(high, log.entries[0].seqno)
    found = None
    for entry in log.entries:
        if entry.vb_uuid == request.vb_uuid:
            found = end
        end = entry.seqno
    if not found or not request.start:
        return False
    goes_back_to_0 = request.snap_start == 0 and request.start != request.snap_end > found
    return not goes_back_to_0

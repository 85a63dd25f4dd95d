"""From which line on a vbucket had which failover log.

A log shows in the answers to stream requests and questions, its newest uuid in the answers to
writes and in statistics. A new branch begins where it is first seen, or before: where streams ended
for a change of state, or a client was sent back to where it begins. Of several new branches the
oldest begins there; the others were begun by when they were seen.
"""

from collections.abc import Sequence
from itertools import pairwise

from dcp.types import END_OF_TIME, FailoverEntry, FailoverLog
from dcp.wire.vocabulary import Status
from tests.producer_conformance.sightings import VbucketSightings

_NO_UUID = 1
"""That of a vbucket of whose branches nothing was seen."""
_Seen = tuple[int, FailoverLog]


def branches_of(about: VbucketSightings) -> list[tuple[int, int, FailoverLog]]:
    """Return the lines [start, end) of each log."""
    starts: list[_Seen] = []
    seen_logs = _seen_logs(about)
    for line, log in seen_logs:
        if not starts:
            starts.append((about.first_line, log))
        elif starts[-1][1] != log:
            starts += _begun(about, seen_logs, starts[-1][1], line, log)
    if not starts:
        starts = [(about.first_line, FailoverLog((FailoverEntry(_NO_UUID, 0),)))]
    for line, born in sorted(about.ended):  # a change of state that began no branch, or none seen
        has_begun = any(born < start <= line for start, _ in starts)
        if not has_begun and not _is_known(seen_logs, born, line):
            starts.append((line, [log for start, log in starts if start <= line][-1]))
            starts.sort(key=lambda one: one[0])
    starts.append((END_OF_TIME, starts[-1][1]))
    return [(start, end, log) for (start, log), (end, _) in pairwise(starts)]


def _is_known(seen_logs: Sequence[_Seen], born: int, line: int) -> bool:
    """Whether others had seen the new branch when a stream's client read, late, that it ended."""
    before = [log for seen, log in seen_logs if seen <= born]
    return any(log != before[-1] for seen, log in seen_logs if before and born < seen < line)


def _begun(
    about: VbucketSightings,
    seen_logs: Sequence[_Seen],
    old: FailoverLog,
    line: int,
    log: FailoverLog,
) -> list[_Seen]:
    since = max(seen for seen, same in seen_logs if seen < line and same == old)
    ended = [end for end, _ in about.ended if since < end < line]
    begun = min([*ended, line])
    shown = (seen for seen, _, _ in about.items if seen < begun)
    alive = max([since, *shown])  # streams end where a branch begins
    first = min([*_sent_back(about, alive, begun, log), begun])
    known = {entry.vb_uuid for entry in old.entries}
    new = [entry for entry in log.entries if entry.vb_uuid not in known]
    is_grown = len(new) > 1 and log.entries[: len(new)] == tuple(new)
    if first == line or not is_grown or len(new) == len(log.entries):
        return [(first, log)]
    newest = min([*_sent_back(about, first, line, log), line])
    return [(first, FailoverLog(log.entries[len(new) - 1 :])), (newest, log)]


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


def _seen_logs(about: VbucketSightings) -> list[_Seen]:
    """Return the logs in the order of lines, those that only a uuid tells of among them."""
    logs = sorted(about.logs, key=lambda seen: seen[0])
    found: list[_Seen] = list(logs)
    made: list[_Seen] = []
    for line, vb_uuid in sorted(about.uuids):
        known = [*reversed(made), *((seen, log) for seen, log in logs)]
        whole = next((log for _, log in known if _has(log, vb_uuid)), None)
        if whole is None:
            before = [seen for seen in (*logs, *made) if seen[0] <= line]
            older = max(before, key=lambda seen: seen[0])[1].entries if before else ()
            whole = FailoverLog((FailoverEntry(vb_uuid, _branch_at(about, line, older)), *older))
            made.append((line, whole))
        uuids = [entry.vb_uuid for entry in whole.entries]
        found.append((line, FailoverLog(whole.entries[uuids.index(vb_uuid) :])))
    return sorted(found, key=lambda seen: seen[0])


def _has(log: FailoverLog, vb_uuid: int) -> bool:
    return any(entry.vb_uuid == vb_uuid for entry in log.entries)


def _branch_at(about: VbucketSightings, line: int, older: Sequence[FailoverEntry]) -> int:
    """Return where a branch began of which only the uuid was told, below what it wrote first."""
    if not older:
        return 0
    wrote = [each.item.seqno - 1 for each in about.written if each.line >= line and each.item.seqno]
    stood = [seqno for seen, seqno, *_ in (*about.at_least, *about.streamed) if seen < line]
    return max(older[0].seqno, min([max(stood, default=0), *wrote]))

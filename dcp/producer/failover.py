"""May a stream go on from where the client stands? The evaluation order and the rollback rule.

Pure functions over the vbucket's failover log and the request. Sources: kv_engine
``engines/ep/src/dcp/producer.cc`` (``checkStreamRequestNeedsRollback``,
``adjustSeqnosForStreamRequest``), ``docs/dcp/documentation/rollback.md``. Where the document
compares the purge seqno with snap_start, the code compares it with start; this follows the code.

A vbucket starts with one branch (uuid, 0). Forks (failover, unclean restart) are made elsewhere.
"""

from dataclasses import dataclass

from dcp.types import END_OF_TIME, FailoverLog
from dcp.wire.vocabulary import Status, StreamFlag, VbucketState


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """What a stream request says about its place in the history."""

    start: int
    vb_uuid: int
    snap_start: int
    snap_end: int
    end: int = END_OF_TIME
    flags: int = 0
    remote_purge_seqno: int = 0


@dataclass(frozen=True, slots=True)
class VbucketFacts:
    """What the producer holds: the other half of the decision.

    ``collections_high_seqno`` is the highest seqno of the collections that the stream's filter
    names, None for a stream of everything.
    """

    failover_log: FailoverLog
    high_seqno: int
    purge_seqno: int = 0
    persisted_seqno: int | None = None
    collections_high_seqno: int | None = None
    state: VbucketState = VbucketState.ACTIVE


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer's status, the rollback seqno with ROLLBACK, and the range to stream on SUCCESS."""

    status: Status
    rollback_seqno: int | None = None
    start: int = 0
    end: int = END_OF_TIME
    snap_start: int = 0


def judge(request: ResumeRequest, facts: VbucketFacts) -> Verdict:
    """Decide a stream request, in kv_engine's order; what needs the connection comes before."""
    allowed = (
        (VbucketState.ACTIVE,)
        if request.flags & StreamFlag.ACTIVE_VB_ONLY
        else (VbucketState.ACTIVE, VbucketState.REPLICA)
    )
    if facts.state not in allowed:
        return Verdict(Status.NOT_MY_VBUCKET)
    request = _from_latest(request, facts)
    if not _is_ordered(request):
        return Verdict(Status.ERANGE)
    rollback = rollback_seqno(request, facts)
    if rollback is not None:
        return Verdict(Status.ROLLBACK, rollback)
    end = _stream_end(request, facts)
    if request.start > end or request.start > facts.high_seqno:
        return Verdict(Status.ERANGE)
    snap_start = request.start if request.start == request.snap_end else request.snap_start
    return Verdict(Status.SUCCESS, None, request.start, end, snap_start)


def range_is_valid(request: ResumeRequest, facts: VbucketFacts) -> bool:
    """Whether snap_start <= start <= snap_end and start <= end; asked before the filter is read."""
    return _is_ordered(_from_latest(request, facts))


def rollback_seqno(request: ResumeRequest, facts: VbucketFacts) -> int | None:
    """Return the seqno that the client must go back to; None when it may go on."""
    strict = request.flags & StreamFlag.STRICT_VBUUID
    if request.start == 0 and (not strict or request.vb_uuid == 0):
        return None
    if _purged(request, facts):
        return 0
    upper = _branch_end(facts.failover_log, request.vb_uuid, facts.high_seqno)
    if upper is None:
        return 0
    snap_start, snap_end = request.snap_start, request.snap_end
    if request.start == snap_start:  # holds nothing of this snapshot
        snap_end = request.start
    if snap_end <= upper:
        return None
    if request.start == snap_end:  # holds the whole snapshot
        snap_start = request.start
    return upper if upper < snap_start else snap_start


def _is_ordered(request: ResumeRequest) -> bool:
    return request.snap_start <= request.start <= min(request.snap_end, request.end)


def _from_latest(request: ResumeRequest, facts: VbucketFacts) -> ResumeRequest:
    if not request.flags & StreamFlag.FROM_LATEST:
        return request
    high = facts.high_seqno
    uuid = request.vb_uuid or facts.failover_log.current_uuid
    return ResumeRequest(
        high, uuid, high, high, request.end, request.flags, request.remote_purge_seqno
    )


def _purged(request: ResumeRequest, facts: VbucketFacts) -> bool:
    """Whether deletions that the client has not seen may be gone."""
    purge = 0 if request.flags & StreamFlag.IGNORE_PURGED_TOMBSTONES else facts.purge_seqno
    filtered_high = facts.collections_high_seqno
    holds_all_of_its_filter = filtered_high is not None and request.start >= filtered_high <= purge
    return (
        0 < request.start < purge
        and request.remote_purge_seqno != purge
        and not holds_all_of_its_filter
    )


def _branch_end(log: FailoverLog, vb_uuid: int, high_seqno: int) -> int | None:
    """Return the seqno up to which the branch ``vb_uuid`` is shared with us; None if unknown."""
    end = high_seqno
    found = None
    for entry in log.entries:  # newest first: the last match is the oldest, which wins
        if entry.vb_uuid == vb_uuid:
            found = end
        end = entry.seqno
    return found


def _stream_end(request: ResumeRequest, facts: VbucketFacts) -> int:
    if request.flags & StreamFlag.DISK_ONLY:
        persisted = facts.persisted_seqno
        return facts.high_seqno if persisted is None else persisted
    if request.flags & StreamFlag.TO_LATEST:
        filtered_high = facts.collections_high_seqno
        return facts.high_seqno if filtered_high is None else filtered_high
    return request.end

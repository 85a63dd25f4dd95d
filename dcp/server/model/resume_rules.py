"""Decides if a stream may resume at the client's position, or how far it must roll back.

Sources: kv_engine ``engines/ep/src/dcp/producer.cc`` (``checkStreamRequestNeedsRollback``,
``adjustSeqnosForStreamRequest``), ``docs/dcp/documentation/rollback.md``. They differ, and
``Rules`` chooses between them:

                                       document                     server
    purge seqno is compared with       snap_start, after adjusting  start
    start 0 with a uuid other than 0   decided as any other         accepted but for STRICT_VBUUID
"""

from dataclasses import dataclass, replace
from typing import Literal

from dcp.types import END_OF_TIME, FailoverLog
from dcp.wire.messages import StreamRequest
from dcp.wire.vocabulary import Status, StreamFlag, VbucketState

Rules = Literal["document", "server"]
"""Rules of the published documents, or of kv_engine's code.

They also decide on flow control, streams without values (`ServerSettings.makes_up_metadata`) and
GET_ALL_VB_SEQNOS (`ServerSettings.tells_high_seqnos`)."""


@dataclass(frozen=True, slots=True)
class VbucketFacts:
    """The producer's side of the decision."""

    failover_log: FailoverLog
    high_seqno: int
    purge_seqno: int = 0
    persisted_seqno: int | None = None
    collections_high_seqno: int | None = None
    """Highest seqno of the collections in the stream's filter; None: the stream has no filter."""
    state: VbucketState = VbucketState.ACTIVE
    learned_purge_seqno: int = 0
    """Tombstones up to here are purged, and nobody knows their collections."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The status of the answer, and the range to stream on SUCCESS."""

    status: Status
    rollback_seqno: int | None = None
    """Only with ROLLBACK."""
    start: int = 0
    end: int = END_OF_TIME
    snap_start: int = 0


def judge(
    request: StreamRequest,
    facts: VbucketFacts,
    rules: Rules,
    remote_purge_seqno: int = 0,
) -> Verdict:
    """Decide a stream request; the connection makes its own checks between these.

    ``remote_purge_seqno`` is in the request's JSON, from the newest marker; 0: none.
    """
    if not state_allows(request, facts):
        return Verdict(Status.NOT_MY_VBUCKET)
    request = _from_latest(request, facts)
    if not _is_ordered(request):
        return Verdict(Status.ERANGE)
    rollback = rollback_seqno(request, facts, rules, remote_purge_seqno)
    if rollback is not None:
        return Verdict(Status.ROLLBACK, rollback)
    end = _stream_end(request, facts)
    if request.start > end or request.start > facts.high_seqno:
        return Verdict(Status.ERANGE)
    # A client at the end of its snapshot has all of it; the next snapshot starts there.
    snap_start = request.start if request.start == request.snap_end else request.snap_start
    return Verdict(Status.SUCCESS, None, request.start, end, snap_start)


def state_allows(request: StreamRequest, facts: VbucketFacts) -> bool:
    """Return True if a vbucket in this state may be streamed; checked before all else."""
    # kv_engine also hands over a replica, and leaves this check to cluster managers
    # (``engines/ep/src/dcp/producer.cc``, checkConditionsForStreamRequest).
    if request.flags & (StreamFlag.ACTIVE_VB_ONLY | StreamFlag.TAKEOVER):
        return facts.state is VbucketState.ACTIVE
    return facts.state in (VbucketState.ACTIVE, VbucketState.REPLICA)


def range_is_valid(request: StreamRequest, facts: VbucketFacts) -> bool:
    return _is_ordered(_from_latest(request, facts))


def rollback_seqno(
    request: StreamRequest,
    facts: VbucketFacts,
    rules: Rules,
    remote_purge_seqno: int = 0,
) -> int | None:
    """Return the seqno to which the client must roll back; None if it may resume."""
    strict = rules == "document" or request.flags & StreamFlag.STRICT_VBUUID
    if request.start == 0 and (not strict or request.vb_uuid == 0):
        return None
    adjusted = _adjusted(request)
    complete_seqno = adjusted.snap_start if rules == "document" else request.start
    # A client that names our purge seqno has all purged deletions.
    if remote_purge_seqno != facts.purge_seqno and _purged(request, facts, complete_seqno):
        return 0
    upper = _branch_end(facts.failover_log, request.vb_uuid, facts.high_seqno)
    if upper is None:
        return 0
    # The client's whole snapshot lies on the branch that it shares with this vbucket.
    if adjusted.snap_end <= upper:
        return None
    # A part of a snapshot is no consistent state: back to its start, or to the end of the shared
    # branch.
    return upper if upper < adjusted.snap_start else adjusted.snap_start


def _adjusted(request: StreamRequest) -> StreamRequest:
    """Return the request with the snapshot bounds adjusted to its start."""
    if request.start == request.snap_start:  # holds nothing of this snapshot
        return replace(request, snap_end=request.start)
    if request.start == request.snap_end:  # holds the whole snapshot
        return replace(request, snap_start=request.start)
    return request


def _is_ordered(request: StreamRequest) -> bool:
    return request.snap_start <= request.start <= min(request.snap_end, request.end)


def _from_latest(request: StreamRequest, facts: VbucketFacts) -> StreamRequest:
    if not request.flags & StreamFlag.FROM_LATEST:
        return request
    high = facts.high_seqno
    uuid = request.vb_uuid or facts.failover_log.current_uuid
    return replace(request, start=high, vb_uuid=uuid, snap_start=high, snap_end=high)


def _purged(request: StreamRequest, facts: VbucketFacts, complete_seqno: int) -> bool:
    """Return True if deletions above ``complete_seqno`` that the client lacks may be purged."""
    purge = 0 if request.flags & StreamFlag.IGNORE_PURGED_TOMBSTONES else facts.purge_seqno
    filtered_high = facts.collections_high_seqno
    has_all_of_its_filter = (
        filtered_high is not None
        and request.start >= max(filtered_high, facts.learned_purge_seqno)
        and filtered_high <= purge
    )
    return request.start != 0 and complete_seqno < purge and not has_all_of_its_filter


def _branch_end(failover_log: FailoverLog, vb_uuid: int, high_seqno: int) -> int | None:
    """Return the last seqno that we share with the branch ``vb_uuid``; None if it is unknown."""
    end = high_seqno
    found = None
    for entry in failover_log.entries:  # newest first: the last match is the oldest, which wins
        if entry.vb_uuid == vb_uuid:
            found = end
        end = entry.seqno
    return found


def _stream_end(request: StreamRequest, facts: VbucketFacts) -> int:
    if request.flags & StreamFlag.DISK_ONLY:
        persisted = facts.persisted_seqno
        return facts.high_seqno if persisted is None else persisted
    if request.flags & StreamFlag.TO_LATEST:
        filtered_high = facts.collections_high_seqno
        return facts.high_seqno if filtered_high is None else filtered_high
    return request.end

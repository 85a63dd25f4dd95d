"""Handles stream requests: checks in kv_engine's order, then opens the stream.

Source: kv_engine ``engines/ep/src/dcp/producer.cc`` (streamRequest,
checkConditionsForStreamRequest).
"""

from dataclasses import replace
from typing import cast

from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.commands.refusals import answer_refusal
from dcp.server.commands.session import Session
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.resume_rules import (
    VbucketFacts,
    Verdict,
    judge,
    range_is_valid,
    state_allows,
)
from dcp.server.model.stream_filter import StreamFilter
from dcp.server.model.stream_flags import fault_of
from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.stream_request_value import parse_filter
from dcp.server.streams.stream_windows import CONNECTION_OPAQUE
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import HelloFeature, Status, StreamFlag


def stream_request(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    if session.dcp is None:
        raise AssertionError("access lets DCP commands pass only after DCP_OPEN")
    request, dcp = cast("m.StreamRequest", body), session.dcp
    counters = session.bucket.counters
    try:
        # The order of the checks is kv_engine's: it decides which status a client with two faults
        # gets. No check before ``_filter`` may need the request's JSON.
        vbucket, facts = _checked_vbucket(session, dcp, frame, request)
        wanted = _filter(session, dcp, vbucket, request)
        _check_connection(dcp, frame, wanted)
        verdict = _verdict(session, vbucket, facts, request, wanted)
    except RefusedError as refused:
        counters.streams_refused[frame.vbucket] += 1
        answer_refusal(session, frame, refused)
        return
    if verdict.status is Status.ROLLBACK:
        counters.streams_refused[frame.vbucket] += 1
        answer = m.RollbackAnswer(verdict.rollback_seqno or 0)
        session.reply(frame, answer, status=Status.ROLLBACK)
        return
    counters.streams_opened[vbucket.id] += 1
    session.reply(frame, m.FailoverLogAnswer(vbucket.failover_log.entries))
    dcp.add_stream(
        ActiveStream(
            vbucket.data,
            frame.opaque,
            verdict,
            request.flags,
            dcp.stream_settings(),
            wanted,
            vb_uuid=request.vb_uuid,
        )
    )


def _checked_vbucket(
    session: Session, dcp: DcpConnection, frame: Frame, request: m.StreamRequest
) -> tuple[Vbucket, VbucketFacts]:
    """Return the node's vbucket or replica, and the facts that decide the request.

    Raises RefusedError for a fault of flags, vbucket, NOOPs or seqno range, in this order.
    """
    if request.flags & StreamFlag.TAKEOVER and not dcp.may_take_over:
        raise RefusedError(Status.EACCESS, "The user lacks the DcpConsumer privilege")
    if (fault := fault_of(request.flags)) is not None:
        raise RefusedError(Status.EINVAL, fault)
    vbucket = session.bucket.table.at(frame.vbucket, session.node)
    if vbucket is None:
        raise RefusedError(Status.NOT_MY_VBUCKET)
    facts = _facts(vbucket, request)
    if not state_allows(request, facts):
        raise RefusedError(Status.NOT_MY_VBUCKET)
    # Servers demand NOOPs of clients with xattrs or Collections.
    if dcp.client.needs_noop and not dcp.noop.is_enabled:
        raise RefusedError(Status.NOT_SUPPORTED)
    if not range_is_valid(request, facts):
        raise RefusedError(Status.ERANGE)
    return vbucket, facts


def _facts(vbucket: Vbucket, request: m.StreamRequest) -> VbucketFacts:
    facts, checkpoints = vbucket.facts(), vbucket.data.checkpoints
    if checkpoints.is_snapshot_complete or request.start > facts.high_seqno:
        return facts
    if not facts.high_seqno < request.snap_end <= checkpoints.snapshot.end:
        return facts
    # A snapshot that is being received counts as complete, so a client with a part of it can
    # resume.
    return replace(facts, high_seqno=request.snap_end)


def _filter(
    session: Session, dcp: DcpConnection, vbucket: Vbucket, request: m.StreamRequest
) -> StreamFilter:
    return parse_filter(
        request.value,
        vbucket.documents.collections.manifest,
        collections=HelloFeature.COLLECTIONS in session.login.features,
        stream_ids=dcp.options.stream_ids,
        sync_writes=dcp.options.sync_writes,
    )


def _check_connection(dcp: DcpConnection, frame: Frame, wanted: StreamFilter) -> None:
    if dcp.is_streaming(frame.vbucket, wanted.stream_id):
        raise RefusedError(Status.KEY_EEXISTS)
    if dcp.stream_windows.is_on and frame.opaque == CONNECTION_OPAQUE:
        raise RefusedError(
            Status.EINVAL,
            "Opaque 0 names the connection in acknowledgements: "
            "a stream with a window needs another",
        )
    if not dcp.has_room_for_stream:
        raise RefusedError(Status.ENOMEM)


def _verdict(
    session: Session,
    vbucket: Vbucket,
    facts: VbucketFacts,
    request: m.StreamRequest,
    wanted: StreamFilter,
) -> Verdict:
    """Return SUCCESS or ROLLBACK; anything else is raised."""
    facts = replace(facts, collections_high_seqno=vbucket.filtered_high_seqno(wanted))
    verdict = judge(request, facts, session.bucket.settings.rules, wanted.purge_seqno)
    if verdict.status is Status.ROLLBACK:
        return verdict
    if verdict.status is not Status.SUCCESS:
        raise RefusedError(verdict.status)
    replica = session.bucket.replicas.at(session.node, vbucket.id)
    # A replica that holds part of its first disk snapshot has no consistent state to stream.
    if replica is not None and replica.awaits_first_disk_snapshot:
        raise RefusedError(Status.ETMPFAIL)
    return verdict

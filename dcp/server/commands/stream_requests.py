"""Handles stream requests: checks in kv_engine's order, then opens the stream.

Each check returns a refusal, or None if it passes. Source: kv_engine
``engines/ep/src/dcp/producer.cc`` (streamRequest, checkConditionsForStreamRequest).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Final, cast

from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.commands.manifest_commands import refuse_unknown_id
from dcp.server.commands.session import Session
from dcp.server.model.resume_rules import (
    VbucketFacts,
    Verdict,
    judge,
    range_is_valid,
    state_allows,
)
from dcp.server.model.stream_filter import StreamFilter
from dcp.server.model.stream_flags import fault_of
from dcp.server.streams.stream import ActiveStream
from dcp.server.streams.stream_request_value import parse_filter
from dcp.server.streams.stream_windows import CONNECTION_OPAQUE
from dcp.server.vbucket.vbucket import Vbucket
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.json_tree import MOST_REQUEST_JSON_BYTES
from dcp.wire.vocabulary import HelloFeature, Status, StreamFlag

Refusal = Callable[[], None]
"""Answers the request with an error."""


def stream_request(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    request = _Request(session, frame, cast("m.StreamRequest", body))
    refusals = (refusal for check in _CHECKS if (refusal := check(request)) is not None)
    refusal = next(refusals, None)
    if refusal is None:
        _open(request)
    else:
        session.bucket.counters.streams_refused[frame.vbucket] += 1
        refusal()


class _Request:
    """A stream request and the facts that decide it, each looked up on first use."""

    def __init__(self, session: Session, frame: Frame, body: m.StreamRequest) -> None:
        if session.dcp is None:
            raise AssertionError("access lets DCP commands pass only after DCP_OPEN")
        self.session, self.frame, self.body = session, frame, body
        self.dcp: DcpConnection = session.dcp

    def refused(self, status: Status, context: str = "") -> Refusal:
        return lambda: self.session.refuse(self.frame, status, context)

    @cached_property
    def held(self) -> Vbucket | None:
        return self.session.bucket.table.at(self.frame.vbucket, self.session.node)

    @property
    def vbucket(self) -> Vbucket:
        """The node's vbucket or copy, once ``_vbucket_is_here`` passed."""
        if self.held is None:
            raise AssertionError("checked before")
        return self.held

    @cached_property
    def filter(self) -> StreamFilter | Status:
        return parse_filter(
            self.body.value,
            self.vbucket.documents.collections.manifest,
            collections=HelloFeature.COLLECTIONS in self.session.login.features,
            stream_ids=self.dcp.options.stream_ids,
            sync_writes=self.dcp.options.sync_writes,
        )

    @property
    def wanted(self) -> StreamFilter:
        """The stream's filter, once ``_filter_is_known`` passed."""
        if not isinstance(self.filter, StreamFilter):
            raise AssertionError("checked before")
        return self.filter

    @cached_property
    def held_facts(self) -> VbucketFacts:
        body, facts = self.body, self.vbucket.facts()
        checkpoints = self.vbucket.data.checkpoints
        if checkpoints.is_snapshot_complete or body.start > facts.high_seqno:
            return facts
        if not facts.high_seqno < body.snap_end <= checkpoints.snapshot.end:
            return facts
        # A snapshot that is being received counts as complete, so a client with a part of it can
        # resume.
        return replace(facts, high_seqno=body.snap_end)

    @cached_property
    def verdict(self) -> Verdict:
        wanted = self.wanted
        named = self.vbucket.filtered_high_seqno(wanted)
        facts = replace(self.held_facts, collections_high_seqno=named)
        return judge(self.body, facts, self.session.bucket.settings.rules, wanted.purge_seqno)


def _takeover_is_allowed(request: _Request) -> Refusal | None:
    if not request.body.flags & StreamFlag.TAKEOVER or request.dcp.may_take_over:
        return None
    context = "The user lacks the DcpConsumer privilege"
    return lambda: request.session.refuse_access(request.frame, Status.EACCESS, context)


def _flags_are_valid(request: _Request) -> Refusal | None:
    fault = fault_of(request.body.flags)
    return None if fault is None else request.refused(Status.EINVAL, fault)


def _vbucket_is_here(request: _Request) -> Refusal | None:
    if request.held is not None and state_allows(request.body, request.held_facts):
        return None
    return lambda: request.session.refuse_vbucket(request.frame)


def _noops_are_on(request: _Request) -> Refusal | None:
    # Servers demand NOOPs of clients with xattrs or Collections.
    is_missing = request.dcp.client.needs_noop and not request.dcp.noop.is_enabled
    return request.refused(Status.NOT_SUPPORTED) if is_missing else None


def _range_is_valid(request: _Request) -> Refusal | None:
    is_valid = range_is_valid(request.body, request.held_facts)
    return None if is_valid else request.refused(Status.ERANGE)


def _filter_is_known(request: _Request) -> Refusal | None:
    status = request.filter
    if isinstance(status, StreamFilter):
        return None
    if status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
        return lambda: refuse_unknown_id(request.session, request.frame, status)
    has_collections = HelloFeature.COLLECTIONS in request.session.login.features
    context, found_bytes = "", len(request.body.value)
    if status is Status.EINVAL and not has_collections:
        context = "Request must not include value"
    elif found_bytes > MOST_REQUEST_JSON_BYTES:
        expected = f"expected at most {MOST_REQUEST_JSON_BYTES}"
        context = f"stream request value: found {found_bytes} bytes, {expected}"
    return request.refused(status, context)


def _is_new(request: _Request) -> Refusal | None:
    is_streaming = request.dcp.is_streaming(request.vbucket.id, request.wanted.stream_id)
    return request.refused(Status.KEY_EEXISTS) if is_streaming else None


def _opaque_may_name_it(request: _Request) -> Refusal | None:
    windows, opaque = request.dcp.stream_windows, request.frame.opaque
    if not windows.is_on or opaque != CONNECTION_OPAQUE:
        return None
    context = (
        "Opaque 0 names the connection in acknowledgements: a stream with a window needs another"
    )
    return request.refused(Status.EINVAL, context)


def _has_room(request: _Request) -> Refusal | None:
    return None if request.dcp.has_room_for_stream else request.refused(Status.ENOMEM)


def _may_resume(request: _Request) -> Refusal | None:
    verdict = request.verdict
    if verdict.status is Status.ROLLBACK:
        return _rollback_to(request, verdict.rollback_seqno or 0)
    return None if verdict.status is Status.SUCCESS else request.refused(verdict.status)


def _copy_has_something(request: _Request) -> Refusal | None:
    copy = request.session.bucket.copies.at(request.session.node, request.vbucket.id)
    # A copy that holds part of its first disk snapshot has no consistent state to stream.
    awaits = copy is not None and copy.awaits_first_disk_snapshot
    return request.refused(Status.ETMPFAIL) if awaits else None


def _rollback_to(request: _Request, seqno: int) -> Refusal:
    answer = m.RollbackAnswer(seqno)
    return lambda: request.session.reply(request.frame, answer, status=Status.ROLLBACK)


# The order is kv_engine's: it decides which status a client with two faults gets. No check above
# ``_filter_is_known`` may need the request's JSON.
_CHECKS: Final = (
    _takeover_is_allowed,
    _flags_are_valid,
    _vbucket_is_here,
    _noops_are_on,
    _range_is_valid,
    _filter_is_known,
    _is_new,
    _opaque_may_name_it,
    _has_room,
    _may_resume,
    _copy_has_something,
)


def _open(request: _Request) -> None:
    vbucket, dcp = request.vbucket, request.dcp
    request.session.bucket.counters.streams_opened[vbucket.id] += 1
    request.session.reply(request.frame, m.FailoverLogAnswer(vbucket.failover_log.entries))
    dcp.add_stream(
        ActiveStream(
            vbucket.data,
            request.frame.opaque,
            request.verdict,
            request.body.flags,
            dcp.stream_settings(),
            request.wanted,
            vb_uuid=request.body.vb_uuid,
        )
    )

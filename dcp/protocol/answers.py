"""Handles answers to our requests, by opcode: successes and refusals.

Source of the statuses: kv_engine ``docs/dcp/documentation/commands/stream-request.md``,
``include/mcbp/protocol/status.h``.
"""

from collections.abc import Callable
from typing import Final

from dcp.errors import BucketError, RemoteProtocolError, SourceError
from dcp.protocol import events as e
from dcp.protocol.negotiation import STREAM_END_ON_CLOSE, STREAM_WINDOW
from dcp.protocol.refusals import ROLE_CURE, describe_refusal, privilege_cure
from dcp.protocol.state import ConnectionState, PendingRequest
from dcp.protocol.stream import Stream
from dcp.types import MAX_FAILOVER_ENTRIES, FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status, opcode_name

_MAP_MARK: Final = b"vBucketServerMap"
"""A cluster map has this member, and an error context does not."""

_NO_COLLECTIONS: Final = frozenset(
    {Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED, Status.KEY_ENOENT},
)
"""Statuses that mean that the bucket has no collections manifest."""


_NOT_HERE: Final = frozenset(
    {Status.NOT_MY_VBUCKET, Status.KEY_ENOENT, Status.ETMPFAIL, Status.EBUSY}
)
"""Statuses of a node that lacks the vbucket or its branch, perhaps for now."""


def take_answer(state: ConnectionState, frame: Frame, now: float) -> list[e.Event]:
    """Return the events of the answer ``frame``; change ``state`` accordingly.

    Raises RemoteProtocolError for an answer without a request, or a malformed one. Raises
    SourceError for a refusal that the connection cannot work with.
    """
    request = _take_request(state.pending, frame)
    if not state.bootstrap.is_done:
        # Until the bootstrap is done, every answer belongs to it.
        return _continue_bootstrap(state, frame, now)
    if frame.opcode == Opcode.DCP_CONTROL:
        return _control_answer(state, frame, now)
    # Other answers are only checked: nobody waits for their content.
    handler = _HANDLERS.get(frame.opcode)
    if handler is None:
        decode(frame)
        return []
    return handler(state, request, frame)


def _take_request(pending: dict[int, PendingRequest], answer: Frame) -> PendingRequest:
    """Return the request of ``answer``, which waits no longer.

    Raises RemoteProtocolError for an answer that no request expects: afterwards nobody could match
    answers to requests.
    """
    request = pending.get(answer.opaque)
    if request is None or request.opcode != answer.opcode:
        expected = opcode_name(request.opcode) if request else "no answer with this opaque"
        raise RemoteProtocolError(
            f"answer with opaque {answer.opaque:#x}: found {opcode_name(answer.opcode)} "
            f"status {answer.status:#04x}, expected {expected}"
        )
    return pending.pop(answer.opaque)


def ask_next(state: ConnectionState) -> None:
    step = state.bootstrap.step
    state.ask(step.request(state.bootstrap), step.opcode)


def _continue_bootstrap(state: ConnectionState, frame: Frame, now: float) -> list[e.Event]:
    state.bootstrap = state.bootstrap.answer(frame)
    if not state.bootstrap.is_done:
        ask_next(state)
        return []
    done = state.bootstrap
    state.resize_window(now)  # sizes wanted during the bootstrap
    if STREAM_WINDOW in done.accepted_controls:
        state.flow.offer_streams(state.flow.settings.stream_window_bytes)
        state.flow.resume_stream_acks(())
    state.ask_stream_windows()  # also wanted meanwhile
    return [e.Ready(done.features, done.cluster_config, done.refused_controls)]


def _stream_answer(state: ConnectionState, _: PendingRequest, frame: Frame) -> list[e.Event]:
    stream = state.streams.get(frame.opaque)
    if stream is None:  # closed before its request was answered
        decode(frame)
        return []
    body = decode(frame)
    if isinstance(body, m.FailoverLogAnswer):
        try:
            failover_log = _failover_log(body)
        except ValueError as error:
            return _reject(state, frame.opaque, stream, str(error))
        state.put(frame.opaque, stream.accept(failover_log))
        opened: list[e.Event] = [e.StreamOpened(stream.vbucket, failover_log)]
        # We may have closed the stream before its acceptance arrived.
        return opened if state.streams[frame.opaque].is_streaming else []
    refused = stream.refuse()
    state.put(frame.opaque, refused)
    if refused.is_closing:  # we have closed it: nobody waits for its end
        return []
    if isinstance(body, m.RollbackAnswer):
        if body.rollback_seqno > stream.requested.seqno:
            detail = (
                f"found ROLLBACK to {body.rollback_seqno}, above the requested seqno "
                f"{stream.requested.seqno}, expected at most that"
            )
            return [e.StreamRejected(stream.vbucket, detail)]
        return [e.RollbackOrdered(stream.vbucket, stream.requested, body.rollback_seqno)]
    return [e.StreamRefused(stream.vbucket, frame.status, frame.value), *_map_in(frame)]


def _reject(state: ConnectionState, opaque: int, stream: Stream, detail: str) -> list[e.Event]:
    """Close a stream that the producer accepted with an impossible failover log.

    Only its vbucket suffers: the answer says nothing about other streams.
    """
    if stream.is_closing:
        return []
    state.close_stream(opaque)
    return [e.StreamRejected(stream.vbucket, detail)]


def _close_answer(state: ConnectionState, request: PendingRequest, frame: Frame) -> list[e.Event]:
    decode(frame)
    stream = state.streams.get(request.stream or 0)
    if stream is not None and request.stream is not None:
        # A server sends STREAM_END after the answer if we asked for it by CONTROL and it had
        # accepted the stream.
        promised = STREAM_END_ON_CLOSE in state.bootstrap.accepted_controls
        follows = promised and frame.status == Status.SUCCESS and stream.failover_log is not None
        state.put(request.stream, stream.closed(end_follows=follows))
        if not follows:
            state.closed_opaques.add(request.stream)
    return [e.StreamClosed(request.vbucket), *_map_in(frame)]


def _control_answer(state: ConnectionState, frame: Frame, now: float) -> list[e.Event]:
    decode(frame)
    if frame.opaque == state.resize_opaque:
        return _window_answer(state, frame, now)
    # Answers come in the order of the requests.
    window_bytes = state.asked_windows.pop(0)
    if not state.flow.counts_streams:
        return _begin_stream_windows(state, frame.status)
    if frame.status == Status.SUCCESS:
        state.flow.resize_streams(window_bytes, now)
    state.flow.resume_stream_acks(state.asked_windows)
    return [e.StreamWindowChanged(window_bytes, frame.status)]


def _begin_stream_windows(state: ConnectionState, status: int) -> list[e.Event]:
    """Take the answer to the first size, 0: from here on both sides count from nothing."""
    if status == Status.SUCCESS:
        state.flow.offer_streams(0)
        state.ask_stream_windows()
        return []
    refused, state.waiting_windows = state.waiting_windows, []
    return [e.StreamWindowChanged(size, status) for size in refused]


def _log_answer(_: ConnectionState, request: PendingRequest, frame: Frame) -> list[e.Event]:
    body = decode(frame)
    vbucket = request.vbucket
    if isinstance(body, m.FailoverLogAnswer):
        try:
            return [e.FailoverLogReceived(vbucket, _failover_log(body))]
        except ValueError as error:
            return [e.FailoverLogReceived(vbucket, None, fault=str(error))]
    if frame.status == Status.NOT_MY_VBUCKET:
        return [e.FailoverLogReceived(vbucket, None), *_map_in(frame)]
    return [e.FailoverLogReceived(vbucket, None, frame.status, str(_refused(frame)))]


def _seqnos_answer(_: ConnectionState, __: PendingRequest, frame: Frame) -> list[e.Event]:
    body = decode(frame)
    if not isinstance(body, m.AllVbSeqnos):
        raise _refused(frame)
    return [e.SeqnosReceived(body.seqnos)]


def _persistence_answer(_: ConnectionState, request: PendingRequest, frame: Frame) -> list[e.Event]:
    body = decode(frame)
    if frame.status in _NOT_HERE:
        return [e.PersistenceReceived(request.vbucket, None), *_map_in(frame)]
    if not isinstance(body, m.ObserveSeqnoAnswer):
        raise _refused(frame)
    # A branch that a failover ended is part of this node's history only up to ``last_seqno_old``.
    shared = body.persisted if body.last_seqno_old is None else body.last_seqno_old
    return [e.PersistenceReceived(request.vbucket, min(body.persisted, shared))]


def _config_answer(_: ConnectionState, __: PendingRequest, frame: Frame) -> list[e.Event]:
    body = decode(frame)
    if not isinstance(body, m.Text):
        raise _refused(frame)
    return [e.ClusterConfigReceived(body.value)]


def _manifest_answer(_: ConnectionState, __: PendingRequest, frame: Frame) -> list[e.Event]:
    body = decode(frame)
    if isinstance(body, m.Text):
        return [e.ManifestReceived(body.value)]
    if frame.status in _NO_COLLECTIONS:
        return [e.ManifestReceived(None)]
    raise _refused(frame)


def _window_answer(state: ConnectionState, frame: Frame, now: float) -> list[e.Event]:
    asked_bytes = state.resize.asked_bytes or 0
    if frame.status == Status.SUCCESS:
        state.resize = state.resize.accepted()
        if not state.resize.confirmed_bytes:  # even if another size waits
            state.flow.connection.forget()
        state.resize_window(now)
        return []
    state.resize = state.resize.refused()
    state.resize_window(now)
    if state.resize.asked_bytes is not None:  # another size is on its way
        return []
    return [e.WindowRefused(asked_bytes, describe_refusal(frame))]


_Handler = Callable[[ConnectionState, PendingRequest, Frame], list[e.Event]]

_HANDLERS: Final[dict[int, _Handler]] = {
    Opcode.DCP_STREAM_REQ: _stream_answer,
    Opcode.DCP_CLOSE_STREAM: _close_answer,
    Opcode.DCP_GET_FAILOVER_LOG: _log_answer,
    Opcode.GET_FAILOVER_LOG: _log_answer,
    Opcode.GET_ALL_VB_SEQNOS: _seqnos_answer,
    Opcode.OBSERVE_SEQNO: _persistence_answer,
    Opcode.GET_CLUSTER_CONFIG: _config_answer,
    Opcode.GET_COLLECTIONS_MANIFEST: _manifest_answer,
}


def _failover_log(body: m.FailoverLogAnswer) -> FailoverLog:
    """Return the failover log of an answer; raise ValueError if no server could have made it."""
    count = len(body.entries)
    if count > MAX_FAILOVER_ENTRIES:
        raise ValueError(
            f"failover log: found {count} entries, expected at most {MAX_FAILOVER_ENTRIES}"
        )
    failover_log = FailoverLog(body.entries)
    if any(entry.vb_uuid == 0 for entry in failover_log.entries):
        raise ValueError("failover log: found vb_uuid 0, expected every branch to have another")
    return failover_log


def _map_in(frame: Frame) -> list[e.Event]:
    if frame.status == Status.NOT_MY_VBUCKET and _MAP_MARK in frame.value:
        return [e.ClusterConfigReceived(frame.value)]
    return []


def _refused(frame: Frame) -> SourceError:
    found = f"{opcode_name(frame.opcode)}: found {describe_refusal(frame)}"
    if frame.status == Status.EACCESS:
        return BucketError(f"{found}, {privilege_cure(frame.value) or ROLE_CURE}")
    return SourceError(f"{found}, expected success")

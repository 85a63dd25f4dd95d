"""Commands of DCP connections, except stream requests (``stream_requests.py``)."""

import logging
from typing import Final, cast

from dcp.errors import FrameError
from dcp.protocol.negotiation import Release
from dcp.server.bucket.auth import REPLICATION_USER
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.commands.controls import apply_control, context_of_refusal, fault_of_window
from dcp.server.commands.seqno_commands import failover_log
from dcp.server.commands.session import Access, CommandHandler, Session
from dcp.server.commands.stream_requests import stream_request
from dcp.server.streams.dcp_options import DcpClient
from dcp.types import U16_MAX
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_of
from dcp.wire.vocabulary import (
    MAX_CONNECTION_NAME_BYTES,
    Opcode,
    OpenFlag,
    Status,
)

_LOGGER = logging.getLogger(__name__)
_KNOWN_OPEN_FLAGS: Final = int(
    OpenFlag.PRODUCER
    | OpenFlag.INCLUDE_XATTRS
    | OpenFlag.NO_VALUE
    | OpenFlag.INCLUDE_DELETE_TIMES
    | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
    | OpenFlag.INCLUDE_DELETED_USER_XATTRS
)
_NO_PRODUCER: Final = (
    "Authorization failure: can't execute DCP_OPEN operation without the DcpProducer privilege"
)
"""A server's own words (``tests/data/captures/08-errors.jsonl``)."""
_KNOWS_UNDERLYING_DATATYPES: Final[Release] = (6, 5)
_BOTH_NO_VALUES: Final = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE


def dcp_open(session: Session, frame: Frame, body: m.Body, now: float) -> None:
    request = cast("m.DcpOpen", body)
    settings = session.bucket.settings
    is_lenient = settings.rules == "server"  # a 7.0 server accepts longer names than documented
    most_name_bytes = U16_MAX if is_lenient else MAX_CONNECTION_NAME_BYTES
    if session.dcp is not None:
        context = "The connection is already opened as a DCP connection"
        session.refuse(frame, Status.EINVAL, context)
    elif not _open_flags_are_valid(request.flags, settings.release):
        session.refuse(frame, Status.EINVAL, "Request contains invalid flags")
    elif not 0 < len(request.name) <= most_name_bytes:
        expected = f"Request must include a name of 1 to {most_name_bytes} bytes"
        session.refuse(frame, Status.EINVAL, f"{expected}, found {len(request.name)}")
    elif not settings.may_open_dcp(session.login.user):
        session.refuse_access(frame, Status.EACCESS, _NO_PRODUCER)
    else:
        client = DcpClient(
            (session.node, request.name),
            request.flags,
            session.login.features,
            session.login.user or "",
            is_internal=session.login.user == REPLICATION_USER,
        )
        session.open_dcp(client, now)
        session.reply(frame, m.Empty())


def _open_flags_are_valid(flags: int, release: Release) -> bool:
    needs_xattrs = flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS
    is_older = release < _KNOWS_UNDERLYING_DATATYPES
    return (
        not flags & ~_KNOWN_OPEN_FLAGS
        and not (is_older and flags & OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE)
        and flags & _BOTH_NO_VALUES != _BOTH_NO_VALUES
        and bool(not needs_xattrs or flags & OpenFlag.INCLUDE_XATTRS)
    )


def dcp_control(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    request, dcp = cast("m.DcpControl", body), _dcp(session)
    status = apply_control(dcp, request.name, request.value)
    if status is Status.SUCCESS:
        session.reply(frame, m.Empty())
        return
    if status is Status.EINVAL and (fault := fault_of_window(request.name, request.value)):
        _LOGGER.warning("%s: a window is refused: %s", dcp.client.display_name, fault)
    session.refuse(frame, status, context_of_refusal(dcp, request.name, request.value))


def close_stream(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    """End a stream.

    Statuses are kv_engine's (``engines/ep/src/dcp/producer.cc``, closeStream).
    """
    dcp = _dcp(session)
    try:
        stream_id = stream_id_of(frame.framing_extras)
    except FrameError as error:
        session.refuse(frame, Status.EINVAL, str(error))
        return
    # With stream ids, the framing extras must name the stream; without, they must name none.
    if dcp.options.stream_ids is not (stream_id is not None):
        session.refuse(frame, Status.DCP_STREAM_ID_INVALID)
    elif dcp.close_stream(frame.vbucket, stream_id):
        session.reply(frame, m.Empty())
    elif dcp.options.stream_ids and dcp.streams.of({frame.vbucket}):
        session.refuse(frame, Status.DCP_STREAM_ID_INVALID)
    else:
        session.refuse(frame, Status.KEY_ENOENT)


def buffer_ack(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Return bytes to a window. Only an opaque that never named a stream gets an answer."""
    session.bucket.counters.buffer_acks += 1
    dcp, frame_bytes = _dcp(session), cast("m.BufferAck", body).bytes
    before = dcp.over_acked_bytes
    is_known = dcp.take_acknowledgement(frame.opaque, frame_bytes)
    if not before and (beyond_bytes := dcp.over_acked_bytes):
        _LOGGER.warning(
            "%s: found an acknowledgement of %d bytes, expected at most the %d "
            "outstanding bytes; from now on only over_acked_bytes counts such bytes",
            dcp.client.display_name,
            frame_bytes,
            frame_bytes - beyond_bytes,
        )
    # CLOSE_STREAM answers unknown streams alike, and so do consumers (kv_engine
    # ``dcp/connhandler.cc``).
    if not is_known:
        expected = f"expected 0 for the connection or the opaque of a stream, found {frame.opaque}"
        session.refuse(frame, Status.KEY_ENOENT, f"DCP_BUFFER_ACK: {expected}")


def seqno_acknowledged(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    dcp = _dcp(session)
    stream = dcp.streams.find(frame.vbucket, None)
    seqno = cast("m.SeqnoAcknowledged", body).prepared_seqno
    # A replica cannot acknowledge a seqno that it was not sent.
    if not dcp.options.acknowledges or (stream is not None and seqno > stream.sent_seqno):
        session.refuse(frame, Status.EINVAL)
    elif session.bucket.table.at(frame.vbucket, session.node) is None:
        session.refuse_vbucket(frame)
    else:
        if stream is not None:
            dcp.acknowledged_prepares(stream, seqno)
        session.reply(frame, m.Empty())


def wrong_way(session: Session, _: Frame, __: m.Body, ___: float) -> None:
    """Close the connection of a client that sends a producer's messages (``connhandler.cc``)."""
    session.abort()


def _dcp(session: Session) -> DcpConnection:
    if session.dcp is None:
        raise AssertionError("access lets DCP commands pass only after DCP_OPEN")
    return session.dcp


SENT_BY_PRODUCERS: Final = frozenset(
    {
        Opcode.DCP_ADD_STREAM,
        Opcode.DCP_STREAM_END,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_SET_VBUCKET_STATE,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT,
        Opcode.DCP_ABORT,
        Opcode.DCP_SEQNO_ADVANCED,
        Opcode.DCP_OSO_SNAPSHOT,
        Opcode.DCP_CACHE_TRANSFER,
        Opcode.DCP_CACHE_TRANSFER_END,
    }
)
"""Messages that only consumers receive: from producers, and ADD_STREAM from the cluster manager."""

DCP_COMMANDS: Final[dict[int, CommandHandler]] = {
    **{opcode: CommandHandler(Access.DCP, wrong_way) for opcode in SENT_BY_PRODUCERS},
    Opcode.DCP_OPEN: CommandHandler(Access.BUCKET, dcp_open),
    Opcode.DCP_CONTROL: CommandHandler(Access.DCP, dcp_control),
    Opcode.DCP_STREAM_REQ: CommandHandler(Access.DCP, stream_request),
    Opcode.DCP_CLOSE_STREAM: CommandHandler(Access.DCP, close_stream),
    Opcode.DCP_BUFFER_ACK: CommandHandler(Access.DCP, buffer_ack),
    Opcode.DCP_SEQNO_ACKNOWLEDGED: CommandHandler(Access.DCP, seqno_acknowledged),
    Opcode.DCP_GET_FAILOVER_LOG: CommandHandler(Access.DCP, failover_log),
}

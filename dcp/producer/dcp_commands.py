"""Commands of DCP connections, and the seqno commands that any connection may send."""

from dataclasses import replace
from itertools import pairwise
from typing import Final, cast

from dcp.errors import FrameError
from dcp.producer.auth import REPLICATION_USER
from dcp.producer.controls import apply_control, context_of_refusal
from dcp.producer.dcp_connection import DcpConnection
from dcp.producer.failover import (
    ResumeRequest,
    VbucketFacts,
    judge,
    range_is_valid,
    state_allows,
)
from dcp.producer.manifest import DEFAULT_ID
from dcp.producer.manifest_commands import refuse_unknown_id
from dcp.producer.session import Command, Gate, Session
from dcp.producer.stream import ActiveStream
from dcp.producer.stream_filter import StreamFilter
from dcp.producer.stream_flags import fault_of
from dcp.producer.stream_request_value import parse_filter
from dcp.producer.vbucket import Vbucket
from dcp.types import U16_MAX
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_of
from dcp.wire.vocabulary import (
    MAX_CONNECTION_NAME_BYTES,
    HelloFeature,
    Opcode,
    OpenFlag,
    Status,
    StreamFlag,
    VbucketState,
)

_KNOWN_OPEN_FLAGS: Final = int(
    OpenFlag.PRODUCER
    | OpenFlag.INCLUDE_XATTRS
    | OpenFlag.NO_VALUE
    | OpenFlag.INCLUDE_DELETE_TIMES
    | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
    | OpenFlag.INCLUDE_DELETED_USER_XATTRS
)
_BOTH_NO_VALUES: Final = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE


def dcp_open(session: Session, frame: Frame, body: m.Body, now: float) -> None:
    """Make this a DCP connection; an older one of the same name at this node is closed."""
    request = cast("m.DcpOpen", body)
    settings = session.bucket.settings
    is_lenient = settings.rules == "server"  # a 7.0 server takes longer names than it documents
    most_name_bytes = U16_MAX if is_lenient else MAX_CONNECTION_NAME_BYTES
    if session.dcp is not None:
        context = "The connection is already opened as a DCP connection"
        session.refuse(frame, Status.EINVAL, context)
    elif not _open_flags_are_valid(request.flags):
        session.refuse(frame, Status.EINVAL, "Request contains invalid flags")
    elif not 0 < len(request.name) <= most_name_bytes:
        expected = f"Request must include a name of 1 to {most_name_bytes} bytes"
        session.refuse(frame, Status.EINVAL, f"{expected}, found {len(request.name)}")
    elif session.user in settings.users_without_streams:
        session.refuse_access(frame, Status.EACCESS, "The user lacks the DcpProducer privilege")
    else:
        session.dcp = DcpConnection(
            session.bucket,
            (session.node, request.name),
            request.flags,
            session.features,
            session.close,
            is_internal=session.user == REPLICATION_USER,
            user=session.user or "",
        )
        session.dcp.noop.heard(now)
        session.bucket.open_dcp(session.dcp)
        session.reply(frame, m.Empty())


def _open_flags_are_valid(flags: int) -> bool:
    needs_xattrs = flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS
    return (
        not flags & ~_KNOWN_OPEN_FLAGS
        and flags & _BOTH_NO_VALUES != _BOTH_NO_VALUES
        and bool(not needs_xattrs or flags & OpenFlag.INCLUDE_XATTRS)
    )


def dcp_control(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Set one property of the connection."""
    request = cast("m.DcpControl", body)
    status = apply_control(_dcp(session), request.name, request.value)
    if status is Status.SUCCESS:
        session.reply(frame, m.Empty())
    else:
        session.refuse(frame, status, context_of_refusal(request.name))


def stream_request(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Open a stream, in the order of checks that kv_engine has."""
    request = cast("m.StreamRequest", body)
    dcp = _dcp(session)
    vbucket = session.bucket.held(frame.vbucket, session.node)
    ordered = None if dcp.is_internal else session.bucket.faults.refusal(frame.vbucket)
    counters = session.bucket.counters
    if ordered is not None:
        counters.streams_refused[frame.vbucket] += 1
        _refuse_as_ordered(session, frame, ordered)
        return
    if request.flags & StreamFlag.TAKEOVER and not dcp.may_take_over:
        counters.streams_refused[frame.vbucket] += 1
        session.refuse_access(frame, Status.EACCESS, "The user lacks the DcpConsumer privilege")
        return
    if (fault := fault_of(request.flags)) is not None:
        counters.streams_refused[frame.vbucket] += 1
        session.refuse(frame, Status.EINVAL, fault)
        return
    if vbucket is None:
        counters.streams_refused[frame.vbucket] += 1
        session.refuse_vbucket(frame)
        return
    if not _open_stream(session, dcp, vbucket, frame, request):
        counters.streams_refused[frame.vbucket] += 1


def _open_stream(
    session: Session, dcp: DcpConnection, vbucket: Vbucket, frame: Frame, request: m.StreamRequest
) -> bool:
    wanted = parse_filter(
        request.value,
        vbucket.documents.collections.manifest,
        collections=HelloFeature.COLLECTIONS in session.features,
        stream_ids=dcp.stream_ids,
        sync_writes=dcp.sync_writes,
    )
    resume = _resume_request(request, wanted)
    named = vbucket.filtered_high_seqno(wanted) if isinstance(wanted, StreamFilter) else None
    facts = _facts(vbucket, resume, named)
    copy = session.bucket.copies.at(session.node, vbucket.id)
    verdict = judge(resume, facts, session.bucket.settings.rules)
    if not state_allows(resume, facts):
        session.refuse_vbucket(frame)
    elif dcp.needs_noop and not dcp.noop.is_enabled:
        session.refuse(frame, Status.NOT_SUPPORTED)
    elif not range_is_valid(resume, facts):
        session.refuse(frame, Status.ERANGE)
    elif not isinstance(wanted, StreamFilter):
        _refuse_filter(session, frame, wanted)
    elif dcp.is_streaming(vbucket.id, wanted.stream_id):
        session.refuse(frame, Status.KEY_EEXISTS)
    elif not dcp.has_room_for_stream:
        session.refuse(frame, Status.ENOMEM)
    elif verdict.status is Status.ROLLBACK:
        session.reply(frame, m.RollbackAnswer(verdict.rollback_seqno or 0), status=Status.ROLLBACK)
    elif verdict.status is not Status.SUCCESS:
        session.refuse(frame, verdict.status)
    elif copy is not None and copy.awaits_first_disk_snapshot:
        session.refuse(frame, Status.ETMPFAIL)
    else:
        session.bucket.counters.streams_opened[vbucket.id] += 1
        session.reply(frame, m.FailoverLogAnswer(vbucket.failover_log.entries))
        settings = dcp.stream_settings()
        dcp.add_stream(
            ActiveStream(
                vbucket.data,
                frame.opaque,
                verdict,
                request.flags,
                settings,
                wanted,
                vb_uuid=request.vb_uuid,
            )
        )
        return True
    return False


def _facts(vbucket: Vbucket, resume: ResumeRequest, named: int | None) -> VbucketFacts:
    """Return what decides a request; the rest of a snapshot that is being received is to come.

    So whoever has a part of it may go on from there.
    """
    facts, checkpoints = vbucket.facts(named), vbucket.data.checkpoints
    if checkpoints.is_snapshot_complete or resume.start > facts.high_seqno:
        return facts
    if not facts.high_seqno < resume.snap_end <= checkpoints.snapshot.end:
        return facts
    return replace(facts, high_seqno=resume.snap_end)


def _resume_request(request: m.StreamRequest, wanted: StreamFilter | Status) -> ResumeRequest:
    return ResumeRequest(
        request.start,
        request.vb_uuid,
        request.snap_start,
        request.snap_end,
        request.end,
        request.flags,
        wanted.purge_seqno if isinstance(wanted, StreamFilter) else 0,
    )


def _refuse_filter(session: Session, frame: Frame, status: Status) -> None:
    if status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
        refuse_unknown_id(session, frame, status)
    elif status is Status.EINVAL and HelloFeature.COLLECTIONS not in session.features:
        session.refuse(frame, status, "Request must not include value")
    else:
        session.refuse(frame, status)


def _refuse_as_ordered(session: Session, frame: Frame, status: Status) -> None:
    if status is Status.NOT_MY_VBUCKET:
        session.refuse_vbucket(frame)
    elif status is Status.ROLLBACK:
        session.reply(frame, m.RollbackAnswer(0), status=status)
    else:
        session.refuse(frame, status)


def close_stream(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    """End a stream; a STREAM_END follows only where the client asked for it.

    On connections with stream ids the framing extras name it, elsewhere nothing may.
    """
    dcp = _dcp(session)
    try:
        stream_id = stream_id_of(frame.framing_extras)
    except FrameError as error:
        session.refuse(frame, Status.EINVAL, str(error))
        return
    if dcp.stream_ids is not (stream_id is not None):
        session.refuse(frame, Status.DCP_STREAM_ID_INVALID)
    elif dcp.close_stream(frame.vbucket, stream_id):
        session.reply(frame, m.Empty())
    elif dcp.stream_ids and dcp.streams_of({frame.vbucket}):
        session.refuse(frame, Status.DCP_STREAM_ID_INVALID)
    else:
        session.refuse(frame, Status.KEY_ENOENT)


def buffer_ack(session: Session, _: Frame, body: m.Body, __: float) -> None:
    """Take back window; there is no answer."""
    session.bucket.counters.buffer_acks += 1
    _dcp(session).flow.acknowledge(cast("m.BufferAck", body).bytes)


def seqno_acknowledged(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Take it that a replica holds everything up to a prepare; it must have been sent that.

    Sync writes count on it where the replica is a node of the cluster.
    """
    dcp = _dcp(session)
    stream = dcp.streams.find(frame.vbucket, None)
    seqno = cast("m.SeqnoAcknowledged", body).prepared_seqno
    if not dcp.acknowledges or (stream is not None and seqno > stream.sent_seqno):
        session.refuse(frame, Status.EINVAL)
    elif session.bucket.held(frame.vbucket, session.node) is None:
        session.refuse_vbucket(frame)
    else:
        if stream is not None:
            stream.acknowledged_seqno = max(stream.acknowledged_seqno, seqno)
            session.bucket.sync_writes.acknowledged(frame.vbucket)
        session.reply(frame, m.Empty())


def failover_log(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    """Answer a vbucket's branches, newest first."""
    vbucket = session.bucket.held(frame.vbucket, session.node)
    if vbucket is None:
        session.refuse_vbucket(frame)
    else:
        session.reply(frame, m.FailoverLogAnswer(vbucket.failover_log.entries))


def all_seqnos(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Answer the high seqnos of this node's vbuckets, or of one collection where they know it.

    A client with Collections is told the newest seqno that it can see, of a copy the end of the
    last whole snapshot, one without the default
    collection's, sync writes under way included, whatever collection it names (as observed on a
    7.0 server).
    """
    request = cast("m.GetAllVbSeqnos", body)
    state = request.state or 0
    has_collections = HelloFeature.COLLECTIONS in session.features
    collection = request.collection if has_collections else DEFAULT_ID
    if state > VbucketState.DEAD:
        session.refuse(frame, Status.EINVAL, "Request vbucket state invalid")
    elif has_collections and collection not in (None, *session.bucket.manifest.collections):
        refuse_unknown_id(session, frame, Status.UNKNOWN_COLLECTION)
    else:
        wanted = {VbucketState(state)} if state else set(VbucketState) - {VbucketState.DEAD}
        held = session.bucket.held_by(session.node)
        seqnos = ((v.id, _seqno_of(v, collection)) for v in held if v.state in wanted)
        known = tuple((vbucket, seqno) for vbucket, seqno in seqnos if seqno is not None)
        session.reply(frame, m.AllVbSeqnos(known))


def _seqno_of(vbucket: Vbucket, collection: int | None) -> int | None:
    """Return the newest seqno of a collection, None where the vbucket does not know it."""
    known = vbucket.documents.collections
    if collection is None and not vbucket.data.checkpoints.is_snapshot_complete:
        return vbucket.data.checkpoints.consistent_seqno
    if collection is None:
        return known.max_visible_seqno
    if known.find(collection) is None:
        return None
    if collection == DEFAULT_ID:
        return vbucket.default_high_seqno
    return known.high_seqnos.get(collection, 0)


def observe_seqno(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Answer persisted and high seqno; for an old branch also where it ended."""
    asked = cast("m.ObserveSeqno", body).vb_uuid
    vbucket = session.bucket.held(frame.vbucket, session.node)
    if vbucket is None:
        session.refuse_vbucket(frame)
        return
    high, on_disk = vbucket.data.high_seqno, vbucket.told_persisted_seqno
    current = vbucket.failover_log.current_uuid
    if asked == current:
        session.reply(frame, m.ObserveSeqnoAnswer(0, vbucket.id, current, on_disk, high))
        return
    entries = vbucket.failover_log.entries
    for newer, older in pairwise(entries):
        if older.vb_uuid == asked:
            answer = m.ObserveSeqnoAnswer(1, vbucket.id, current, on_disk, high, asked, newer.seqno)
            session.reply(frame, answer)
            return
    session.refuse(frame, Status.KEY_ENOENT)


def seqno_persistence(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Answer once ``seqno`` is on disk, or ETMPFAIL if that takes too long."""
    vbucket = session.bucket.held(frame.vbucket, session.node)
    if vbucket is None:
        session.refuse_vbucket(frame)
        return
    go_on = session.wait()

    def answer(status: Status) -> None:
        if status is Status.SUCCESS:
            go_on(lambda: session.reply(frame, m.Empty()))
        else:
            go_on(lambda: session.refuse(frame, status))

    seqno = cast("m.SeqnoPersistence", body).seqno
    session.bucket.persistence_waits.add(session, vbucket, session.node, seqno, answer)


def wrong_way(session: Session, _: Frame, __: m.Body, ___: float) -> None:
    """Cut off who sends what only a producer says (kv_engine ``connhandler.cc``)."""
    session.abort()


def _dcp(session: Session) -> DcpConnection:
    if session.dcp is None:
        raise AssertionError("the gate lets DCP commands pass only after DCP_OPEN")
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
"""What is said to consumers: by producers, and ADD_STREAM by the cluster manager."""

DCP_COMMANDS: Final[dict[int, Command]] = {
    **{opcode: Command(Gate.DCP, wrong_way) for opcode in SENT_BY_PRODUCERS},
    Opcode.DCP_OPEN: Command(Gate.BUCKET, dcp_open),
    Opcode.DCP_CONTROL: Command(Gate.DCP, dcp_control),
    Opcode.DCP_STREAM_REQ: Command(Gate.DCP, stream_request),
    Opcode.DCP_CLOSE_STREAM: Command(Gate.DCP, close_stream),
    Opcode.DCP_BUFFER_ACK: Command(Gate.DCP, buffer_ack),
    Opcode.DCP_SEQNO_ACKNOWLEDGED: Command(Gate.DCP, seqno_acknowledged),
    Opcode.DCP_GET_FAILOVER_LOG: Command(Gate.DCP, failover_log),
    Opcode.GET_FAILOVER_LOG: Command(Gate.BUCKET, failover_log),
    Opcode.GET_ALL_VB_SEQNOS: Command(Gate.BUCKET, all_seqnos),
    Opcode.OBSERVE_SEQNO: Command(Gate.BUCKET, observe_seqno),
    Opcode.SEQNO_PERSISTENCE: Command(Gate.BUCKET, seqno_persistence),
}

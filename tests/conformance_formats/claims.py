"""Collects the claims of one recorded server's frames: a contradiction between them is a finding.

A single frame is judged by ``require_known``; an answer by what it answers and by what was granted
before it (no bucket without a login, no stream without DCP_OPEN); a stream's message by those of
the stream before it. What a server may do either way is not judged.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from dcp.errors import RemoteProtocolError
from dcp.wire import messages as m
from dcp.wire.codec import TABLE, decode, encode
from dcp.wire.columns import DATA_OPCODES
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import (
    ALL_DATATYPE_BITS,
    HelloFeature,
    Magic,
    Opcode,
    OsoFlag,
    Status,
    VbucketState,
    opcode_name,
)

OF_STREAMS = frozenset(
    {
        *DATA_OPCODES,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_STREAM_END,
        Opcode.DCP_SEQNO_ADVANCED,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_OSO_SNAPSHOT,
        Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT,
        Opcode.DCP_ABORT,
        Opcode.DCP_SET_VBUCKET_STATE,
        Opcode.DCP_CACHE_TRANSFER,
        Opcode.DCP_CACHE_TRANSFER_END,
    }
)
"""What a producer sends in streams only."""

_ANY_REFUSAL = frozenset(
    {
        Status.EINVAL,
        Status.NO_BUCKET,
        Status.EWOULD_THROTTLE,
        Status.ECONFIG_ONLY,
        Status.AUTH_STALE,
        Status.EACCESS,
        Status.NOT_INITIALIZED,
        Status.RATE_LIMITED_NETWORK_INGRESS,
        Status.RATE_LIMITED_NETWORK_EGRESS,
        Status.RATE_LIMITED_MAX_CONNECTIONS,
        Status.RATE_LIMITED_MAX_COMMANDS,
        Status.UNKNOWN_FRAME_INFO,
        Status.UNKNOWN_COMMAND,
        Status.ENOMEM,
        Status.NOT_SUPPORTED,
        Status.EBUSY,
        Status.ETMPFAIL,
        Status.BUCKET_PAUSED,
        Status.CANCELLED,
    }
)
"""With these any command may be refused. EINTERNAL is none: it says that the server is broken."""

_VBUCKET_REFUSALS = frozenset({Status.KEY_ENOENT, Status.NOT_MY_VBUCKET})
_COLLECTION_REFUSALS = frozenset({Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE})
_LOGIN_REFUSALS = frozenset({Status.AUTH_ERROR, Status.AUTH_CONTINUE, Status.KEY_ENOENT})
_REFUSALS: dict[int, frozenset[Status]] = {
    Opcode.SASL_LIST_MECHS: frozenset(),
    Opcode.SASL_AUTH: _LOGIN_REFUSALS,
    Opcode.SASL_STEP: _LOGIN_REFUSALS,
    Opcode.SELECT_BUCKET: frozenset({Status.KEY_ENOENT}),
    Opcode.GET_CLUSTER_CONFIG: frozenset({Status.KEY_ENOENT}),
    Opcode.DCP_OPEN: frozenset(),
    Opcode.DCP_CONTROL: frozenset(),
    Opcode.DCP_BUFFER_ACK: frozenset(),
    Opcode.DCP_STREAM_REQ: _VBUCKET_REFUSALS
    | _COLLECTION_REFUSALS
    | {
        Status.KEY_EEXISTS,
        Status.ERANGE,
        Status.ROLLBACK,
        Status.DCP_STREAM_ID_INVALID,
        Status.VB_UUID_NOT_EQUAL,
    },
    Opcode.DCP_CLOSE_STREAM: _VBUCKET_REFUSALS
    | {Status.DCP_STREAM_ID_INVALID, Status.DCP_STREAM_NOT_FOUND},
    Opcode.DCP_GET_FAILOVER_LOG: _VBUCKET_REFUSALS,
    Opcode.GET_FAILOVER_LOG: _VBUCKET_REFUSALS,
}
"""Source: kv_engine ``docs/dcp/documentation/commands``, ``docs/BinaryProtocol.md``."""

_ON_DCP_ONLY = frozenset(
    {
        Opcode.DCP_CONTROL,
        Opcode.DCP_STREAM_REQ,
        Opcode.DCP_CLOSE_STREAM,
        Opcode.DCP_GET_FAILOVER_LOG,
    }
)
_NUMBERS = frozenset({b"set_noop_interval", b"connection_buffer_size"})
_MOST_VBUCKETS = 1024


def require(held: bool, found: str, expected: str) -> None:
    """Raise RemoteProtocolError with both texts unless ``held``."""
    if not held:
        raise RemoteProtocolError(f"found {found}, expected {expected}")


def names(frame: Frame) -> str:
    """Name a frame: its opcode and opaque."""
    return f"{opcode_name(frame.opcode)} with opaque {frame.opaque:#x}"


def body_of(frame: Frame) -> m.Body:
    """Return what a frame says; our codec must say the same bytes again.

    Raises:
        RemoteProtocolError: a header field that does not belong, or a body of another layout.
    """
    body = decode(frame)
    again = encode(
        body,
        frame.opcode,
        magic=frame.magic,
        vbucket=0 if frame.magic.is_response else frame.vbucket,
        status=frame.status if frame.magic.is_response else Status.SUCCESS,
        opaque=frame.opaque,
        cas=frame.cas,
        datatype=frame.datatype,
        framing_extras=frame.framing_extras,
    ).to_bytes()
    require(again == frame.to_bytes(), f"{names(frame)}", f"what our codec says: {again.hex()}")
    return body


def require_known(frame: Frame) -> None:
    """Raise RemoteProtocolError for a number that our vocabulary lacks, or one out of place."""
    found = names(frame)
    bits = frame.datatype & ~ALL_DATATYPE_BITS
    require(not bits, f"{found} and datatype {frame.datatype:#04x}", "no undefined datatype bit")
    if frame.magic.is_response:
        require(
            frame.status in set(Status),
            f"an answer to {found} with status {frame.status:#06x}",
            "a status of the vocabulary",
        )
    elif frame.magic is Magic.SERVER_REQUEST:
        known = (Magic.SERVER_REQUEST, frame.opcode) in TABLE
        require(known, f"server request {frame.opcode:#04x}", "one of the vocabulary")
        require(frame.opaque == 0, f"server request with opaque {frame.opaque:#x}", "opaque 0")
    else:
        sent_by_servers = frame.opcode in OF_STREAMS or frame.opcode == Opcode.DCP_NOOP
        require(sent_by_servers, found, "a stream's message, or a NOOP")


@dataclass(slots=True)
class _StreamClaims:
    """What one stream's messages have said."""

    highest: int
    marker_end: int = -1
    in_oso: bool = False
    oso_seqnos: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Claims:
    """What the server of one connection has said so far."""

    authenticated: bool = False
    has_bucket: bool = False
    is_dcp: bool = False
    ended: set[int] = field(default_factory=set)
    _streams: dict[int, _StreamClaims] = field(default_factory=dict)

    def take_answer(self, request: Frame, answer: Frame, body: m.Body, makeable: bool) -> None:
        """Judge the answer to ``request``, which ``makeable`` says our client could have made.

        Raises:
            RemoteProtocolError: it contradicts the request or what was said before.
        """
        found = f"an answer to {names(answer)} with status {answer.status:#04x}"
        goes_on = answer.status in (Status.SUCCESS, Status.AUTH_CONTINUE)
        if not goes_on:
            self._take_refusal(answer, found, makeable)
            return
        require(makeable, found, "a refusal: our machines cannot make this request")
        self._require_grounds(answer, found)
        if answer.status == Status.SUCCESS:
            _require_content(request, body, found)
            self._grant(request, answer)

    def _take_refusal(self, answer: Frame, found: str, makeable: bool) -> None:
        allowed = _REFUSALS.get(answer.opcode, _VBUCKET_REFUSALS | _COLLECTION_REFUSALS)
        known = answer.status in _ANY_REFUSAL or answer.status in allowed
        require(known, found, "success, or a refusal that belongs to this request")
        if answer.opcode == Opcode.HELLO:
            require(not makeable, found, "success: HELLO refuses what is malformed only")
        if answer.opcode in (Opcode.SASL_AUTH, Opcode.SASL_STEP):
            self.authenticated = False
        if answer.status != Status.ROLLBACK:
            require(
                not answer.value or _object(answer.value) is not None,
                f"{found} and value {answer.value[:32].hex()}",
                "no value, or a JSON object",
            )

    def _require_grounds(self, answer: Frame, found: str) -> None:
        """What must have been granted before this could be."""
        if answer.opcode in (Opcode.SELECT_BUCKET, Opcode.DCP_OPEN):
            require(self.authenticated, found, "a refusal: there was no successful login")
        if answer.opcode == Opcode.DCP_OPEN:
            require(self.has_bucket, found, "a refusal: no bucket was selected")
            require(not self.is_dcp, found, "a refusal: this is a DCP connection already")
        if answer.opcode in _ON_DCP_ONLY:
            require(self.is_dcp, found, "a refusal: DCP_OPEN did not succeed")

    def _grant(self, request: Frame, answer: Frame) -> None:
        match answer.opcode:
            case Opcode.SASL_AUTH | Opcode.SASL_STEP:
                self.authenticated = True
            case Opcode.SELECT_BUCKET:
                self.has_bucket = True
            case Opcode.DCP_OPEN:
                self.is_dcp = True
            case Opcode.DCP_STREAM_REQ:
                asked = decode(request)
                assert isinstance(asked, m.StreamRequest)
                self._streams[answer.opaque] = _StreamClaims(asked.start)
                self.ended.discard(answer.opaque)

    def take_message(self, frame: Frame, body: m.Body, controls: frozenset[str]) -> None:
        """Judge what the server sent by itself; ``controls`` are those that it accepted.

        Raises:
            RemoteProtocolError: it contradicts what was said before.
        """
        for opcode, control in (
            (Opcode.DCP_NOOP, "enable_noop"),
            (Opcode.DCP_EXPIRATION, "enable_expiry_opcode"),
        ):
            asked_for = frame.opcode != opcode or control in controls
            require(asked_for, names(frame), f"none: {control} was not accepted")
        stream = self._streams.get(frame.opaque)
        if stream is None or frame.opcode not in OF_STREAMS:
            return
        match body:
            case m.SnapshotMarker() if body.end is not None:
                require(
                    body.end > stream.marker_end,
                    f"{names(frame)} and end {body.end}",
                    f"an end beyond {stream.marker_end}, the snapshot before it",
                )
                stream.marker_end = body.end
            case m.OsoSnapshot():
                stream.in_oso = body.flags == OsoFlag.START
                stream.oso_seqnos.clear()
            case m.SeqnoAdvanced():
                require(
                    stream.in_oso or body.seqno > stream.highest,
                    f"{names(frame)} to {body.seqno}",
                    f"a seqno beyond {stream.highest}",
                )
                stream.highest = max(stream.highest, body.seqno)
            case m.StreamEnd():
                self.ended.add(frame.opaque)
            case _:
                _take_item(frame, body, stream)


def _take_item(frame: Frame, body: m.Body, stream: _StreamClaims) -> None:
    fields = ("by_seqno", "commit_seqno", "abort_seqno")
    seqno = next((getattr(body, name) for name in fields if hasattr(body, name)), None)
    if seqno is None:
        return
    stream.highest = max(stream.highest, seqno)
    if stream.in_oso:
        found = f"{names(frame)} and seqno {seqno}"
        require(seqno not in stream.oso_seqnos, found, "each seqno of the snapshot once")
        stream.oso_seqnos.add(seqno)


def _require_content(request: Frame, body: m.Body, found: str) -> None:
    """A successful answer has to suit what was asked."""
    require(not isinstance(body, m.Unknown), found, "a refusal: the command is unknown")
    asked = decode(request)
    match asked, body:
        case m.Sasl(), m.SaslAnswer() if asked.mechanism == b"PLAIN":
            require(not body.payload, f"{found} and a value", "none: PLAIN has no more to say")
        case m.Sasl(), m.SaslAnswer():
            told = f"{found} and {body.payload[:32]!r}"
            require(body.payload.startswith(b"v="), told, "the server's signature")
        case m.GetClusterConfig(), m.Text():
            config = _object(body.value) or {}
            require("rev" in config, f"{found}", "a cluster map with its revision")
        case m.GetErrorMap(), m.Text():
            require(_object(body.value) is not None, found, "a JSON object")
        case m.GetAllVbSeqnos(), m.AllVbSeqnos():
            known = asked.state is None or asked.state in set(VbucketState)
            require(known, found, f"a refusal: there is no state {asked.state}")
            vbuckets = [entry[0] for entry in body.seqnos]
            single = len(set(vbuckets)) == len(vbuckets)
            in_range = all(vbucket < _MOST_VBUCKETS for vbucket in vbuckets)
            require(
                single and in_range, f"{found} and vbuckets {vbuckets[:8]}", "each vbucket once"
            )
        case m.ObserveSeqno(), m.ObserveSeqnoAnswer():
            branches = (body.vb_uuid, body.old_uuid)
            told = f"{found} and branches {branches}"
            require(asked.vb_uuid in branches, told, f"branch {asked.vb_uuid}")
        case m.DcpControl(), _ if asked.name in _NUMBERS:
            number = asked.value.replace(b".", b"", 1)
            told = f"{found} and {asked.name!r}={asked.value!r}"
            require(number.isdigit(), told, "a refusal: this is no number")


def require_notification_asked(body: m.Body, features: frozenset[int]) -> None:
    """Raise RemoteProtocolError for a cluster map that the client did not subscribe to."""
    full_or_brief = {
        HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION,
        HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF,
    }
    wanted = HelloFeature.DUPLEX in features and features & full_or_brief
    require(bool(wanted), "a cluster map notification", f"none: features are {features}")
    if isinstance(body, m.ClustermapNotification) and body.config:
        found = f"a cluster map notification of {body.config[:32]!r}"
        require("rev" in (_object(body.config) or {}), found, "a cluster map with its revision")


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None

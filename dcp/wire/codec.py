"""The codec: a table with one row per command, answer and message, and two functions that use it.

A part (extras, key, value) that a row does not name must be absent. A test checks that each opcode
of ``vocabulary.py`` is in ``TABLE`` or ``NOT_SUPPORTED``. Source of the layouts: kv_engine
``docs/BinaryProtocol.md``, ``docs/dcp/documentation/commands/*``,
``include/memcached/protocol_binary.h``.
"""

from dataclasses import dataclass, field, fields
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Any, Final

from dcp.errors import FrameError
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.value_layouts import (
    FAILOVER_LOG,
    FEATURE_CODES,
    MARKER_V2,
    OBSERVE_SEQNO,
    RAW,
    ROLLBACK_SEQNO,
    VB_SEQNOS,
    VB_UUID,
    VERSION_NUMBER,
    ValueLayout,
    raw,
)
from dcp.wire.vocabulary import Magic, Opcode, ServerOpcode, Status

NOT_SUPPORTED: Final = frozenset({Opcode.DCP_FLUSH})
"""kv_engine defines these opcodes but answers them with an error."""

_KIND: Final = {
    **{magic: magic for magic in Magic},
    Magic.ALT_REQUEST: Magic.REQUEST,
    Magic.ALT_RESPONSE: Magic.RESPONSE,
}
"""The magic by which ``TABLE`` knows a frame: ALT magics count as their plain ones."""


class Extras:
    """One form of a message's extras: a struct and the fields it fills."""

    def __init__(self, layout: str, names: str) -> None:
        """``layout`` is a struct format without the byte order, ``names`` are its fields."""
        self.struct = Struct(">" + layout)
        self.names = tuple(names.split())

    def pack(self, body: m.Body) -> bytes:
        if not self.names:
            return b""
        return self.struct.pack(*[getattr(body, name) for name in self.names])


NO_EXTRAS: Final = (Extras("", ""),)


@dataclass(frozen=True, slots=True)
class CodecRow:
    """The layout of one kind of frame."""

    body: type[m.Body]
    extras: tuple[Extras, ...] = NO_EXTRAS
    """The allowed forms, shortest first. The length of the extras selects one."""
    key: str | None = None
    """The body's field that holds the key; None: the frame has no key."""
    value: ValueLayout | None = None
    optional: tuple[str, ...] = field(init=False)
    """Fields that only some forms of the extras hold; None in the body if absent."""
    form_by_optional: dict[tuple[bool, ...], Extras] = field(init=False)
    """By which optional fields are set: the first form that holds exactly those."""

    def __post_init__(self) -> None:
        # Computed once per row: ``encode`` needs both for each frame.
        in_forms = {name for form in self.extras for name in form.names}
        optional = tuple(
            e.name for e in fields(self.body) if e.default is None and e.name in in_forms
        )
        forms = {tuple(name in f.names for name in optional): f for f in reversed(self.extras)}
        object.__setattr__(self, "optional", optional)
        object.__setattr__(self, "form_by_optional", forms)


def _extras(layout: str, names: str) -> tuple[Extras, ...]:
    return (Extras(layout, names),)


_EMPTY: Final = CodecRow(m.Empty)
_TEXT: Final = CodecRow(m.Text, value=RAW)
_STORE: Final = CodecRow(m.Store, _extras("II", "flags expiry"), "key", RAW)
_STORED: Final = CodecRow(m.MutationAnswer, (*NO_EXTRAS, Extras("QQ", "vb_uuid seqno")))
_SASL: Final = CodecRow(m.Sasl, key="mechanism", value=raw("payload"))
_SASL_ANSWER: Final = CodecRow(m.SaslAnswer, value=raw("payload"))
_PATH: Final = CodecRow(m.GetId, value=raw("path"))
_ID_ANSWER: Final = CodecRow(m.IdAnswer, _extras("QI", "manifest_uid collection_id"))
_LOG_ANSWER: Final = CodecRow(m.FailoverLogAnswer, value=FAILOVER_LOG)

TABLE: Final[dict[tuple[Magic, int], CodecRow]] = {
    # --- documents
    (Magic.REQUEST, Opcode.GET): CodecRow(m.KeyOnly, key="key"),
    (Magic.RESPONSE, Opcode.GET): CodecRow(m.GetAnswer, _extras("I", "flags"), value=RAW),
    (Magic.REQUEST, Opcode.SET): _STORE,
    (Magic.RESPONSE, Opcode.SET): _STORED,
    (Magic.REQUEST, Opcode.ADD): _STORE,
    (Magic.RESPONSE, Opcode.ADD): _STORED,
    (Magic.REQUEST, Opcode.REPLACE): _STORE,
    (Magic.RESPONSE, Opcode.REPLACE): _STORED,
    (Magic.REQUEST, Opcode.DELETE): CodecRow(m.KeyOnly, key="key"),
    (Magic.RESPONSE, Opcode.DELETE): _STORED,
    (Magic.REQUEST, Opcode.TOUCH): CodecRow(m.Touch, _extras("I", "expiry"), "key"),
    (Magic.RESPONSE, Opcode.TOUCH): _EMPTY,
    # --- connection set-up
    (Magic.REQUEST, Opcode.QUIT): _EMPTY,
    (Magic.RESPONSE, Opcode.QUIT): _EMPTY,
    (Magic.REQUEST, Opcode.NOOP): _EMPTY,
    (Magic.RESPONSE, Opcode.NOOP): _EMPTY,
    (Magic.REQUEST, Opcode.VERSION): _EMPTY,
    (Magic.RESPONSE, Opcode.VERSION): _TEXT,
    (Magic.REQUEST, Opcode.STAT): CodecRow(m.Stat, key="group", value=RAW),
    (Magic.RESPONSE, Opcode.STAT): CodecRow(m.StatAnswer, key="key", value=RAW),
    (Magic.REQUEST, Opcode.HELLO): CodecRow(m.Hello, key="agent", value=FEATURE_CODES),
    (Magic.RESPONSE, Opcode.HELLO): CodecRow(m.HelloAnswer, value=FEATURE_CODES),
    (Magic.REQUEST, Opcode.SASL_LIST_MECHS): _EMPTY,
    (Magic.RESPONSE, Opcode.SASL_LIST_MECHS): _TEXT,
    (Magic.REQUEST, Opcode.SASL_AUTH): _SASL,
    (Magic.RESPONSE, Opcode.SASL_AUTH): _SASL_ANSWER,
    (Magic.REQUEST, Opcode.SASL_STEP): _SASL,
    (Magic.RESPONSE, Opcode.SASL_STEP): _SASL_ANSWER,
    (Magic.REQUEST, Opcode.SELECT_BUCKET): CodecRow(m.SelectBucket, key="bucket"),
    (Magic.RESPONSE, Opcode.SELECT_BUCKET): _EMPTY,
    (Magic.REQUEST, Opcode.LIST_BUCKETS): _EMPTY,
    (Magic.RESPONSE, Opcode.LIST_BUCKETS): _TEXT,
    (Magic.REQUEST, Opcode.GET_CLUSTER_CONFIG): CodecRow(
        # With the version that it has, a client gets only a newer map.
        m.GetClusterConfig,
        (*NO_EXTRAS, Extras("qq", "epoch rev")),
    ),
    (Magic.RESPONSE, Opcode.GET_CLUSTER_CONFIG): _TEXT,
    (Magic.REQUEST, Opcode.GET_ERROR_MAP): CodecRow(m.GetErrorMap, value=VERSION_NUMBER),
    (Magic.RESPONSE, Opcode.GET_ERROR_MAP): _TEXT,
    (Magic.REQUEST, Opcode.GET_COLLECTIONS_MANIFEST): _EMPTY,
    (Magic.RESPONSE, Opcode.GET_COLLECTIONS_MANIFEST): _TEXT,
    (Magic.REQUEST, Opcode.GET_COLLECTION_ID): _PATH,
    (Magic.RESPONSE, Opcode.GET_COLLECTION_ID): _ID_ANSWER,
    (Magic.REQUEST, Opcode.GET_SCOPE_ID): _PATH,
    (Magic.RESPONSE, Opcode.GET_SCOPE_ID): _ID_ANSWER,
    (Magic.SERVER_REQUEST, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION): CodecRow(
        m.ClustermapNotification,
        (Extras("I", "rev"), Extras("qq", "epoch rev")),
        "bucket",
        raw("config"),
    ),
    (Magic.SERVER_RESPONSE, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION): _EMPTY,
    (Magic.REQUEST, Opcode.IOCTL_GET): CodecRow(m.IoctlGet, key="name"),
    (Magic.RESPONSE, Opcode.IOCTL_GET): _TEXT,
    (Magic.REQUEST, Opcode.IOCTL_SET): CodecRow(m.IoctlSet, key="name", value=RAW),
    (Magic.RESPONSE, Opcode.IOCTL_SET): _TEXT,
    # --- seqnos
    (Magic.REQUEST, Opcode.GET_ALL_VB_SEQNOS): CodecRow(
        m.GetAllVbSeqnos, (*NO_EXTRAS, Extras("I", "state"), Extras("II", "state collection"))
    ),
    (Magic.RESPONSE, Opcode.GET_ALL_VB_SEQNOS): CodecRow(m.AllVbSeqnos, value=VB_SEQNOS),
    (Magic.REQUEST, Opcode.OBSERVE_SEQNO): CodecRow(m.ObserveSeqno, value=VB_UUID),
    (Magic.RESPONSE, Opcode.OBSERVE_SEQNO): CodecRow(m.ObserveSeqnoAnswer, value=OBSERVE_SEQNO),
    (Magic.REQUEST, Opcode.SEQNO_PERSISTENCE): CodecRow(m.SeqnoPersistence, _extras("Q", "seqno")),
    (Magic.RESPONSE, Opcode.SEQNO_PERSISTENCE): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_GET_FAILOVER_LOG): _EMPTY,
    (Magic.RESPONSE, Opcode.DCP_GET_FAILOVER_LOG): _LOG_ANSWER,
    (Magic.REQUEST, Opcode.GET_FAILOVER_LOG): _EMPTY,
    (Magic.RESPONSE, Opcode.GET_FAILOVER_LOG): _LOG_ANSWER,
    # --- DCP connections and streams
    (Magic.REQUEST, Opcode.DCP_OPEN): CodecRow(
        m.DcpOpen, _extras("II", "reserved flags"), "name", RAW
    ),
    (Magic.RESPONSE, Opcode.DCP_OPEN): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_CONTROL): CodecRow(m.DcpControl, key="name", value=RAW),
    (Magic.RESPONSE, Opcode.DCP_CONTROL): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_ADD_STREAM): CodecRow(m.AddStream, _extras("I", "flags")),
    (Magic.RESPONSE, Opcode.DCP_ADD_STREAM): CodecRow(
        m.AddStreamAnswer, _extras("I", "stream_opaque")
    ),
    (Magic.REQUEST, Opcode.DCP_STREAM_REQ): CodecRow(
        m.StreamRequest,
        _extras("IIQQQQQ", "flags reserved start end vb_uuid snap_start snap_end"),
        value=RAW,
    ),
    (Magic.RESPONSE, Opcode.DCP_STREAM_REQ): _LOG_ANSWER,
    (Magic.REQUEST, Opcode.DCP_CLOSE_STREAM): _EMPTY,
    (Magic.RESPONSE, Opcode.DCP_CLOSE_STREAM): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_NOOP): _EMPTY,
    (Magic.RESPONSE, Opcode.DCP_NOOP): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_BUFFER_ACK): CodecRow(m.BufferAck, _extras("I", "bytes")),
    (Magic.RESPONSE, Opcode.DCP_BUFFER_ACK): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_STREAM_END): CodecRow(m.StreamEnd, _extras("I", "reason")),
    (Magic.RESPONSE, Opcode.DCP_STREAM_END): _EMPTY,
    # --- DCP data
    (Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER): CodecRow(
        m.SnapshotMarker,
        # v2.x has only its minor version here, and its fields in the value; v1 has all fields here.
        (Extras("B", "version"), Extras("QQI", "start end flags")),
        None,
        MARKER_V2,
    ),
    (Magic.RESPONSE, Opcode.DCP_SNAPSHOT_MARKER): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_MUTATION): CodecRow(
        m.Mutation,
        _extras("QQIIIHB", "by_seqno rev_seqno flags expiry lock_time nmeta cache_hint"),
        "key",
        RAW,
    ),
    (Magic.RESPONSE, Opcode.DCP_MUTATION): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_DELETION): CodecRow(
        m.Deletion,
        (
            # v1, then v2.
            Extras("QQH", "by_seqno rev_seqno nmeta"),
            Extras("QQIB", "by_seqno rev_seqno delete_time unused"),
        ),
        "key",
        RAW,
    ),
    (Magic.RESPONSE, Opcode.DCP_DELETION): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_EXPIRATION): CodecRow(
        m.Expiration, _extras("QQI", "by_seqno rev_seqno delete_time"), "key", RAW
    ),
    (Magic.RESPONSE, Opcode.DCP_EXPIRATION): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_SET_VBUCKET_STATE): CodecRow(
        m.SetVbucketState, _extras("B", "state")
    ),
    (Magic.RESPONSE, Opcode.DCP_SET_VBUCKET_STATE): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_SYSTEM_EVENT): CodecRow(
        m.SystemEvent, _extras("QIB", "by_seqno event version"), "key", RAW
    ),
    (Magic.RESPONSE, Opcode.DCP_SYSTEM_EVENT): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_PREPARE): CodecRow(
        m.Prepare,
        _extras("QQIIIBBB", "by_seqno rev_seqno flags expiry lock_time cache_hint deleted level"),
        "key",
        RAW,
    ),
    (Magic.RESPONSE, Opcode.DCP_PREPARE): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_SEQNO_ACKNOWLEDGED): CodecRow(
        m.SeqnoAcknowledged, _extras("Q", "prepared_seqno")
    ),
    (Magic.RESPONSE, Opcode.DCP_SEQNO_ACKNOWLEDGED): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_COMMIT): CodecRow(
        m.Commit, _extras("QQ", "prepared_seqno commit_seqno"), "key"
    ),
    (Magic.RESPONSE, Opcode.DCP_COMMIT): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_ABORT): CodecRow(
        m.Abort, _extras("QQ", "prepared_seqno abort_seqno"), "key"
    ),
    (Magic.RESPONSE, Opcode.DCP_ABORT): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_SEQNO_ADVANCED): CodecRow(m.SeqnoAdvanced, _extras("Q", "seqno")),
    (Magic.RESPONSE, Opcode.DCP_SEQNO_ADVANCED): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_OSO_SNAPSHOT): CodecRow(m.OsoSnapshot, _extras("I", "flags")),
    (Magic.RESPONSE, Opcode.DCP_OSO_SNAPSHOT): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_CACHE_TRANSFER): CodecRow(m.CacheTransfer, value=RAW),
    (Magic.RESPONSE, Opcode.DCP_CACHE_TRANSFER): _EMPTY,
    (Magic.REQUEST, Opcode.DCP_CACHE_TRANSFER_END): _EMPTY,
    (Magic.RESPONSE, Opcode.DCP_CACHE_TRANSFER_END): _EMPTY,
}

SPECIAL_ANSWERS: Final[dict[tuple[int, int], CodecRow]] = {
    (Opcode.SASL_AUTH, Status.AUTH_CONTINUE): _SASL_ANSWER,
    (Opcode.SASL_STEP, Status.AUTH_CONTINUE): _SASL_ANSWER,
    (Opcode.DCP_STREAM_REQ, Status.ROLLBACK): CodecRow(m.RollbackAnswer, value=ROLLBACK_SEQNO),
}
"""Answers without SUCCESS that have a layout; all others decode to ``Refusal``."""


def decode(frame: Frame) -> m.Body:
    """Return the body of ``frame``.

    An unsuccessful answer becomes a ``Refusal``, except for ``SPECIAL_ANSWERS``. An opcode that is
    not in the table becomes ``Unknown``: the peer may be newer than this code.

    Raises:
        FrameError: the parts of a known frame do not fit its row.
    """
    kind = _KIND[frame.magic]
    row = TABLE.get((kind, frame.opcode))
    # SUCCESS is 0. Reading the ``status`` property instead would cost a call per frame.
    if frame.vbucket_or_status and frame.magic.is_response:
        row = _special_answer(kind, frame.opcode, frame.status)
        if row is None:
            return m.Refusal(frame.value, frame.extras, frame.key)
    if row is None:
        return m.Unknown(frame.extras, frame.key, frame.value)
    form = _form_by_length(row, frame)
    found: dict[str, Any] = dict(zip(form.names, form.struct.unpack(frame.extras), strict=True))
    if row.key is not None:
        found[row.key] = frame.key
    elif frame.key:
        raise _misfit(frame, "key", len(frame.key), "no key")
    if row.value is not None:
        found.update(row.value.decode(frame, found))
    elif frame.value:
        raise _misfit(frame, "value", len(frame.value), "no value")
    return row.body(**found)


def encode(  # noqa: PLR0913 - the header's fields, by name
    body: m.Body,
    opcode: int,
    *,
    magic: Magic = Magic.REQUEST,
    vbucket: int = 0,
    status: int = Status.SUCCESS,
    opaque: int = 0,
    cas: int = 0,
    datatype: int = 0,
    framing_extras: bytes = b"",
) -> Frame:
    """Return the frame of ``body``; the inverse of ``decode``.

    ``Frame.to_bytes`` checks the header's fields.

    Raises:
        TypeError: the row of this opcode and status has another body class, or no form of the
            extras holds exactly the optional fields that are set.
        ValueError: a field of the body does not fit its width.
    """
    extras, key, value = _parts(body, _KIND[magic], opcode, status)
    number = status if magic.is_response else vbucket
    return Frame(magic, opcode, datatype, number, opaque, cas, framing_extras, extras, key, value)


def _parts(body: m.Body, kind: Magic, opcode: int, status: int) -> tuple[bytes, bytes, bytes]:
    if isinstance(body, m.Refusal | m.Unknown):
        return body.extras, body.key, body.value
    row = TABLE.get((kind, opcode))
    if status and kind.is_response:
        row = _special_answer(kind, opcode, status)
    if row is None or type(body) is not row.body:
        wanted = row.body.__name__ if row else "Refusal or Unknown"
        raise TypeError(
            f"encode {_name(kind)} {opcode:#04x} status {status:#04x}: "
            f"found a {type(body).__name__}, expected a {wanted}"
        )
    form = _form_by_fields(row, body)
    try:
        extras = form.pack(body)
        value = row.value.encode(body) if row.value is not None else b""
    except StructError as error:
        raise ValueError(f"encode {type(body).__name__}: {error}") from None
    key = getattr(body, row.key) if row.key is not None else b""
    return extras, key, value


def _special_answer(kind: Magic, opcode: int, status: int) -> CodecRow | None:
    return SPECIAL_ANSWERS.get((opcode, status)) if kind is Magic.RESPONSE else None


def _name(kind: Magic) -> str:
    return kind.name.lower().replace("_", " ")


def _form_by_length(row: CodecRow, frame: Frame) -> Extras:
    for form in row.extras:
        if form.struct.size == len(frame.extras):
            return form
    sizes = " or ".join(str(form.struct.size) for form in row.extras)
    raise _misfit(frame, "extras", len(frame.extras), f"{sizes} bytes")


def _form_by_fields(row: CodecRow, body: m.Body) -> Extras:
    if not row.optional:
        return row.extras[0]
    is_set = tuple([getattr(body, name) is not None for name in row.optional])
    form = row.form_by_optional.get(is_set)
    if form is not None:
        return form
    present = [name for name in row.optional if getattr(body, name) is not None]
    raise TypeError(
        f"encode {type(body).__name__}: found {', '.join(sorted(present)) or 'no optional field'} "
        "set, which fits no form of its extras"
    )


def _misfit(frame: Frame, part: str, found: int, expected: str) -> FrameError:
    return FrameError(
        f"{_name(_KIND[frame.magic])} {frame.opcode:#04x} {part}: found {found} bytes, "
        f"expected {expected}"
    )

"""Bodies of DCP messages: opening connections and streams, snapshot markers, documents, events.

Field names are those of kv_engine ``docs/dcp/documentation/commands``; seqnos, uuids and CAS are
unsigned 64-bit, expiry and delete times are seconds since 1970.
"""

from dataclasses import dataclass

from dcp.wire.body import Body

# --- DCP connections and streams -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DcpOpen(Body):
    """DCP_OPEN: the connection's unique name and flags (``OpenFlag``)."""

    name: bytes
    flags: int
    reserved: int = 0
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class DcpControl(Body):
    """DCP_CONTROL: one setting of the connection."""

    name: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class AddStream(Body):
    """DCP_ADD_STREAM (cluster manager to a consumer)."""

    flags: int


@dataclass(frozen=True, slots=True)
class AddStreamAnswer(Body):
    """The opaque that the consumer will use for the stream."""

    stream_opaque: int


@dataclass(frozen=True, slots=True)
class StreamRequest(Body):
    """DCP_STREAM_REQ: resume after ``start`` on branch ``vb_uuid``, inside [snap_start, snap_end].

    ``value`` is the JSON filter; it may be sent only when Collections was negotiated.
    """

    flags: int
    start: int
    end: int
    vb_uuid: int
    snap_start: int
    snap_end: int
    value: bytes = b""
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class RollbackAnswer(Body):
    """Answer ROLLBACK to a stream request: go back to ``rollback_seqno`` and ask again."""

    rollback_seqno: int


@dataclass(frozen=True, slots=True)
class BufferAck(Body):
    """DCP_BUFFER_ACK: so many bytes were consumed. It has no answer."""

    bytes: int


@dataclass(frozen=True, slots=True)
class StreamEnd(Body):
    """DCP_STREAM_END (``EndReason``)."""

    reason: int


@dataclass(frozen=True, slots=True)
class SnapshotMarker(Body):
    """DCP_SNAPSHOT_MARKER; ``version`` is None in v1 and the version byte in v2.x."""

    start: int
    end: int
    flags: int
    version: int | None = None
    max_visible_seqno: int | None = None
    high_completed_seqno: int | None = None
    timestamp: int | None = None
    purge_seqno: int | None = None
    high_prepared_seqno: int | None = None


@dataclass(frozen=True, slots=True)
class Mutation(Body):
    """DCP_MUTATION: the document as of ``by_seqno``."""

    key: bytes
    value: bytes
    by_seqno: int
    rev_seqno: int
    flags: int = 0
    expiry: int = 0
    lock_time: int = 0
    nmeta: int = 0
    cache_hint: int = 0


@dataclass(frozen=True, slots=True)
class Deletion(Body):
    """DCP_DELETION; ``delete_time`` comes only with INCLUDE_DELETE_TIMES (v2)."""

    key: bytes
    by_seqno: int
    rev_seqno: int
    value: bytes = b""
    nmeta: int | None = None
    delete_time: int | None = None
    unused: int = 0


@dataclass(frozen=True, slots=True)
class Expiration(Body):
    """DCP_EXPIRATION: a deletion by time."""

    key: bytes
    by_seqno: int
    rev_seqno: int
    delete_time: int
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class SetVbucketState(Body):
    """DCP_SET_VBUCKET_STATE (takeover only)."""

    state: int


@dataclass(frozen=True, slots=True)
class SystemEvent(Body):
    """DCP_SYSTEM_EVENT as sent; ``value`` is laid out by ``event`` and ``version``."""

    by_seqno: int
    event: int
    version: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Prepare(Body):
    """DCP_PREPARE: a sync write that is not committed yet."""

    key: bytes
    value: bytes
    by_seqno: int
    rev_seqno: int
    flags: int
    expiry: int
    lock_time: int
    cache_hint: int
    deleted: int
    level: int


@dataclass(frozen=True, slots=True)
class SeqnoAcknowledged(Body):
    """DCP_SEQNO_ACKNOWLEDGED: a replica holds prepares up to here."""

    prepared_seqno: int


@dataclass(frozen=True, slots=True)
class Commit(Body):
    """DCP_COMMIT of the prepare at ``prepared_seqno``."""

    key: bytes
    prepared_seqno: int
    commit_seqno: int


@dataclass(frozen=True, slots=True)
class Abort(Body):
    """DCP_ABORT of the prepare at ``prepared_seqno``."""

    key: bytes
    prepared_seqno: int
    abort_seqno: int


@dataclass(frozen=True, slots=True)
class SeqnoAdvanced(Body):
    """DCP_SEQNO_ADVANCED: the stream is at ``seqno``, there was nothing for us up to here."""

    seqno: int


@dataclass(frozen=True, slots=True)
class OsoSnapshot(Body):
    """DCP_OSO_SNAPSHOT: an out-of-order snapshot starts or ends (``OsoFlag``)."""

    flags: int


@dataclass(frozen=True, slots=True)
class CacheTransfer(Body):
    """DCP_CACHE_TRANSFER: back-to-back cache records, not interpreted here."""

    value: bytes

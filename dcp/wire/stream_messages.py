"""Bodies of DCP messages: opening connections and streams, snapshot markers, documents, events.

Field names come from kv_engine ``docs/dcp/documentation/commands``. Seqnos, uuids and CAS are
unsigned 64-bit; expiry and delete times are seconds since 1970.
"""

from dataclasses import dataclass

from dcp.wire.body import Body

# --- DCP connections and streams -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DcpOpen(Body):
    name: bytes
    """Unique within the node: a second connection of this name ends the first."""
    flags: int
    """``OpenFlag`` bits."""
    reserved: int = 0
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class DcpControl(Body):
    """DCP_CONTROL: one setting of the connection."""

    name: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class AddStream(Body):
    """DCP_ADD_STREAM: the cluster manager makes a consumer open a stream."""

    flags: int


@dataclass(frozen=True, slots=True)
class AddStreamAnswer(Body):
    stream_opaque: int
    """The opaque that the consumer will use for the stream."""


@dataclass(frozen=True, slots=True)
class StreamRequest(Body):
    """DCP_STREAM_REQ: resume after ``start`` on branch ``vb_uuid``, within a snapshot."""

    flags: int
    start: int
    end: int
    vb_uuid: int
    snap_start: int
    snap_end: int
    value: bytes = b""
    """A JSON filter; allowed only if HELLO granted Collections."""
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class RollbackAnswer(Body):
    """Answer ROLLBACK to a stream request: go back to ``rollback_seqno`` and ask again."""

    rollback_seqno: int


@dataclass(frozen=True, slots=True)
class BufferAck(Body):
    """DCP_BUFFER_ACK: the consumer has released ``bytes``. It has no answer."""

    bytes: int


@dataclass(frozen=True, slots=True)
class StreamEnd(Body):
    reason: int
    """An ``EndReason``."""


@dataclass(frozen=True, slots=True)
class SnapshotMarker(Body):
    """DCP_SNAPSHOT_MARKER: the items from ``start`` to ``end`` are one snapshot."""

    start: int
    end: int
    flags: int
    """``SnapshotFlag`` bits."""
    version: int | None = None
    """None in v1; the minor version in v2.x."""
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
    key: bytes
    by_seqno: int
    rev_seqno: int
    value: bytes = b""
    nmeta: int | None = None
    """Present in v1 only."""
    delete_time: int | None = None
    """Present in v2 only, which a consumer gets with INCLUDE_DELETE_TIMES."""
    unused: int = 0


@dataclass(frozen=True, slots=True)
class Expiration(Body):
    """DCP_EXPIRATION: the document was deleted because its expiry passed."""

    key: bytes
    by_seqno: int
    rev_seqno: int
    delete_time: int
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class SetVbucketState(Body):
    """DCP_SET_VBUCKET_STATE, which only takeover streams carry."""

    state: int


@dataclass(frozen=True, slots=True)
class SystemEvent(Body):
    """DCP_SYSTEM_EVENT as sent: ``event`` and ``version`` decide the layout of ``value``."""

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
    """DCP_SEQNO_ACKNOWLEDGED: a replica holds the prepares up to ``prepared_seqno``."""

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
    """DCP_SEQNO_ADVANCED: the stream has reached ``seqno`` without an item for this consumer."""

    seqno: int


@dataclass(frozen=True, slots=True)
class OsoSnapshot(Body):
    """DCP_OSO_SNAPSHOT: an out-of-order snapshot starts or ends (``OsoFlag``)."""

    flags: int


@dataclass(frozen=True, slots=True)
class CacheTransfer(Body):
    """DCP_CACHE_TRANSFER: cache records back to back, left undecoded."""

    value: bytes

"""What frames say: one frozen dataclass for the body of each command, answer and DCP message.

The envelope (opaque, vbucket, CAS, datatype) is the frame's; a body holds what its extras, key
and value mean. ``codec.py`` says, in one table, which bytes become which field. Field names are
those of kv_engine ``docs/BinaryProtocol.md`` and ``docs/dcp/documentation/commands``; seqnos, uuids
and CAS are unsigned 64-bit, expiry and delete times are seconds since 1970.
"""

from dataclasses import dataclass, field

from dcp.types import FailoverEntry


@dataclass(frozen=True, slots=True)
class Body:
    """Base of all message bodies."""


@dataclass(frozen=True, slots=True)
class Empty(Body):
    """A command or answer that is all header."""


@dataclass(frozen=True, slots=True)
class Refusal(Body):
    """An answer with a status that is no success; ``value`` may be a JSON error context."""

    value: bytes = b""
    extras: bytes = b""
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Unknown(Body):
    """A command that no row of the codec table describes: kept whole, to be counted and ignored."""

    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""


# --- documents -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyOnly(Body):
    """GET and DELETE."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Store(Body):
    """SET, ADD and REPLACE. ``expiry`` up to 30 days is relative, beyond that absolute."""

    key: bytes
    value: bytes
    flags: int = 0
    expiry: int = 0


@dataclass(frozen=True, slots=True)
class Touch(Body):
    """TOUCH: a new expiry for a document."""

    key: bytes
    expiry: int


@dataclass(frozen=True, slots=True)
class GetAnswer(Body):
    """The document; its CAS and datatype are in the envelope."""

    flags: int
    value: bytes


@dataclass(frozen=True, slots=True)
class MutationAnswer(Body):
    """Answer to SET, ADD, REPLACE, DELETE; the seqno comes only with feature MUTATION_SEQNO."""

    vb_uuid: int | None = None
    seqno: int | None = None


# --- connection set-up -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello(Body):
    """HELLO: who we are and which features we ask for."""

    agent: bytes
    features: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HelloAnswer(Body):
    """The features that the server grants."""

    features: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Text(Body):
    """An answer that is one text or JSON document (VERSION, mechanisms, config, manifest…)."""

    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Sasl(Body):
    """SASL_AUTH and SASL_STEP. The payload is a secret: it stays out of the repr."""

    mechanism: bytes
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SaslAnswer(Body):
    """A challenge (status AUTH_CONTINUE) or the server's final message (SUCCESS)."""

    payload: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class SelectBucket(Body):
    """SELECT_BUCKET."""

    bucket: bytes


@dataclass(frozen=True, slots=True)
class GetClusterConfig(Body):
    """GET_CLUSTER_CONFIG, perhaps with the version that the client already holds."""

    epoch: int | None = None
    rev: int | None = None


@dataclass(frozen=True, slots=True)
class GetErrorMap(Body):
    """GET_ERROR_MAP: the highest version we can read."""

    version: int


@dataclass(frozen=True, slots=True)
class ClustermapNotification(Body):
    """Server push: a new map, ``config`` empty in the brief form. Old servers send only ``rev``."""

    bucket: bytes
    config: bytes = b""
    epoch: int | None = None
    rev: int = 0


@dataclass(frozen=True, slots=True)
class Stat(Body):
    """STAT: a group, with an optional JSON argument."""

    group: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class StatAnswer(Body):
    """One statistic; the last answer is empty in both."""

    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class GetId(Body):
    """GET_COLLECTION_ID and GET_SCOPE_ID: a path such as ``inventory.airport``."""

    path: bytes = b""


@dataclass(frozen=True, slots=True)
class IdAnswer(Body):
    """The id that a collection or scope has under the named manifest."""

    manifest_uid: int
    collection_id: int


# --- seqnos ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GetAllVbSeqnos(Body):
    """GET_ALL_VB_SEQNOS, optionally by vbucket state and collection."""

    state: int | None = None
    collection: int | None = None


@dataclass(frozen=True, slots=True)
class AllVbSeqnos(Body):
    """(vbucket, high seqno) pairs, ascending by vbucket."""

    seqnos: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ObserveSeqno(Body):
    """OBSERVE_SEQNO for the branch ``vb_uuid``."""

    vb_uuid: int


@dataclass(frozen=True, slots=True)
class ObserveSeqnoAnswer(Body):
    """Persisted and current seqno; format 1 (after a failover) also has the old branch's end."""

    format: int
    vb: int
    vb_uuid: int
    persisted: int
    current: int
    old_uuid: int | None = None
    last_seqno_old: int | None = None


@dataclass(frozen=True, slots=True)
class SeqnoPersistence(Body):
    """SEQNO_PERSISTENCE: answer once ``seqno`` is on disk."""

    seqno: int


@dataclass(frozen=True, slots=True)
class FailoverLogAnswer(Body):
    """The failover log as sent, newest first; answers STREAM_REQ and both GET_FAILOVER_LOGs."""

    entries: tuple[FailoverEntry, ...]


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

"""Bodies of all messages: a frozen dataclass per command, answer and DCP message.

A body holds what extras, key and value mean; ``codec.py`` maps bytes to fields. Opaque, vbucket,
CAS and datatype belong to the frame. Field names come from kv_engine ``docs/BinaryProtocol.md`` and
``docs/dcp/documentation/commands``. Seqnos, uuids and CAS are unsigned 64-bit; expiry and delete
times are seconds since 1970.
"""

from dataclasses import dataclass, field

from dcp.types import FailoverEntry


@dataclass(frozen=True, slots=True)
class Body:
    pass


@dataclass(frozen=True, slots=True)
class Empty(Body):
    """A command or answer without extras, key and value."""


@dataclass(frozen=True, slots=True)
class Refusal(Body):
    """An answer with an error status."""

    value: bytes = b""
    """May be a JSON object that explains the error."""
    extras: bytes = b""
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Unknown(Body):
    """A command that the codec table lacks, kept whole so that the receiver can count and ignore
    it.
    """

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
    """SET, ADD and REPLACE."""

    key: bytes
    value: bytes
    flags: int = 0
    expiry: int = 0
    """Seconds from now if at most 30 days, otherwise since 1970; 0: never."""


@dataclass(frozen=True, slots=True)
class Touch(Body):
    key: bytes
    expiry: int


@dataclass(frozen=True, slots=True)
class GetAnswer(Body):
    flags: int
    value: bytes


@dataclass(frozen=True, slots=True)
class MutationAnswer(Body):
    """Answer to SET, ADD, REPLACE and DELETE; both fields need feature MUTATION_SEQNO."""

    vb_uuid: int | None = None
    seqno: int | None = None


# --- connection set-up -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello(Body):
    agent: bytes
    features: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HelloAnswer(Body):
    features: tuple[int, ...]
    """The features that the server grants."""


@dataclass(frozen=True, slots=True)
class Text(Body):
    """An answer that is one text or JSON document: version, mechanisms, map, manifest."""

    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Sasl(Body):
    """SASL_AUTH and SASL_STEP."""

    mechanism: bytes
    # A secret, which must not reach a log.
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SaslAnswer(Body):
    """A challenge (status AUTH_CONTINUE) or the server's final message (SUCCESS)."""

    payload: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class SelectBucket(Body):
    bucket: bytes


@dataclass(frozen=True, slots=True)
class GetClusterConfig(Body):
    """GET_CLUSTER_CONFIG, optionally with the version that the client has."""

    epoch: int | None = None
    rev: int | None = None


@dataclass(frozen=True, slots=True)
class GetErrorMap(Body):
    version: int
    """The highest version that the client can read."""


@dataclass(frozen=True, slots=True)
class ClustermapNotification(Body):
    """The server announces a new map. Old servers send ``rev`` without ``epoch``."""

    bucket: bytes
    config: bytes = b""
    """Empty in the brief form."""
    epoch: int | None = None
    rev: int = 0


@dataclass(frozen=True, slots=True)
class Stat(Body):
    """STAT: a group, with an optional JSON argument."""

    group: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class StatAnswer(Body):
    """One statistic; the last answer has neither key nor value."""

    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class GetId(Body):
    """GET_COLLECTION_ID and GET_SCOPE_ID."""

    path: bytes = b""
    """Such as ``inventory.airport``."""


@dataclass(frozen=True, slots=True)
class IdAnswer(Body):
    """The id of a collection or scope in the manifest ``manifest_uid``."""

    manifest_uid: int
    collection_id: int


@dataclass(frozen=True, slots=True)
class IoctlGet(Body):
    name: bytes


@dataclass(frozen=True, slots=True)
class IoctlSet(Body):
    name: bytes
    value: bytes = b""


# --- seqnos ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GetAllVbSeqnos(Body):
    """GET_ALL_VB_SEQNOS, optionally limited to a vbucket state and a collection."""

    state: int | None = None
    collection: int | None = None


@dataclass(frozen=True, slots=True)
class AllVbSeqnos(Body):
    seqnos: tuple[tuple[int, int], ...]
    """Pairs (vbucket, high seqno), ascending by vbucket."""


@dataclass(frozen=True, slots=True)
class ObserveSeqno(Body):
    vb_uuid: int


@dataclass(frozen=True, slots=True)
class ObserveSeqnoAnswer(Body):
    """Persisted and current seqno; format 1 follows a failover and has the old branch's end too."""

    format: int
    vb: int
    vb_uuid: int
    persisted: int
    current: int
    old_uuid: int | None = None
    last_seqno_old: int | None = None


@dataclass(frozen=True, slots=True)
class SeqnoPersistence(Body):
    """SEQNO_PERSISTENCE: the server answers when ``seqno`` is on disk."""

    seqno: int


@dataclass(frozen=True, slots=True)
class FailoverLogAnswer(Body):
    """Answers STREAM_REQ, DCP_GET_FAILOVER_LOG and GET_FAILOVER_LOG."""

    entries: tuple[FailoverEntry, ...]
    """As sent: newest first."""


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

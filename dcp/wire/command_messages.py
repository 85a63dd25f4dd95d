"""Bodies of commands and their answers: documents, connection set-up, seqnos.

Field names are those of kv_engine ``docs/BinaryProtocol.md``; seqnos and uuids are unsigned 64-bit,
expiry is in seconds.
"""

from dataclasses import dataclass, field

from dcp.types import FailoverEntry
from dcp.wire.body import Body

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
    """HELLO: the client's name and the features it asks for."""

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


@dataclass(frozen=True, slots=True)
class IoctlGet(Body):
    """IOCTL_GET: a question to the server itself."""

    name: bytes


@dataclass(frozen=True, slots=True)
class IoctlSet(Body):
    """IOCTL_SET: an order to the server itself."""

    name: bytes
    value: bytes = b""


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

"""Bodies of commands and their answers: documents, connection set-up, seqnos.

Field names come from kv_engine ``docs/BinaryProtocol.md``. Seqnos and uuids are unsigned 64-bit.
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

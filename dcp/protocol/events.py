"""The events of a consumer connection: one frozen dataclass per kind.

Of one received block the rows (``Items``) come first, then the events of each stream in wire order.
So a ``SnapshotCompleted`` follows its rows. ``ItemFrames`` stand in wire order among the other
events of their stream.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcp.protocol.position import Position
from dcp.types import FailoverLog, SnapshotRange
from dcp.wire.system_event import ManifestEvent
from dcp.wire.vocabulary import Status

if TYPE_CHECKING:  # numpy and pyarrow are slow to load, and not all users of events need them
    from dcp.wire.columns import DataColumns


@dataclass(frozen=True, slots=True)
class Event:
    pass


@dataclass(frozen=True, slots=True)
class Ready(Event):
    """The bootstrap is done: streams may be opened."""

    features: frozenset[int]
    """The features that the server granted."""
    cluster_config: bytes
    refused_controls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowRefused(Event):
    """The producer refuses another window; the old one stays."""

    asked_bytes: int
    detail: str


@dataclass(frozen=True, slots=True)
class StreamOpened(Event):
    """The producer accepted a stream request, with the failover log that belongs to its data."""

    vbucket: int
    failover_log: FailoverLog


@dataclass(frozen=True, slots=True)
class StreamRefused(Event):
    """The producer refused a stream request, but ordered no rollback."""

    vbucket: int
    status: int
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class StreamRejected(Event):
    """The answer to a stream request is impossible, so the vbucket has no stream.

    If the producer had accepted, the stream is being closed.
    """

    vbucket: int
    detail: str
    """The found and the expected answer."""


@dataclass(frozen=True, slots=True)
class RollbackOrdered(Event):
    """The producer's history differs from ours: go back to ``seqno`` or lower, and ask again."""

    vbucket: int
    requested: Position
    seqno: int


@dataclass(frozen=True, slots=True, eq=False)
class Items(Event):
    """Mutations, deletions and expirations of one block, of all its vbuckets, in wire order."""

    columns: "DataColumns"


@dataclass(frozen=True, slots=True, eq=False)
class ItemFrames(Event):
    """The items of one stream, as whole frames, in wire order.

    Items are mutations, deletions, expirations, system events, and sync-write messages if
    requested.
    """

    vbucket: int
    frames: tuple[memoryview, ...]
    """Views into the received block."""


@dataclass(frozen=True, slots=True)
class SnapshotStarted(Event):
    """A marker arrived, but none of its items yet."""

    vbucket: int
    snapshot: SnapshotRange
    flags: int
    purge_seqno: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotCompleted(Event):
    """The stream reached the snapshot's end: rows up to ``seqno`` may be published."""

    vbucket: int
    seqno: int


@dataclass(frozen=True, slots=True)
class StreamAdvanced(Event):
    """The stream has reached ``seqno`` without an item for this consumer."""

    vbucket: int
    seqno: int


@dataclass(frozen=True, slots=True)
class SystemEventReceived(Event):
    """A collection or scope was created, dropped, flushed or modified."""

    vbucket: int
    seqno: int
    event: int
    version: int
    name: bytes
    value: bytes
    meaning: ManifestEvent | None = None
    """None for kinds that this code does not know; they delete no documents."""


@dataclass(frozen=True, slots=True)
class VbucketStateSet(Event):
    """A takeover stream set the vbucket's state on the consumer's side."""

    vbucket: int
    state: int
    """A ``VbucketState``."""


@dataclass(frozen=True, slots=True)
class StreamEnded(Event):
    """The producer ended the stream."""

    vbucket: int
    reason: int
    """An ``EndReason``."""


@dataclass(frozen=True, slots=True)
class ClusterConfigReceived(Event):
    """A cluster map arrived: asked for, pushed, or in the body of NOT_MY_VBUCKET."""

    config: bytes


@dataclass(frozen=True, slots=True)
class SeqnosReceived(Event):
    """Answer to GET_ALL_VB_SEQNOS."""

    seqnos: tuple[tuple[int, int], ...]
    """Pairs (vbucket, high seqno)."""


@dataclass(frozen=True, slots=True)
class ManifestReceived(Event):
    """Answer to GET_COLLECTIONS_MANIFEST."""

    manifest: bytes | None
    """JSON; None if the bucket has no collections."""


@dataclass(frozen=True, slots=True)
class FailoverLogReceived(Event):
    """Answer to GET_FAILOVER_LOG."""

    vbucket: int
    failover_log: FailoverLog | None
    """None if the node lacks the vbucket, or with a ``fault``."""
    status: int = Status.SUCCESS
    fault: str = ""
    """The refusal, or the fault of an impossible failover log; says found and expected."""


@dataclass(frozen=True, slots=True)
class PersistenceReceived(Event):
    """Answer to OBSERVE_SEQNO."""

    vbucket: int
    persisted_seqno: int | None
    """The branch's highest seqno on this node's disk; None if the node lacks vbucket or branch.

    Of a branch that a failover ended, only seqnos in the node's own history count."""


@dataclass(frozen=True, slots=True)
class StreamWindowChanged(Event):
    """Answer to a new size of the streams' windows. With another status than SUCCESS the old size
    stays.
    """

    window_bytes: int
    status: int


@dataclass(frozen=True, slots=True)
class StreamClosed(Event):
    """The producer answered our CLOSE_STREAM, or later sent the STREAM_END after it.

    A closed stream has no ``StreamEnded``. The vbucket's next stream may be requested after the
    first event, and a ``StreamEnded`` would seem to end that one.
    """

    vbucket: int

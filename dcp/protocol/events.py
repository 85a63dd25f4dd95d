"""The events of the consumer machine: one frozen dataclass per kind.

Events of one received block come in this order: first the rows (``Items``), then what happened to
each stream, in its wire order. A ``SnapshotCompleted`` therefore always comes after its rows. Where
the machine hands out frames (``ItemFrames``) there are no ``Items``: they stand in wire order with
the other events of their stream.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcp.protocol.position import Position
from dcp.types import FailoverLog, SnapshotRange
from dcp.wire.system_event import ManifestEvent
from dcp.wire.vocabulary import Status

if TYPE_CHECKING:  # numpy and pyarrow load only where columns are really used
    from dcp.wire.columns import DataColumns


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class Ready(Event):
    """Bootstrap is done: streams may be opened. ``features`` are those the server granted."""

    features: frozenset[int]
    cluster_config: bytes
    refused_controls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowRefused(Event):
    """The producer does not take another window: the one that it has stays."""

    asked_bytes: int
    detail: str


@dataclass(frozen=True, slots=True)
class StreamOpened(Event):
    """A stream request was accepted, with the failover log that belongs to its data."""

    vbucket: int
    failover_log: FailoverLog


@dataclass(frozen=True, slots=True)
class StreamRefused(Event):
    """A stream request was refused for a reason other than a rollback."""

    vbucket: int
    status: int
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class StreamRejected(Event):
    """The answer to a stream request cannot be true, so the vbucket has no stream.

    Where it was an acceptance, the stream is being closed. ``detail`` says found and expected.
    """

    vbucket: int
    detail: str


@dataclass(frozen=True, slots=True)
class RollbackOrdered(Event):
    """The producer's history differs from ours: go back to ``seqno`` at most, and ask again."""

    vbucket: int
    requested: Position
    seqno: int


@dataclass(frozen=True, slots=True, eq=False)
class Items(Event):
    """Mutations, deletions and expirations of one block, of any vbuckets, in wire order."""

    columns: "DataColumns"


@dataclass(frozen=True, slots=True, eq=False)
class ItemFrames(Event):
    """The items of one stream, as whole frames, in wire order.

    These are mutations, deletions, expirations, system events, and the messages of sync writes
    where they were requested. The frames are views into the received block.
    """

    vbucket: int
    frames: tuple[memoryview, ...]


@dataclass(frozen=True, slots=True)
class SnapshotStarted(Event):
    """A marker came into force. No item of it has been seen yet (it is pending until then)."""

    vbucket: int
    snapshot: SnapshotRange
    flags: int
    purge_seqno: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotCompleted(Event):
    """The end of the snapshot in force was reached: all rows up to ``seqno`` may be published."""

    vbucket: int
    seqno: int


@dataclass(frozen=True, slots=True)
class StreamAdvanced(Event):
    """The stream is at ``seqno``; there was nothing for us up to here."""

    vbucket: int
    seqno: int


@dataclass(frozen=True, slots=True)
class SystemEventReceived(Event):
    """A collection or scope was created, dropped, flushed or modified.

    ``meaning`` is None for kinds that are newer than we are; they end no documents.
    """

    vbucket: int
    seqno: int
    event: int
    version: int
    name: bytes
    value: bytes
    meaning: ManifestEvent | None = None


@dataclass(frozen=True, slots=True)
class VbucketStateSet(Event):
    """A takeover stream told which state (``VbucketState``) the vbucket has here from now on."""

    vbucket: int
    state: int


@dataclass(frozen=True, slots=True)
class StreamEnded(Event):
    """The producer ended the stream (``EndReason``)."""

    vbucket: int
    reason: int


@dataclass(frozen=True, slots=True)
class ClusterConfigReceived(Event):
    """A cluster map arrived: asked for, pushed, or in the body of NOT_MY_VBUCKET."""

    config: bytes


@dataclass(frozen=True, slots=True)
class SeqnosReceived(Event):
    """Answer to GET_ALL_VB_SEQNOS: (vbucket, high seqno) pairs."""

    seqnos: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ManifestReceived(Event):
    """Answer to GET_COLLECTIONS_MANIFEST: JSON; None where the bucket has no collections."""

    manifest: bytes | None


@dataclass(frozen=True, slots=True)
class FailoverLogReceived(Event):
    """Answer to GET_FAILOVER_LOG; None where the vbucket is not on this node, or with a ``fault``.

    ``fault`` says found and expected: of a refusal (then ``status`` is its), or of a log that
    cannot be true.
    """

    vbucket: int
    failover_log: FailoverLog | None
    status: int = Status.SUCCESS
    fault: str = ""


@dataclass(frozen=True, slots=True)
class PersistenceReceived(Event):
    """Answer to OBSERVE_SEQNO: how far a branch of a vbucket is on this node's disk.

    Of a branch that a failover ended, no further than it is part of the node's own history. None
    where the vbucket or the branch is not on this node.
    """

    vbucket: int
    persisted_seqno: int | None


@dataclass(frozen=True, slots=True)
class StreamWindowChanged(Event):
    """Answer to a new size of the streams' windows; with another status than success nothing is."""

    window_bytes: int
    status: int


@dataclass(frozen=True, slots=True)
class StreamClosed(Event):
    """The producer answered our CLOSE_STREAM; again, where its STREAM_END comes after that.

    Of a stream that we closed there is no ``StreamEnded``: the next stream of the vbucket may be
    requested when the first of these is read, and the second must not seem to be that one's end.
    """

    vbucket: int

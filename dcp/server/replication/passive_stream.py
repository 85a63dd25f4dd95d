"""Applies the events of one DCP stream to a replica, as kv_engine's PassiveStream does.

``ConsumerConnection`` (``dcp/protocol``) sends the requests, checks the order of messages and
answers them. This class changes the replica:

    StreamOpened      the replica takes over the active's failover log
    RollbackOrdered   the replica rolls back; the caller requests the stream again
    SnapshotStarted   a snapshot begins, or continues the unfinished one
    ItemFrames        the replica stores the items; each is a frame in the format on disk
    StreamAdvanced    the active has no further item up to this seqno
    VbucketStateSet   a takeover: the active orders the replica's next state

If the replica rejects an event that the connection accepted, the peer has violated the protocol.
Sources: kv_engine ``engines/ep/src/dcp/passive_stream.cc``, ``engines/ep/src/dcp/consumer.cc``.
"""

from typing import Final

from dcp.errors import FrameError, LocalProtocolError, RemoteProtocolError
from dcp.protocol.events import (
    ItemFrames,
    RollbackOrdered,
    SnapshotStarted,
    StreamAdvanced,
    StreamEnded,
    StreamOpened,
    StreamRefused,
    StreamRejected,
    VbucketStateSet,
)
from dcp.protocol.position import Position
from dcp.server.storage.stored_items import version_of
from dcp.server.vbucket.replica import Replica
from dcp.types import FailoverLog
from dcp.wire.vocabulary import Opcode, OpenFlag, StreamFlag

StreamEvent = (
    StreamOpened
    | StreamRefused
    | StreamRejected
    | RollbackOrdered
    | SnapshotStarted
    | ItemFrames
    | StreamAdvanced
    | VbucketStateSet
    | StreamEnded
)
"""Events of a stream that this side has not closed."""

OPEN_FLAGS: Final = int(
    OpenFlag.PRODUCER
    | OpenFlag.INCLUDE_XATTRS
    | OpenFlag.INCLUDE_DELETE_TIMES
    | OpenFlag.INCLUDE_DELETED_USER_XATTRS
)
"""With these flags a producer sends items exactly as the disk keeps them."""

_EXTRAS_BYTES: Final = {
    Opcode.DCP_MUTATION: 31,
    Opcode.DCP_DELETION: 21,
    Opcode.DCP_EXPIRATION: 20,
    Opcode.DCP_SYSTEM_EVENT: 13,
    Opcode.DCP_PREPARE: 31,
    Opcode.DCP_ABORT: 16,
}
"""Length of each item's extras on a connection opened with ``OPEN_FLAGS``."""


class PassiveStream:
    """A stream into one replica; it may change it only as ``Replica.passive_stream``."""

    def __init__(self, replica: Replica, *, takes_over: bool = False) -> None:
        self.replica = replica
        self.vbucket = replica.vbucket.id
        self.opaque = 0
        """The opaque of the stream request; each message of the stream repeats it."""
        self.takes_over = takes_over
        """True if the replica is to replace the active (a takeover stream of a rebalance)."""
        self.is_open = False
        """True from the producer's acceptance until the stream ends."""
        self.is_over = False
        self.state: int | None = None
        """The state that the active ordered in a takeover; None until then."""
        self._rolled_back = False
        self._forked = False
        self._received_bytes = 0
        self._acknowledged_seqno = 0
        self._snapshot_end = 0

    def take_charge(self) -> None:
        self.replica.fill_from(self)

    @property
    def is_in_charge(self) -> bool:
        return self.replica.passive_stream is self

    @property
    def flags(self) -> StreamFlag:
        active_only = StreamFlag.ACTIVE_VB_ONLY
        return active_only | StreamFlag.TAKEOVER if self.takes_over else active_only

    @property
    def position(self) -> Position:
        """The position to resume from, for the stream request."""
        replica = self.replica
        failover_log = replica.vbucket.failover_log
        seqno, snapshot = replica.high_seqno, replica.snapshot
        if replica.is_complete:
            return Position.complete_at(failover_log.uuid_at(seqno), seqno)
        # The replica ends inside a snapshot. Its items up to here are no state that the active ever
        # had, so the request names the snapshot's bounds: after a failover the producer decides how
        # far to roll back.
        start = min(snapshot.start, replica.complete_seqno)
        uuid = failover_log.uuid_at(snapshot.end)
        return Position(uuid, seqno, start, snapshot.end, replica.complete_seqno)

    def next_acknowledgement(self) -> int | None:
        """Return a seqno to acknowledge to the active, each once; None if there is no new one.

        A new stream starts at 0, so it repeats what an older stream acknowledged.
        """
        seqno = self.replica.acknowledged_seqno
        if not self.is_open or seqno <= self._acknowledged_seqno:
            return None
        self._acknowledged_seqno = seqno
        return seqno

    def take_rollback(self) -> bool:
        """Return True once after each rollback of the replica."""
        rolled_back, self._rolled_back = self._rolled_back, False
        return rolled_back

    def take_fork(self) -> bool:
        """Return True once after the stream was accepted on another branch than the replica had."""
        forked, self._forked = self._forked, False
        return forked

    def count(self, frame_bytes: int) -> None:
        self._received_bytes += frame_bytes

    def take_bytes(self) -> int:
        """Return the number of received bytes since the last call."""
        received_bytes, self._received_bytes = self._received_bytes, 0
        return received_bytes

    def asked(self, opaque: int) -> None:
        self.opaque = opaque

    def end(self) -> None:
        self.is_open, self.is_over = False, True
        # A newer stream may fill the replica already.
        if self.is_in_charge:
            self.replica.fill_from(None)

    def take(self, event: StreamEvent) -> None:
        """Apply an event to the replica.

        Raises RemoteProtocolError if the replica rejects it.
        """
        try:
            self._take(event)
        except (FrameError, LocalProtocolError, ValueError) as error:
            raise RemoteProtocolError(f"vbucket {self.vbucket}: {error}") from error

    def _take(self, event: StreamEvent) -> None:
        match event:
            case StreamOpened():
                self.is_open = True
                self._forked = self._is_other_branch(event.failover_log)
                self.replica.take_failover_log(event.failover_log)
            case RollbackOrdered():
                self.replica.roll_back(event.seqno)
                self._rolled_back = True
            case SnapshotStarted():
                self.replica.begin_snapshot(event.snapshot, event.flags, event.purge_seqno)
                self._snapshot_end = event.snapshot.end
            case ItemFrames():
                for frame in event.frames:
                    self._item(frame)
            case StreamAdvanced():
                self._advance(event.seqno)
            case VbucketStateSet():
                self.state = event.state
            case StreamEnded() | StreamRefused() | StreamRejected():
                self.end()

    def _is_other_branch(self, failover_log: FailoverLog) -> bool:
        if not self.replica.has_failover_log:
            return False
        return self.replica.vbucket.failover_log.current_uuid != failover_log.current_uuid

    def _item(self, frame: memoryview) -> None:
        # The frame goes to disk as it is, so its layout must be the disk's.
        opcode, extras_bytes = frame[1], frame[4]
        expected = _EXTRAS_BYTES.get(Opcode(opcode))
        if extras_bytes != expected:
            raise RemoteProtocolError(
                f"vbucket {self.vbucket}: found {Opcode(opcode).name} with {extras_bytes} bytes of "
                f"extras, expected {'none' if expected is None else expected}"
            )
        self.replica.receive(version_of(frame))

    def _advance(self, seqno: int) -> None:
        # Items still follow inside the snapshot, and they move the high seqno themselves.
        if seqno > self.replica.high_seqno and seqno >= self._snapshot_end:
            self.replica.advance_to(seqno)

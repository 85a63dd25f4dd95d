"""Fills a copy of a vbucket from the stream of the node that is active.

The stream itself is the consumer machine's (``dcp/protocol``): it asks, checks the order of what
comes and answers. Here its events change the copy:

    StreamOpened      the copy takes the active's failover log
    RollbackOrdered   the copy goes back; the stream is asked for again
    SnapshotStarted   a snapshot begins in the copy, or takes the last one's place
    ItemFrames        the copy receives the items, each a frame as a disk keeps it
    StreamAdvanced     nothing more comes up to there: the copy's snapshot may end
    VbucketStateSet   a takeover: what the copy is to be

An event that the copy cannot apply, though the machine accepted it, is a violation of the peer's,
too. Sources: kv_engine ``engines/ep/src/dcp/passive_stream.cc``,
``engines/ep/src/dcp/consumer.cc``.
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
from dcp.server.vbucket.replica_copy import ReplicaCopy
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
"""What the machine tells of a stream that was not closed."""

OPEN_FLAGS: Final = int(
    OpenFlag.PRODUCER
    | OpenFlag.INCLUDE_XATTRS
    | OpenFlag.INCLUDE_DELETE_TIMES
    | OpenFlag.INCLUDE_DELETED_USER_XATTRS
)
"""With these a producer sends items as a disk keeps them."""

_EXTRAS_BYTES: Final = {
    Opcode.DCP_MUTATION: 31,
    Opcode.DCP_DELETION: 21,
    Opcode.DCP_EXPIRATION: 20,
    Opcode.DCP_SYSTEM_EVENT: 13,
    Opcode.DCP_PREPARE: 31,
    Opcode.DCP_ABORT: 16,
}
"""Of items on a connection that asked for the times of deletions, as a disk keeps them."""


class PassiveStream:
    """A stream into ``copy``, which it fills once it is in charge. ``opaque`` is its messages'.

    With ``takes_over`` the copy is to become the vbucket: ``state`` is what it was told to be.
    """

    def __init__(self, copy: ReplicaCopy, *, takes_over: bool = False) -> None:
        self.copy = copy
        self.vbucket = copy.vbucket.id
        self.opaque = 0
        self.takes_over = takes_over
        self.is_open = False
        """True if it was accepted, and is not over."""
        self.is_over = False
        self.state: int | None = None
        self._rolled_back = False
        self._acknowledged_seqno = 0
        self._snapshot_end = 0

    def take_charge(self) -> None:
        """Become the only stream that fills the copy."""
        self.copy.fill_from(self)

    @property
    def is_in_charge(self) -> bool:
        """True if this stream is still the one that fills the copy."""
        return self.copy.feeder is self

    @property
    def flags(self) -> StreamFlag:
        """The flags of the stream request."""
        active_only = StreamFlag.ACTIVE_VB_ONLY
        return active_only | StreamFlag.TAKEOVER if self.takes_over else active_only

    @property
    def position(self) -> Position:
        """The copy's position, after which items are requested."""
        copy = self.copy
        log, seqno, snapshot = copy.vbucket.failover_log, copy.high_seqno, copy.snapshot
        if copy.is_consistent:
            return Position.complete_at(log.uuid_at(seqno), seqno)
        start = min(snapshot.start, copy.consistent_seqno)
        uuid = log.uuid_at(snapshot.end)
        return Position(uuid, seqno, start, snapshot.end, copy.consistent_seqno)

    def next_acknowledgement(self) -> int | None:
        """Return the prepare to acknowledge, once; None without a new one.

        A copy that was there before its stream says again how far it is.
        """
        seqno = self.copy.acknowledged_seqno
        if not self.is_open or seqno <= self._acknowledged_seqno:
            return None
        self._acknowledged_seqno = seqno
        return seqno

    def take_rollback(self) -> bool:
        """Return whether the copy went back since the last time."""
        rolled_back, self._rolled_back = self._rolled_back, False
        return rolled_back

    def asked(self, opaque: int) -> None:
        """Note that it was asked for; its messages have this opaque."""
        self.opaque = opaque

    def end(self) -> None:
        """End the stream: it was closed, or the connection is over."""
        self.is_open, self.is_over = False, True
        if self.is_in_charge:
            self.copy.fill_from(None)

    def take(self, event: StreamEvent) -> None:
        """Apply an event of the stream to the copy.

        Raises:
            RemoteProtocolError: the copy cannot take it.
        """
        try:
            self._take(event)
        except (FrameError, LocalProtocolError, ValueError) as error:
            raise RemoteProtocolError(f"vbucket {self.vbucket}: {error}") from error

    def _take(self, event: StreamEvent) -> None:
        match event:
            case StreamOpened():
                self.is_open = True
                self.copy.take_failover_log(event.failover_log)
            case RollbackOrdered():
                self.copy.roll_back(event.seqno)
                self._rolled_back = True
            case SnapshotStarted():
                self.copy.begin_snapshot(event.snapshot, event.flags, event.purge_seqno)
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

    def _item(self, frame: memoryview) -> None:
        opcode, extras_bytes = frame[1], frame[4]
        expected = _EXTRAS_BYTES.get(Opcode(opcode))
        if extras_bytes != expected:
            raise RemoteProtocolError(
                f"vbucket {self.vbucket}: found {Opcode(opcode).name} with {extras_bytes} bytes of "
                f"extras, expected {'none' if expected is None else expected}"
            )
        self.copy.receive(version_of(frame))

    def _advance(self, seqno: int) -> None:
        """Advance; inside a snapshot to its end only: earlier items carry their own seqnos."""
        if seqno > self.copy.high_seqno and seqno >= self._snapshot_end:
            self.copy.advance_to(seqno)

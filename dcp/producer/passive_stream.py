"""The receiving end of one vbucket's stream: how a copy is filled by the node that is active.

    phase        event          next phase
    REQUESTED    ACCEPTED       READING      (the copy takes the active's failover log)
    REQUESTED    ROLLED_BACK    REQUESTED    (the copy went back and asks again)
    REQUESTED    REFUSED        ENDED
    READING      MARKER         RECEIVING
    RECEIVING    MARKER         RECEIVING    (it takes the last one's place)
    RECEIVING    ITEM           RECEIVING
    RECEIVING    LAST           READING      (the snapshot is whole)
    READING      ADVANCED       READING      (a snapshot of its own)
    READING      STATE          READING      (of a takeover)
    all          END            ENDED

What does not fit is refused with a status, as a replica of kv_engine does, and changes nothing: an
item or marker that is not above what was received (ERANGE), an item before its marker (ERANGE), a
message of another vbucket or that no stream has (EINVAL). Sources: kv_engine
``engines/ep/src/dcp/passive_stream.cc``, ``engines/ep/src/dcp/consumer.cc``.
"""

from enum import Enum
from typing import Final

from dcp.errors import FrameError, LocalProtocolError, RemoteProtocolError
from dcp.producer.replica_copy import ReplicaCopy
from dcp.producer.stored_items import version_of
from dcp.types import END_OF_TIME, FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import parse_frame
from dcp.wire.vocabulary import Opcode, SnapshotFlag, Status, StreamFlag

_ITEMS: Final = frozenset(
    {
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_PREPARE,
        Opcode.DCP_ABORT,
    }
)


class PassivePhase(Enum):
    """What the stream waits for."""

    REQUESTED = "an answer to its request"
    READING = "a marker"
    RECEIVING = "items of a snapshot"
    ENDED = "nothing"


class _Event(Enum):
    ACCEPTED = "accepted"
    ROLLED_BACK = "rolled back"
    REFUSED = "refused"
    MARKER = "marker"
    ITEM = "item"
    LAST = "last item"
    ADVANCED = "seqno advanced"
    STATE = "state"
    END = "end"


_NEXT: Final = {
    (PassivePhase.REQUESTED, _Event.ACCEPTED): PassivePhase.READING,
    (PassivePhase.REQUESTED, _Event.ROLLED_BACK): PassivePhase.REQUESTED,
    (PassivePhase.REQUESTED, _Event.REFUSED): PassivePhase.ENDED,
    (PassivePhase.REQUESTED, _Event.END): PassivePhase.ENDED,
    (PassivePhase.READING, _Event.MARKER): PassivePhase.RECEIVING,
    (PassivePhase.READING, _Event.ADVANCED): PassivePhase.READING,
    (PassivePhase.READING, _Event.STATE): PassivePhase.READING,
    (PassivePhase.READING, _Event.END): PassivePhase.ENDED,
    (PassivePhase.RECEIVING, _Event.MARKER): PassivePhase.RECEIVING,
    (PassivePhase.RECEIVING, _Event.ITEM): PassivePhase.RECEIVING,
    (PassivePhase.RECEIVING, _Event.LAST): PassivePhase.READING,
    (PassivePhase.RECEIVING, _Event.END): PassivePhase.ENDED,
}


class MessageRefusedError(RemoteProtocolError):
    """A message that does not fit; ``status`` is what the sender is answered."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class PassiveStream:
    """A stream into ``copy``, which it fills once it is in charge. ``opaque`` is its number.

    With ``takes_over`` the copy is to become the vbucket: ``state`` is what it was told to be.
    """

    def __init__(self, copy: ReplicaCopy, opaque: int, *, takes_over: bool = False) -> None:
        self.copy = copy
        self.vbucket = copy.vbucket.id
        self.opaque = opaque
        self.takes_over = takes_over
        self.phase = PassivePhase.REQUESTED
        self.state: int | None = None
        self.rolled_back = False
        self.acknowledged_seqno = 0
        self._snapshot_end = 0
        self._marker_wants_answer = False

    def take_charge(self) -> None:
        """Let nobody else fill the copy from now on."""
        self.copy.feeder = self

    @property
    def is_in_charge(self) -> bool:
        """Whether the copy is still this stream's to fill."""
        return self.copy.feeder is self

    def request(self) -> m.StreamRequest:
        """Return what to ask for: what comes after what the copy holds."""
        copy = self.copy
        flags = StreamFlag.ACTIVE_VB_ONLY
        if self.takes_over:
            flags |= StreamFlag.TAKEOVER
        start, snapshot = copy.high_seqno, copy.snapshot
        vb_uuid = copy.vbucket.failover_log.current_uuid if copy.has_history and start else 0
        snap_start = min(snapshot.start, start)
        return m.StreamRequest(int(flags), start, END_OF_TIME, vb_uuid, snap_start, snapshot.end)

    def answered(self, status: int, body: m.Body) -> None:
        """Take the answer; still ``REQUESTED`` then, ``request`` must be sent again.

        Raises:
            MessageRefusedError: an answer that nobody waits for, or of another kind.
        """
        if status == Status.SUCCESS and isinstance(body, m.FailoverLogAnswer):
            self._on(_Event.ACCEPTED)
            self.copy.take_log(FailoverLog(body.entries))
        elif status == Status.ROLLBACK and isinstance(body, m.RollbackAnswer):
            self._on(_Event.ROLLED_BACK)
            self.copy.roll_back(body.rollback_seqno)
            self.rolled_back = True
        else:
            self._on(_Event.REFUSED)

    def next_acknowledgement(self) -> int | None:
        """Return the prepare to acknowledge, once; None where there is nothing new to say.

        A copy that was there before its stream says again how far it is.
        """
        if self.phase not in (PassivePhase.READING, PassivePhase.RECEIVING):
            return None
        seqno = self.copy.acknowledged_seqno
        if seqno <= self.acknowledged_seqno:
            return None
        self.acknowledged_seqno = seqno
        return seqno

    def end(self) -> None:
        """Be over, as the connection is, or the stream was closed."""
        if self.phase is not PassivePhase.ENDED:
            self._on(_Event.END)
        if self.is_in_charge:
            self.copy.feeder = None

    def feed(self, raw: bytes | memoryview) -> list[int]:
        """Take one message of the stream, a whole frame; return the opcodes to answer success.

        Raises:
            MessageRefusedError: it does not fit; the stream and the copy are as they were.
        """
        opcode = raw[1]
        vbucket = int.from_bytes(raw[6:8])
        if vbucket != self.vbucket:
            raise self._refusal(Status.EINVAL, f"a message of vbucket {vbucket}", "its own")
        try:
            if opcode in _ITEMS:
                return self._item(raw)
            return self._message(decode(parse_frame(bytes(raw))))
        except (FrameError, ValueError) as error:
            raise MessageRefusedError(Status.EINVAL, f"vbucket {self.vbucket}: {error}") from error

    def _message(self, body: m.Body) -> list[int]:
        match body:
            case m.SnapshotMarker():
                return self._marker(body)
            case m.SeqnoAdvanced(seqno):
                return self._advanced(seqno)
            case m.SetVbucketState(state) if self.takes_over:
                self._on(_Event.STATE)
                self.state = state
                return [Opcode.DCP_SET_VBUCKET_STATE]
            case m.StreamEnd():
                self.end()
                return []
        raise self._refusal(Status.EINVAL, type(body).__name__, "a message of a stream")

    def _marker(self, marker: m.SnapshotMarker) -> list[int]:
        self._require(_Event.MARKER)
        try:
            self.copy.begin_snapshot(marker)
        except LocalProtocolError as error:
            raise MessageRefusedError(Status.ERANGE, str(error)) from error
        self._on(_Event.MARKER)
        self._snapshot_end = marker.end
        self._marker_wants_answer = bool(marker.flags & SnapshotFlag.ACK)
        return []

    def _item(self, raw: bytes | memoryview) -> list[int]:
        if self.phase is not PassivePhase.RECEIVING:
            self._require(_Event.ITEM)
        version = version_of(raw)
        try:
            self.copy.receive(version)
        except LocalProtocolError as error:
            raise MessageRefusedError(Status.ERANGE, str(error)) from error
        return self._reached(version.seqno)

    def _advanced(self, seqno: int) -> list[int]:
        inside = self.phase is PassivePhase.RECEIVING
        if inside and not self.copy.high_seqno < seqno <= self._snapshot_end:
            expected = f"{self.copy.high_seqno + 1} to {self._snapshot_end}"
            raise self._refusal(Status.ERANGE, f"seqno advanced to {seqno}", expected)
        if inside and seqno < self._snapshot_end:
            return []  # items are still to come, and say themselves where they are
        self._require(_Event.ITEM if inside else _Event.ADVANCED)
        try:
            self.copy.advance_to(seqno)
        except LocalProtocolError as error:
            raise MessageRefusedError(Status.ERANGE, str(error)) from error
        return self._reached(seqno) if inside else []

    def _reached(self, seqno: int) -> list[int]:
        if seqno != self._snapshot_end:
            self._on(_Event.ITEM)
            return []
        self._on(_Event.LAST)
        return [Opcode.DCP_SNAPSHOT_MARKER] if self._marker_wants_answer else []

    def _require(self, event: _Event) -> None:
        if (self.phase, event) not in _NEXT:
            raise self._refusal(Status.ERANGE, event.value, self.phase.value)

    def _on(self, event: _Event) -> None:
        self._require(event)
        self.phase = _NEXT[self.phase, event]

    def _refusal(self, status: Status, found: str, expected: str) -> MessageRefusedError:
        return MessageRefusedError(
            status, f"vbucket {self.vbucket}, passive stream: found {found}, expected {expected}"
        )

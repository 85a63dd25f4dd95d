"""The window of the relay's connection to a node: what came, is held, and is acknowledged.

What a stream brought is *lent* to its vbucket until nobody is waited for with it any more. Then it
is *withheld* until the disk keeps up: what is in memory only counts as held, also of streams that
are over. What a vbucket gives back beyond what it was lent frees nothing, least of all what other
vbuckets hold, and whoever released it is told.
"""

from collections import Counter

from dcp.protocol.outgoing import Outgoing
from dcp.protocol.window import FlowControl, FlowSettings
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode


class UpstreamWindow:
    """The window, what vbuckets hold of it, and what waits for the disk only."""

    def __init__(self, window_bytes: int, outgoing: Outgoing, now: float) -> None:
        self._flow = FlowControl(FlowSettings(window_bytes), now)
        self._outgoing = outgoing
        self._lent: Counter[int] = Counter()
        self.withheld_bytes = 0

    @property
    def settings(self) -> FlowSettings:
        """Its size, and when it is acknowledged."""
        return self._flow.settings

    @property
    def unacked_bytes(self) -> int:
        """What the node counts as outstanding, as far as we know."""
        return self._flow.connection.unacked_bytes

    @property
    def held_bytes(self) -> int:
        """What was received and not released."""
        return self._flow.connection.held_bytes

    @property
    def is_full(self) -> bool:
        """Whether the node sends nothing more until something is acknowledged."""
        return self._flow.connection.is_full

    @property
    def acknowledged_bytes(self) -> int:
        """What was acknowledged."""
        return self._flow.connection.acknowledged

    @property
    def acks(self) -> int:
        """How many acknowledgements were sent."""
        return self._flow.connection.acks

    def receive(self, frame_bytes: int, now: float) -> None:
        """Count what came."""
        self._flow.receive(frame_bytes, now)

    def release(self, frame_bytes: int, now: float) -> None:
        """Be done with bytes that came; acknowledge when it is time."""
        self._flow.release([(self._flow.connection, frame_bytes)])
        self.acknowledge(now)

    def lend(self, vbucket: int, frame_bytes: int) -> None:
        """Let a vbucket hold bytes that came."""
        self._lent[vbucket] += frame_bytes

    def withhold(self, vbucket: int, frame_bytes: int) -> int:
        """Be done with bytes that a vbucket holds, but for the disk.

        Return how many of these it does not hold: a mistake, which frees nothing.
        """
        taken_bytes = min(frame_bytes, self._lent[vbucket])
        self._lent[vbucket] -= taken_bytes
        self.withheld_bytes += taken_bytes
        return frame_bytes - taken_bytes

    def release_withheld(self, now: float) -> None:
        """Be done with all that waited for the disk only."""
        frame_bytes, self.withheld_bytes = self.withheld_bytes, 0
        if frame_bytes:
            self.release(frame_bytes, now)

    def acknowledge(self, now: float) -> None:
        """Acknowledge what is due."""
        for _, acked_bytes in self._flow.acknowledge(now):
            self._outgoing.request(m.BufferAck(acked_bytes), Opcode.DCP_BUFFER_ACK)

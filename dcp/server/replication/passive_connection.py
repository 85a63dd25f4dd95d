"""A DCP connection to another node whose streams fill replicas, without I/O.

    streams.follow(replicas)   have a stream into exactly these replicas
    feed(block, now)           take frames from the node: see ``touched`` and ``events``
    consumed(bytes)            nobody needs so many received bytes any longer
    release(now)               the disk keeps up: acknowledge everything that was consumed
    streams.tick(now)          run the timers; ``streams.deadline`` says when

``protocol`` has the bytes to send, and the window's counters: consumed bytes are *given*, and
*released* ones may be acknowledged. Bytes of no stream count as consumed at once; the caller
reports those of streams.
"""

from collections.abc import Callable

from dcp.protocol.bootstrap import BootstrapSettings
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.credentials import Credentials
from dcp.protocol.events import Event, ItemFrames, Ready
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.window import Window
from dcp.protocol.window_policies import FlowSettings
from dcp.server.replication.passive_stream import PassiveStream, StreamEvent
from dcp.server.replication.passive_streams import PassiveStreams
from dcp.wire.framing import FrameBlock


class PassiveConnection:
    """One connection; call it with the bucket's lock held."""

    def __init__(
        self,
        bootstrap: BootstrapSettings,
        credentials: Credentials,
        nonce: str,
        now: float,
        window_bytes: int,
        liveness: LivenessSettings,
        may_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """``nonce`` is for SCRAM, and fresh for each connection.

        While ``may_open`` returns False, streams are not requested. It limits what waits for the
        disk, as the window of each connection only limits that connection.
        """
        flow = FlowSettings(window_bytes=window_bytes)
        self.protocol = ConsumerConnection(
            bootstrap, credentials, nonce, flow, liveness, hands_out_frames=True
        )
        self.protocol.start(now)
        self.protocol.count_streams()
        self.streams = PassiveStreams(self.protocol, may_open)
        self.touched: dict[int, PassiveStream] = {}
        """By vbucket: the streams to which the last block brought something.

        Valid even if ``feed`` failed half-way.
        """
        self.events: list[Event] = []
        """The block's events, except items, and those of streams that do not fill their replica."""

    @property
    def window(self) -> Window:
        return self.protocol.flow.connection

    def feed(self, block: FrameBlock, now: float) -> None:
        """Take frames.

        Raises RemoteProtocolError if a message fits no stream, and SourceError if the node refuses
        us.
        """
        self.touched, self.events = {}, []
        for event in self.protocol.receive(block, now):
            self._take(event, now)
        self._count()

    def _take(self, event: Event, now: float) -> None:
        if isinstance(event, Ready):
            self.streams.retry(now)
        stream = self.streams.filled_by(event)
        if stream is not None:
            # Of a batch of items, those before a bad one change the replica.
            self.touched[stream.vbucket] = stream
        self.streams.take(event, now)
        if stream is None and isinstance(event, StreamEvent):
            return
        if not isinstance(event, ItemFrames):
            self.events.append(event)

    def _count(self) -> None:
        unclaimed_bytes = 0
        for window, frame_bytes in self.protocol.flow.deliver():
            if window is self.window:
                window.take(frame_bytes)
                unclaimed_bytes += frame_bytes
                continue
            stream = self.streams.by_opaque(window.opaque)
            # The caller says when these bytes are consumed; those of a closed stream are, below.
            if stream is not None and stream.is_in_charge:
                stream.count(frame_bytes)
                self.touched[stream.vbucket] = stream
                unclaimed_bytes -= frame_bytes
        self.consumed(unclaimed_bytes)

    def consumed(self, frame_bytes: int) -> None:
        self.window.give(frame_bytes)

    @property
    def awaiting_disk_bytes(self) -> int:
        """Consumed bytes that only wait for the disk."""
        return self.window.given - self.window.released

    def release(self, now: float) -> None:
        """Release all consumed bytes; send an acknowledgement if one is due."""
        self.protocol.flow.release([(self.window, self.awaiting_disk_bytes)])
        self.protocol.acknowledge(now)

    def acknowledge_prepares(self, stream: PassiveStream) -> None:
        """Acknowledge the prepares that a stream's replica has stored."""
        seqno = stream.next_acknowledgement()
        if seqno is not None:
            self.protocol.acknowledge_prepares(stream.vbucket, seqno)

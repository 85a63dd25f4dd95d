"""A node's DCP connection to another one, sans-I/O: bytes and time go in, bytes come out.

    follow(copies)    have a passive stream into each of these copies, and no other
    feed(block, now)  frames of the peer
    release(now)      what was received has its place: the peer may send more
    acknowledge_…(s)  the prepares that its copy holds, when that is settled
    tick(now)         what is due by time; ``deadline`` says when to call it, busy or not
    output()          what to write next

The protocol is the consumer machine's. It signs in as the cluster's own user by SCRAM, opens DCP
with flow control and NOOPs, and asks for items as a disk keeps them, prepares and aborts too. One
connection carries all streams of two nodes. A stream that was refused or has ended is asked for
again, soon at first and then with longer waits; what fits no stream ends the connection. So does a
peer that is not ready in time, or is silent for too long.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from dcp.errors import SourceError
from dcp.protocol.bootstrap import BootstrapSettings, DcpControlRequest
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.credentials import Credentials
from dcp.protocol.events import Ready, StreamRefused
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.refusals import describe_status
from dcp.protocol.window_policies import FlowSettings
from dcp.server.replication.passive_stream import OPEN_FLAGS, PassiveStream
from dcp.server.replication.passive_streams import PassiveStreams
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.wire.framing import FrameBlock
from dcp.wire.vocabulary import HelloFeature

_FEATURES: Final = (
    HelloFeature.XATTR,
    HelloFeature.XERROR,
    HelloFeature.SELECT_BUCKET,
    HelloFeature.JSON,
    HelloFeature.SNAPPY,
    HelloFeature.COLLECTIONS,
)
_CONTROLS: Final = (
    DcpControlRequest("enable_expiry_opcode", "true", optional=False),
    DcpControlRequest("enable_sync_writes", "true", optional=False),
    DcpControlRequest("max_marker_version", "2.2", optional=False),
    DcpControlRequest("send_stream_end_on_client_close_stream", "true", optional=False),
    DcpControlRequest("change_streams", "true"),
)


class ReplicationConnection:
    """One connection; used under the bucket's lock."""

    def __init__(
        self,
        bucket: str,
        name: str,
        credentials: Credentials,
        nonce: str,
        now: float,
        window_bytes: int,
        liveness: LivenessSettings,
    ) -> None:
        """``nonce`` is SCRAM's: fresh for each connection."""
        settings = BootstrapSettings(
            bucket,
            name,
            agent="dcplake-replication",
            features=_FEATURES,
            open_flags=OPEN_FLAGS,
            controls=(DcpControlRequest("consumer_name", name, optional=False), *_CONTROLS),
        )
        flow = FlowSettings(window_bytes=window_bytes)
        self._protocol = ConsumerConnection(
            settings, credentials, nonce, flow, liveness, hands_out_frames=True
        )
        self._protocol.start(now)
        self.streams = PassiveStreams(self._protocol)

    @property
    def is_ready(self) -> bool:
        """True if streams may be requested."""
        return self._protocol.is_ready

    # --- streams

    def follow(
        self, copies: Mapping[int, ReplicaCopy], now: float, takes_over: Iterable[int] = ()
    ) -> None:
        """Fill exactly these copies, by vbucket; those of ``takes_over`` by takeover streams."""
        self.streams.follow(copies, now, takes_over)

    def close(self) -> None:
        """End all streams, as the connection is over."""
        self.streams.end()

    # --- input

    def feed(self, block: FrameBlock, now: float) -> list[PassiveStream]:
        """Act on frames; return the streams whose copies were touched, each once.

        Raises:
            RemoteProtocolError: a message that fits no stream.
            SourceError: the peer refuses us.
        """
        touched: dict[int, PassiveStream] = {}
        for event in self._protocol.receive(block, now):
            if isinstance(event, Ready):
                self.streams.retry(now)
            stream = self.streams.take(event, now)
            if stream is not None:
                touched[stream.vbucket] = stream
            if isinstance(event, StreamRefused) and stream is not None and stream.takes_over:
                raise SourceError(
                    f"takeover of vbucket {stream.vbucket}: found {describe_status(event.status)}, "
                    "expected a stream"
                )
        for window, frame_bytes in self._protocol.flow.deliver():
            window.take(frame_bytes)
        return list(touched.values())

    @property
    def held_bytes(self) -> int:
        """Bytes received and not released; with a window of them the peer sends NOOPs only."""
        return self._protocol.flow.connection.held_bytes

    def release(self, now: float) -> None:
        """Give back all that is held, so that the peer may send as much again."""
        flow, held_bytes = self._protocol.flow, self.held_bytes
        flow.connection.give(held_bytes)
        flow.release([(flow.connection, held_bytes)])
        self._protocol.acknowledge(now)

    def resize_window(self, window_bytes: int, now: float) -> None:
        """Change the window's size."""
        self._protocol.resize_window(window_bytes, now)

    def acknowledge_prepares(self, stream: PassiveStream) -> None:
        """Acknowledge the prepares of a stream's copy, after its items are settled."""
        seqno = stream.next_acknowledgement()
        if seqno is not None:
            self._protocol.acknowledge_prepares(stream.vbucket, seqno)

    # --- time

    @property
    def deadline(self) -> float:
        """The time at which ``tick`` has work to do."""
        return self.streams.deadline

    def tick(self, now: float) -> None:
        """Do what is due by time.

        Raises:
            NodeUnavailableError: the peer is silent for too long, or not ready in time.
        """
        self.streams.tick(now)

    def slept(self, now: float) -> None:
        """Restart the silence timer: we did not read until now."""
        self._protocol.excuse_silence(now)

    # --- output

    def output(self) -> bytes:
        """Return what to write."""
        return self._protocol.bytes_to_send()

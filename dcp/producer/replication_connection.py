"""A node's DCP connection to another node, without I/O: bytes and times go in, bytes come out."""

from collections.abc import Iterable, Mapping
from typing import Final

from dcp.errors import SourceError
from dcp.protocol.bootstrap import BootstrapSettings, control_step
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.credentials import Credentials
from dcp.protocol.events import Ready, StreamRefused
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.refusals import describe_status
from dcp.protocol.window_policies import FlowSettings
from dcp.server.replication.passive_stream import OPEN_FLAGS, PassiveStream
from dcp.server.replication.passive_streams import PassiveStreams
from dcp.server.vbucket.replica import Replica
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
# A replica must hold exactly what the active holds, so only ``change_streams`` may be refused.
_CONTROLS: Final = (
    control_step("enable_expiry_opcode", "true", is_optional=False),
    control_step("enable_sync_writes", "true", is_optional=False),
    control_step("max_marker_version", "2.2", is_optional=False),
    control_step("send_stream_end_on_client_close_stream", "true", is_optional=False),
    control_step("change_streams", "true"),
)


class ReplicationConnection:
    """One connection, which carries all streams between two nodes. Call under the bucket's lock.

    It signs in by SCRAM as the cluster's own user, and asks for prepares and aborts too. It asks
    again for a refused or ended stream, after growing waits. A message that fits no stream, a slow
    bootstrap or a silent peer ends it.
    """

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
        """``nonce`` is SCRAM's and must be fresh for each connection."""
        settings = BootstrapSettings(
            bucket,
            name,
            agent="dcplake-replication",
            features=_FEATURES,
            open_flags=OPEN_FLAGS,
            controls=(control_step("consumer_name", name, is_optional=False), *_CONTROLS),
        )
        flow = FlowSettings(window_bytes=window_bytes)
        self._protocol = ConsumerConnection(
            settings, credentials, nonce, flow, liveness, hands_out_frames=True
        )
        self._protocol.start(now)
        self.streams = PassiveStreams(self._protocol)

    @property
    def is_ready(self) -> bool:
        return self._protocol.is_ready

    # --- streams

    def follow(
        self, replicas: Mapping[int, Replica], now: float, takes_over: Iterable[int] = ()
    ) -> None:
        """Fill exactly these replicas, by vbucket; those in ``takes_over`` by takeover streams."""
        self.streams.follow(replicas, now, takes_over)

    def close(self) -> None:
        self.streams.end()

    # --- input

    def feed(self, block: FrameBlock, now: float) -> list[PassiveStream]:
        """Process received frames; return each stream that changed its replica, once.

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
            # A refused takeover fails its rebalance; other streams are asked for again.
            if isinstance(event, StreamRefused) and stream is not None and stream.takes_over:
                raise SourceError(
                    f"takeover of vbucket {stream.vbucket}: found {describe_status(event.status)}, "
                    "expected a stream"
                )
        for window, frame_bytes in self._protocol.flow.deliver():
            window.take(frame_bytes)
        return list(touched.values())

    @property
    def unreleased_bytes(self) -> int:
        """Bytes received and not released; if they fill the window, the peer sends only NOOPs."""
        return self._protocol.flow.connection.unreleased_bytes

    def release(self, now: float) -> None:
        """Release all received bytes, so that the peer may send as many again."""
        flow, unreleased_bytes = self._protocol.flow, self.unreleased_bytes
        flow.connection.give(unreleased_bytes)
        flow.release([(flow.connection, unreleased_bytes)])
        self._protocol.acknowledge(now)

    def resize_window(self, window_bytes: int, now: float) -> None:
        self._protocol.resize_window(window_bytes, now)

    def acknowledge_prepares(self, stream: PassiveStream) -> None:
        """Acknowledge the prepares that a stream's replica has stored."""
        seqno = stream.next_acknowledgement()
        if seqno is not None:
            self._protocol.acknowledge_prepares(stream.vbucket, seqno)

    # --- time

    @property
    def deadline(self) -> float:
        """When to call ``tick``, however busy the connection is."""
        return self.streams.deadline

    def tick(self, now: float) -> None:
        """Send requests and acknowledgements that are due, and check that the peer is alive.

        Raises:
            NodeUnavailableError: the peer is silent for too long, or not ready in time.
        """
        self.streams.tick(now)

    def slept(self, now: float) -> None:
        """Restart the silence timer, because we have not read until now."""
        self._protocol.excuse_silence(now)

    # --- output

    def output(self) -> bytes:
        return self._protocol.bytes_to_send()

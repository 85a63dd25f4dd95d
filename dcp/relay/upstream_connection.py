"""The relay's DCP connection to one node of the cluster, without I/O.

    follow(replicas)   have a stream into exactly these replicas
    feed(block, now)   take frames from the node; returns the received bytes by stream
    consumed(bytes)    no consumer needs so many bytes any longer
    release(now)       the disk keeps up: acknowledge everything that was consumed
    tick(now)          run the timers; ``deadline`` says when
    output()           take the bytes to write

``ConsumerConnection`` has the protocol and the window's counters: consumed
bytes are *given*, and *released* ones may be acknowledged. The relay authenticates as a normal
consumer, and asks for everything except prepares, which only nodes of the cluster may have. Bytes
of no stream count as consumed at once; the caller reports those of streams. The client's table
(``dcp/client/reactions.py``) decides what follows a refused or ended stream.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dcp.client.reactions import ENDINGS, REFUSALS, Reaction, end_reason_name
from dcp.errors import BucketError, RemoteProtocolError
from dcp.protocol.bootstrap import BootstrapSettings, agent_text
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.events import (
    ClusterConfigReceived,
    Event,
    FailoverLogReceived,
    ManifestReceived,
    Ready,
    SeqnosReceived,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.refusals import describe_status
from dcp.protocol.window import Window
from dcp.protocol.window_policies import FlowSettings
from dcp.relay.relay_settings import RelaySettings
from dcp.server.replication.passive_stream import OPEN_FLAGS, PassiveStream
from dcp.server.replication.passive_streams import PassiveStreams
from dcp.server.vbucket.replica import Replica
from dcp.types import FailoverLog
from dcp.wire.framing import FrameBlock
from dcp.wire.vocabulary import HelloFeature, Opcode, Status


@dataclass(frozen=True, slots=True)
class ReceivedBytes:
    """The bytes that one block of frames brought for one stream."""

    stream: PassiveStream
    frame_bytes: int = 0
    begins_branch: bool = False
    """True if the node has just accepted the stream on another branch than the replica had."""


@dataclass(slots=True)
class ServerMessages:
    """Facts that a connection has learned besides its streams.

    `UpstreamConnection` adds entries. `Upstream` removes those that it has handled.
    """

    maps: list[bytes] = field(default_factory=list)
    manifests: list[bytes] = field(default_factory=list)
    failover_logs: dict[int, FailoverLog] = field(default_factory=dict)
    seqnos: dict[int, int] = field(default_factory=dict)
    wants_map: bool = False
    """True if the cluster has changed, so that a new map is needed."""
    ended: list[int] = field(default_factory=list)
    """Vbuckets whose stream is over, even if it was requested again."""


class UpstreamConnection:
    """One connection; call it with the bucket's lock held."""

    def __init__(
        self,
        settings: RelaySettings,
        name: str,
        nonce: str,
        now: float,
        window_bytes: int,
        may_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """``name`` must be unique; ``nonce`` is for SCRAM, and fresh for each connection.

        While ``may_open`` returns False, streams are not requested. It limits what waits for the
        disk, as the window of each connection only limits that connection.
        """
        bootstrap = BootstrapSettings(
            settings.bucket,
            name,
            agent=agent_text("dcplake-relay", name),
            open_flags=OPEN_FLAGS,
        )
        flow = FlowSettings(window_bytes=window_bytes)
        self._protocol = ConsumerConnection(
            bootstrap, settings.credentials, nonce, flow, LivenessSettings(), hands_out_frames=True
        )
        self._protocol.start(now)
        self._protocol.count_streams()
        self.streams = PassiveStreams(self._protocol, may_open)
        self.learned = ServerMessages()
        self.arrived: dict[int, ReceivedBytes] = {}
        """Received bytes of the last block, by vbucket; valid even if ``feed`` failed half-way."""

    # --- state

    @property
    def is_ready(self) -> bool:
        return self._protocol.is_ready

    @property
    def awaits_closed(self) -> bool:
        """True until the node has answered each CLOSE_STREAM."""
        return self._protocol.awaits_closed

    @property
    def window(self) -> Window:
        return self._protocol.flow.connection

    # --- streams

    def follow(self, replicas: Mapping[int, Replica], now: float) -> None:
        self.learned.ended += [each.vbucket for each in self.streams.follow(replicas, now)]

    def close(self) -> None:
        self.streams.end()

    # --- requests

    def ask_for_map(self) -> None:
        """Request the cluster map; it goes to ``learned``."""
        if self.is_ready:
            self._protocol.request_cluster_config()

    def ask_for_manifest(self) -> None:
        """Request the collections manifest; it goes to ``learned``."""
        if self.is_ready:
            self._protocol.request_manifest()

    def ask_for_seqnos(self) -> None:
        """Request the high seqnos of the node's active vbuckets, unless a request is under way."""
        if self.is_ready and not self._protocol.awaits(Opcode.GET_ALL_VB_SEQNOS):
            self._protocol.request_seqnos()

    def ask_for_failover_log(self, vbucket: int) -> None:
        """Request a vbucket's failover log, unless a request is under way."""
        if self.is_ready and not self._protocol.awaits(Opcode.DCP_GET_FAILOVER_LOG, vbucket):
            self._protocol.request_failover_log(vbucket)

    # --- input

    def feed(self, block: FrameBlock, now: float) -> list[ReceivedBytes]:
        """Take frames; return what arrived, one entry per stream.

        Raises RemoteProtocolError if the node breaks the protocol, and SourceError if it rejects
        the relay.
        """
        self.arrived = {}
        for event in self._protocol.receive(block, now):
            self._take(event, now)
        self._count()
        return list(self.arrived.values())

    def _count(self) -> None:
        unclaimed_bytes = 0
        for window, frame_bytes in self._protocol.flow.deliver():
            if window is self.window:
                window.take(frame_bytes)
                unclaimed_bytes += frame_bytes
                continue
            stream = self.streams.by_opaque(window.opaque)
            # The caller says when these bytes are consumed; those of a closed stream are, below.
            if stream is not None and stream.is_in_charge:
                before = self.arrived.get(stream.vbucket, ReceivedBytes(stream))
                self.arrived[stream.vbucket] = replace(before, frame_bytes=frame_bytes)
                unclaimed_bytes -= frame_bytes
        self.consumed(unclaimed_bytes)

    def _take(self, event: Event, now: float) -> None:
        match event:
            case Ready():
                if event.cluster_config:
                    self.learned.maps.append(event.cluster_config)
                if HelloFeature.COLLECTIONS in event.features:
                    self.ask_for_manifest()
                self.streams.retry(now)
            case ClusterConfigReceived():
                self.learned.maps.append(event.config)
            case ManifestReceived():
                if event.manifest is not None:
                    self.learned.manifests.append(event.manifest)
            case SeqnosReceived():
                self.learned.seqnos.update(event.seqnos)
            case FailoverLogReceived():
                self._take_failover_log(event)
            case _:
                self._take_of_stream(event, now)

    def _take_failover_log(self, event: FailoverLogReceived) -> None:
        if event.failover_log is not None:
            self.learned.failover_logs[event.vbucket] = event.failover_log
        # The node refused, so another node may have the vbucket now.
        elif not event.fault:
            self.learned.wants_map = True
        elif event.status == Status.SUCCESS:
            raise RemoteProtocolError(f"vbucket {event.vbucket}: {event.fault}")

    def _take_of_stream(self, event: Event, now: float) -> None:
        is_other = isinstance(event, StreamOpened) and self._is_other_branch(event)
        stream = self.streams.take(event, now)
        if stream is None:
            return
        before = self.arrived.get(stream.vbucket, ReceivedBytes(stream))
        self.arrived[stream.vbucket] = replace(
            before, stream=stream, begins_branch=before.begins_branch or is_other
        )
        if stream.is_over:
            self.learned.ended.append(stream.vbucket)
        match event:
            case StreamEnded():
                reaction = ENDINGS.get(event.reason, Reaction.RETRY)
                self._react(stream, reaction, f"ended: {end_reason_name(event.reason)}")
            case StreamRefused():
                reaction = REFUSALS.get(event.status, Reaction.RETRY)
                self._react(stream, reaction, f"was refused with {describe_status(event.status)}")

    def _is_other_branch(self, event: StreamOpened) -> bool:
        stream = self.streams.by_vbucket.get(event.vbucket)
        if stream is None or not stream.replica.has_failover_log:
            return False
        known = stream.replica.vbucket.failover_log.current_uuid
        return known != event.failover_log.current_uuid

    def _react(self, stream: PassiveStream, reaction: Reaction, why: str) -> None:
        if reaction is Reaction.FAIL_BUCKET:
            raise BucketError(f"vbucket {stream.vbucket}: its stream {why}")
        if reaction is Reaction.REROUTE:
            self.learned.wants_map = True

    # --- flow control and time

    def consumed(self, frame_bytes: int) -> None:
        self.window.give(frame_bytes)

    @property
    def awaiting_disk_bytes(self) -> int:
        """Consumed bytes that only wait for the disk."""
        return self.window.given - self.window.released

    def release(self, now: float) -> None:
        """Release all consumed bytes; send an acknowledgement if one is due."""
        self._protocol.flow.release([(self.window, self.awaiting_disk_bytes)])
        self._protocol.acknowledge(now)

    def resize_window(self, window_bytes: int, now: float) -> None:
        self._protocol.resize_window(window_bytes, now)

    @property
    def deadline(self) -> float:
        return self.streams.deadline

    def tick(self, now: float) -> None:
        """Run the timers; raise NodeUnavailableError if the node is silent or not ready in time."""
        self.streams.tick(now)

    # --- output

    def output(self) -> bytes:
        return self._protocol.bytes_to_send()

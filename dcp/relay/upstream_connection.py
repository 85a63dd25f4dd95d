"""The relay's DCP connection to one node of the cluster, sans-I/O.

    follow(copies)     have a passive stream into each of these copies, and no other
    feed(block, now)   frames of the node; returns what arrived, stream by stream
    free(bytes)        nobody is waited for with so many bytes of a stream any more
    release(now)       the disk keeps up: all that was freed may be acknowledged
    tick(now)          what is due by time; ``deadline`` says when to call it
    output()           what to write next

The protocol is the consumer machine's, and so are the counters of the window: *given* is what the
relay has freed, *released* what is on disk as well or may be soon. The connection signs in as any
consumer does and asks for all that a consumer can be told: no prepares, which are for the cluster's
own nodes. What belongs to no stream is released at once; bytes of a stream are freed by the
receiver of ``ReceivedBytes``. What to do about a refused or ended stream is the client's table
(``dcp/client/reactions.py``). Messages that fit no stream end the connection.
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
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.types import FailoverLog
from dcp.wire.framing import FrameBlock
from dcp.wire.vocabulary import HelloFeature, Opcode, Status


@dataclass(frozen=True, slots=True)
class ReceivedBytes:
    """Bytes of a stream that one block brought, and whether they begin a branch."""

    stream: PassiveStream
    frame_bytes: int = 0
    begins_branch: bool = False
    """True if the stream was accepted just now on another branch than the copy knew."""


@dataclass(slots=True)
class ServerMessages:
    """Facts that a connection has learned beside its streams.

    Written from outside: whoever acts on it clears it.
    """

    maps: list[bytes] = field(default_factory=list)
    manifests: list[bytes] = field(default_factory=list)
    logs: dict[int, FailoverLog] = field(default_factory=dict)
    seqnos: dict[int, int] = field(default_factory=dict)
    wants_map: bool = False
    """True if the cluster has changed: a new map is needed."""
    ended: list[int] = field(default_factory=list)
    """Vbuckets whose stream is over, asked for again or not."""


class UpstreamConnection:
    """One connection; used under the bucket's lock."""

    def __init__(
        self,
        settings: RelaySettings,
        name: str,
        nonce: str,
        now: float,
        window_bytes: int,
        may_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """``name`` must be unique, ``nonce`` is SCRAM's: fresh for each connection.

        While ``may_open`` says no, no stream is asked for: each connection has a window of its own.
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
        """Bytes of the last block, by vbucket; also if ``feed`` failed amid it."""

    # --- where it stands

    @property
    def is_ready(self) -> bool:
        """True if streams may be requested."""
        return self._protocol.is_ready

    @property
    def awaits_closed(self) -> bool:
        """True if the node has not ended all streams yet."""
        return self._protocol.awaits_closed

    @property
    def window(self) -> Window:
        """The counters of the window."""
        return self._protocol.flow.connection

    # --- streams

    def follow(self, copies: Mapping[int, ReplicaCopy], now: float) -> None:
        """Have a stream into exactly these copies, by vbucket."""
        self.learned.ended += [each.vbucket for each in self.streams.follow(copies, now)]

    def close(self) -> None:
        """Let all streams be over, as the connection is."""
        self.streams.end()

    # --- questions

    def ask_for_map(self) -> None:
        """Ask for the cluster map; ``learned`` will have it."""
        if self.is_ready:
            self._protocol.request_cluster_config()

    def ask_for_manifest(self) -> None:
        """Ask for the collections manifest; ``learned`` will have it."""
        if self.is_ready:
            self._protocol.request_manifest()

    def ask_for_seqnos(self) -> None:
        """Ask how far the node's active vbuckets are, once at a time."""
        if self.is_ready and not self._protocol.awaits(Opcode.GET_ALL_VB_SEQNOS):
            self._protocol.request_seqnos()

    def ask_for_log(self, vbucket: int) -> None:
        """Ask for a vbucket's failover log, once at a time."""
        if self.is_ready and not self._protocol.awaits(Opcode.DCP_GET_FAILOVER_LOG, vbucket):
            self._protocol.request_failover_log(vbucket)

    # --- input

    def feed(self, block: FrameBlock, now: float) -> list[ReceivedBytes]:
        """Act on frames; return the received bytes by stream, each stream once.

        Raises:
            RemoteProtocolError: the node broke the protocol.
            SourceError: it refuses us.
        """
        self.arrived = {}
        for event in self._protocol.receive(block, now):
            self._take(event, now)
        self._count()
        return list(self.arrived.values())

    def _count(self) -> None:
        """Count received bytes by stream; bytes of no stream are freed at once."""
        unclaimed_bytes = 0
        for window, frame_bytes in self._protocol.flow.deliver():
            if window is self.window:
                window.take(frame_bytes)
                unclaimed_bytes += frame_bytes
                continue
            stream = self.streams.by_opaque(window.opaque)
            if stream is not None and stream.is_in_charge:
                before = self.arrived.get(stream.vbucket, ReceivedBytes(stream))
                self.arrived[stream.vbucket] = replace(before, frame_bytes=frame_bytes)
                unclaimed_bytes -= frame_bytes
        self.free(unclaimed_bytes)

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
                self._take_log(event)
            case _:
                self._take_of_stream(event, now)

    def _take_log(self, event: FailoverLogReceived) -> None:
        if event.failover_log is not None:
            self.learned.logs[event.vbucket] = event.failover_log
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
        if stream is None or not stream.copy.has_history:
            return False
        known = stream.copy.vbucket.failover_log.current_uuid
        return known != event.failover_log.current_uuid

    def _react(self, stream: PassiveStream, reaction: Reaction, why: str) -> None:
        if reaction is Reaction.FAIL_BUCKET:
            raise BucketError(f"vbucket {stream.vbucket}: its stream {why}")
        if reaction is Reaction.REROUTE:
            self.learned.wants_map = True

    # --- flow control and time

    def free(self, frame_bytes: int) -> None:
        """Free bytes: no consumer needs them any more."""
        self.window.give(frame_bytes)

    @property
    def awaiting_disk_bytes(self) -> int:
        """Bytes that are freed and wait for the disk only."""
        return self.window.given - self.window.released

    def release(self, now: float) -> None:
        """Release all freed bytes; acknowledge when it is due."""
        self._protocol.flow.release([(self.window, self.awaiting_disk_bytes)])
        self._protocol.acknowledge(now)

    def resize_window(self, window_bytes: int, now: float) -> None:
        """Change the window's size."""
        self._protocol.resize_window(window_bytes, now)

    @property
    def deadline(self) -> float:
        """The time at which ``tick`` has work to do."""
        return self.streams.deadline

    def tick(self, now: float) -> None:
        """Do what is due by time.

        Raises:
            NodeUnavailableError: the node is silent for too long, or not ready within the time.
        """
        self.streams.tick(now)

    # --- output

    def output(self) -> bytes:
        """Return what to write."""
        return self._protocol.bytes_to_send()

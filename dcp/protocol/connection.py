"""The consumer's side of one DCP connection, sans-I/O: four verbs, with time as an argument.

    receive(block, now) -> events      bytes in, cut into frames by ``dcp.wire.framing``
    open_stream(...), flow.release(...), …  commands
    bytes_to_send()                    bytes out
    next_deadline(), tick(now)         time

Rows are handed out as columns (to ``dcp/client``), or as frames to be stored (to the relay and the
embedded producer's replicas). A violation by the peer raises; the connection must be closed then,
and says nothing more. Times are seconds of one monotonic clock. ``flow`` counts the bytes
(`window`); its ``release`` is the only command that another thread may call.
"""

from dcp.errors import LocalProtocolError, NodeUnavailableError, SourceError
from dcp.protocol.answers import ask_next
from dcp.protocol.bootstrap import HELLO, Bootstrap, BootstrapProgress, BootstrapSettings, steps_for
from dcp.protocol.credentials import Credentials
from dcp.protocol.events import Event
from dcp.protocol.inbound import read_block
from dcp.protocol.liveness import Liveness, LivenessSettings
from dcp.protocol.position import Position
from dcp.protocol.refusals import PORT_CURE
from dcp.protocol.state import ConnectionState
from dcp.protocol.stream import Stream, StreamPhase
from dcp.protocol.window import FlowControl
from dcp.protocol.window_policies import FlowSettings
from dcp.protocol.window_resize import WindowResize
from dcp.types import END_OF_TIME, U32_MAX, FailoverLog, require_unsigned
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.framing import FrameBlock
from dcp.wire.vocabulary import HelloFeature, Opcode, StreamFlag, VbucketState


class ConsumerConnection:
    """One connection to a data node: bootstrap, streams, flow control, liveness."""

    def __init__(
        self,
        bootstrap: BootstrapSettings,
        credentials: Credentials,
        nonce: str,
        flow: FlowSettings,
        liveness: LivenessSettings,
        *,
        hands_out_frames: bool = False,
    ) -> None:
        """Prepare; nothing is said before ``start``. ``nonce`` is SCRAM's: fresh for each.

        With ``hands_out_frames`` items are delivered as frames in wire order, to be stored as they
        are (``ItemFrames``); else as columns, to be read (``Items``).
        """
        self._opens_dcp = bootstrap.open_dcp
        self._steps = steps_for(bootstrap, flow, liveness)
        progress = BootstrapProgress(
            bootstrap, credentials, nonce, authenticated=credentials.by_certificate
        )
        self._state = ConnectionState(
            Bootstrap(self._steps, progress),
            FlowControl(flow, 0.0),
            Liveness(liveness, 0.0),
            WindowResize(flow.window_bytes, flow.window_bytes),
            hands_out_frames,
        )
        self._started_at: float | None = None
        self._is_broken = False

    def start(self, now: float) -> None:
        """Queue the first message; call once, when the socket is connected."""
        if self._started_at is not None:
            raise LocalProtocolError("start: found a connection that was started already")
        self._started_at = now
        state = self._state
        state.flow.begin(now)
        state.liveness = state.liveness.heard(now)
        state.bootstrap = state.bootstrap.at_next_step()
        ask_next(state)

    def receive(self, block: FrameBlock, now: float) -> list[Event]:
        """Take whole frames; return their events, rows first.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
            AuthenticationError, BucketError, SourceError: it refused what we cannot do without.
            LocalProtocolError: one of these was raised before.
        """
        if self._is_broken:
            raise LocalProtocolError(
                "receive: found a connection whose peer broke the protocol or refused us, "
                "expected it to be closed"
            )
        try:
            return read_block(self._state, block, now)
        except Exception:
            self._is_broken = True
            raise

    def bytes_to_send(self) -> bytes:
        """Return what is to be sent now, in order; a second call does not return it again."""
        data = b"" if self._is_broken else b"".join(self._state.outbound)
        self._state.outbound.clear()
        return data

    def next_deadline(self) -> float | None:
        """Return when to call ``tick`` at the latest; None before ``start``."""
        if self._started_at is None:
            return None
        if not self.is_ready:
            return self._ready_by(self._started_at)
        state = self._state
        return min(state.flow.deadline, state.liveness.deadline)

    def tick(self, now: float) -> None:
        """Do what is due by time: acknowledge, and check that the peer is alive.

        Raises:
            NodeUnavailableError: the peer is silent for too long, or the bootstrap takes too long.
        """
        if self._started_at is None:
            return
        state = self._state
        limits = state.liveness.settings
        if not self.is_ready:
            if now >= self._ready_by(self._started_at):
                cure = f"; {PORT_CURE}" if state.bootstrap.step is HELLO else ""
                raise NodeUnavailableError(
                    f"waited {now - self._started_at:.1f} s for {self.waiting_for}, expected it "
                    f"within {limits.bootstrap_timeout_seconds:.1f} s of connecting{cure}"
                )
            return
        if state.liveness.is_dead(now):
            raise NodeUnavailableError(
                f"peer silent for {state.liveness.silence_seconds(now):.1f} s, expected a NOOP "
                f"every {limits.noop_interval_seconds:g} s"
            )
        if state.liveness.is_time_to_ask(now):
            state.liveness = state.liveness.ask()
            state.ask(m.Empty(), Opcode.NOOP)
        self.acknowledge(now)

    def _ready_by(self, started_at: float) -> float:
        """Return when it must be ready: one sum, as a difference may round to less than it."""
        return started_at + self._state.liveness.settings.bootstrap_timeout_seconds

    def lost(self, breakage: str = "") -> SourceError:
        """Return the error for a connection that the server closed or that broke.

        ``breakage`` says how it broke; empty: the peer closed it in good order.
        """
        if not self.is_ready and self._started_at is not None:
            return self._state.bootstrap.lost(breakage)
        return NodeUnavailableError(
            f"the connection {breakage}" if breakage else "the server closed the connection"
        )

    def open_stream(
        self,
        vbucket: int,
        position: Position,
        *,
        failover_log: FailoverLog | None = None,
        end_seqno: int = END_OF_TIME,
        flags: int = StreamFlag.ACTIVE_VB_ONLY,
        filter: bytes = b"",
        stream_id: int | None = None,
    ) -> int:
        """Ask for the vbucket's changes after ``position``; return the opaque of its messages.

        ``failover_log`` is the one accepted with the data up to ``position``; ``filter`` is the
        JSON value of STREAM_REQ, which must name ``stream_id`` as ``sid`` where one is given.

        Raises:
            LocalProtocolError: not ready, the vbucket has a stream, or the position's branch is
                none of its failover log.
        """
        self._require_ready("open_stream")
        if failover_log is not None and position.vb_uuid:
            uuids = [entry.vb_uuid for entry in failover_log.entries]
            if position.vb_uuid not in uuids:
                raise LocalProtocolError(
                    f"vbucket {vbucket}: found vb_uuid {position.vb_uuid:#x} in the position, "
                    f"expected one of its failover log: {', '.join(map(hex, uuids))}"
                )
        stream = Stream.request(
            vbucket, position, flags=int(flags), end_seqno=end_seqno, stream_id=stream_id
        )
        return self._state.open_stream(stream, filter)

    def purge_filter(self, purge_seqno: int | None) -> bytes:
        """Return the ``filter`` that names the newest purge seqno that a marker told.

        A server whose own it is does not roll back for the purges up to there, which the data that
        came with the marker knows of. Empty for None and 0, and without Collections, where servers
        refuse any. Source: kv_engine ``engines/ep/src/collections/vbucket_filter.cc`` and
        ``docs/dcp/documentation/commands/stream-request.md``.
        """
        features = self._state.bootstrap.progress.features
        if not purge_seqno or HelloFeature.COLLECTIONS not in features:
            return b""
        return b'{"purge_seqno":"%d"}' % purge_seqno

    def close_stream(self, vbucket: int, *, stream_id: int | None = None) -> None:
        """Ask for the end of a stream; what is still on its way will be charged and dropped."""
        self._require_ready("close_stream")
        self._state.close_stream(self._open_stream(vbucket, stream_id))

    def close_streams(self) -> None:
        """Ask for the end of all streams; ``awaits_closed`` says when the peer has ended them."""
        for opaque, stream in list(self._state.streams.items()):
            if not stream.is_closing:
                self._state.close_stream(opaque)

    def acknowledge_prepares(self, vbucket: int, seqno: int) -> None:
        """Acknowledge all prepares up to ``seqno``, as a replica does to its active.

        Raises:
            LocalProtocolError: the vbucket has no stream.
        """
        self._open_stream(vbucket, None)
        body = m.SeqnoAcknowledged(seqno)
        self._state.ask(body, Opcode.DCP_SEQNO_ACKNOWLEDGED, vbucket=vbucket)

    def count_streams(self) -> None:
        """Count bytes by stream though no stream has a window: a delivery's shares tell them."""
        self._state.flow.offer_streams(0)

    def excuse_silence(self, now: float) -> None:
        """Restart the silence timer: we did not read until now."""
        self._state.liveness = self._state.liveness.heard(now)

    def request_seqnos(self, state: VbucketState = VbucketState.ACTIVE) -> None:
        """Ask for the high seqnos of the vbuckets on this node that are in ``state``."""
        self._require_ready("request_seqnos")
        self._state.ask(m.GetAllVbSeqnos(int(state)), Opcode.GET_ALL_VB_SEQNOS)

    def request_failover_log(self, vbucket: int) -> None:
        """Ask for the vbucket's failover log as it is now."""
        self._require_ready("request_failover_log")
        opcode = Opcode.GET_FAILOVER_LOG
        if self._opens_dcp:
            opcode = Opcode.DCP_GET_FAILOVER_LOG
        self._state.ask(m.Empty(), opcode, vbucket=vbucket)

    def request_persistence(self, vbucket: int, vb_uuid: int) -> None:
        """Ask how far the branch ``vb_uuid`` of a vbucket is on this node's disk."""
        self._require_ready("request_persistence")
        self._state.ask(m.ObserveSeqno(vb_uuid), Opcode.OBSERVE_SEQNO, vbucket=vbucket)

    def request_cluster_config(self) -> None:
        """Ask for the newest cluster map."""
        self._require_ready("request_cluster_config")
        self._state.ask(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)

    def request_manifest(self) -> None:
        """Ask for the collections manifest of the bucket."""
        self._require_ready("request_manifest")
        self._state.ask(m.Empty(), Opcode.GET_COLLECTIONS_MANIFEST)

    def acknowledge(self, now: float) -> None:
        """Acknowledge what was released, as far as it is due."""
        for opaque, acked_bytes in self._state.flow.acknowledge(now):
            self._state.say(encode(m.BufferAck(acked_bytes), Opcode.DCP_BUFFER_ACK, opaque=opaque))

    def collect_positions(self) -> dict[int, Position]:
        """Return the positions of the vbuckets that have moved since the last call."""
        moved, self._state.moved = self._state.moved, {}
        return moved

    def resize_window(self, window_bytes: int, now: float) -> None:
        """Give the connection another window; 0 switches flow control off. At any time.

        The producer is told after the CONTROL before it was answered, or the bootstrap is done; the
        last size counts. ``WindowRefused`` follows where it refuses: the old one stays.

        Raises:
            ValueError: no size that a producer can be told.
        """
        self._state.resize = self._state.resize.want(window_bytes)
        self._state.resize_window(now)
        self.acknowledge(now)

    def change_stream_window(self, window_bytes: int) -> None:
        """Ask for another size of all streams' windows, 0 for none. At any time.

        ``StreamWindowChanged`` follows: data servers refuse. Streams that had no windows get them
        too, with nothing outstanding.

        Raises:
            ValueError: the size is none that a producer can be told.
        """
        require_unsigned("window_bytes", window_bytes, U32_MAX)
        self._state.change_stream_window(window_bytes)

    def position(self, vbucket: int, *, stream_id: int | None = None) -> Position:
        """Return the stream's position after the last received block; ended streams too.

        Raises:
            LocalProtocolError: the vbucket has had no stream on this connection.
        """
        return self._state.stream_of(vbucket, stream_id).position

    @property
    def is_ready(self) -> bool:
        """True if the bootstrap is done."""
        return self._state.bootstrap.is_done

    @property
    def awaits_closed(self) -> bool:
        """True if a stream is open, or its CLOSE_STREAM is not answered.

        Of a stream that was closed the peer has only the STREAM_END left, for which it may wait for
        room in the window.
        """
        streams = self._state.streams.values()
        return any(stream.phase is not StreamPhase.DRAINING for stream in streams)

    def has_stream(self, vbucket: int) -> bool:
        """Return whether the vbucket has a stream, until the peer has ended one that we closed."""
        return (vbucket, None) in self._state.opaques

    def vbucket_of(self, opaque: int) -> int | None:
        """Return the vbucket of a stream; None where there is none with this opaque."""
        stream = self._state.streams.get(opaque)
        return None if stream is None else stream.vbucket

    def awaits(self, opcode: Opcode, vbucket: int = 0) -> bool:
        """Return whether such a request is not answered yet."""
        return self._state.pending.has(opcode, vbucket)

    @property
    def waiting_for(self) -> str:
        """The answer that the connection waits for, for a message to people."""
        if not self.is_ready:
            return f"the answer to {self._state.bootstrap.step.name}"
        return f"answers to: {self._state.pending.describe()}"

    @property
    def set_up_step(self) -> str:
        """The name of the bootstrap's step under way; empty once it is done."""
        return "" if self.is_ready else self._state.bootstrap.step.name

    @property
    def set_up_progress(self) -> BootstrapProgress:
        """The results of the bootstrap so far."""
        return self._state.bootstrap.progress

    @property
    def flow(self) -> FlowControl:
        """The flow-control windows with their counters."""
        return self._state.flow

    @property
    def most_window_bytes(self) -> int:
        """The largest window that the producer may have now."""
        return self._state.resize.most_bytes

    @property
    def discarded_frames(self) -> int:
        """Messages for streams that we closed or never had, and unknown ones."""
        return self._state.discarded_frames

    def _open_stream(self, vbucket: int, stream_id: int | None) -> int:
        opaque = self._state.opaques.get((vbucket, stream_id))
        if opaque is None:
            raise LocalProtocolError(f"vbucket {vbucket}: found no stream, expected one")
        return opaque

    def _require_ready(self, command: str) -> None:
        if not self.is_ready or self._started_at is None:
            raise LocalProtocolError(
                f"{command}: found a connection that is not ready "
                f"({self.waiting_for}), expected it after Ready"
            )

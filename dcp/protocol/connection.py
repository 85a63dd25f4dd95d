"""The consumer's side of one DCP connection, without I/O.

The caller passes received frames to ``receive``, sends ``bytes_to_send``, and calls ``tick`` by
``next_deadline``.
"""

from dcp.errors import LocalProtocolError, NodeUnavailableError, SourceError
from dcp.protocol.answers import ask_next
from dcp.protocol.bootstrap import HELLO, Bootstrap, BootstrapSettings, steps_for
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
from dcp.wire.vocabulary import HelloFeature, Opcode, StreamFlag, VbucketState, opcode_name


class ConsumerConnection:
    """Bootstrap, streams, flow control and liveness of one connection to a data node.

    All times are seconds of one monotonic clock. One thread calls all methods, but another may call
    ``flow.release``. After an error from ``receive`` the caller must close the connection.
    """

    def __init__(
        self,
        settings: BootstrapSettings,
        credentials: Credentials,
        nonce: str,
        flow: FlowSettings,
        liveness: LivenessSettings,
        *,
        hands_out_frames: bool = False,
    ) -> None:
        """Prepare a connection; ``nonce`` is SCRAM's and must be fresh for each one.

        With ``hands_out_frames`` items arrive as frames (``ItemFrames``), which a relay or replica
        stores unchanged; otherwise as columns (``Items``).
        """
        self._opens_dcp = settings.open_dcp
        self._state = ConnectionState(
            Bootstrap(
                settings,
                credentials,
                nonce,
                steps_for(settings, flow, liveness),
                authenticated=credentials.by_certificate,
            ),
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
        """Return the events of whole frames, rows first.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
            AuthenticationError, BucketError, SourceError: the peer refused a required step.
            LocalProtocolError: an earlier call has raised.
        """
        if self._is_broken:
            raise LocalProtocolError(
                "receive: found a connection whose peer broke the protocol or refused us, "
                "expected it to be closed"
            )
        try:
            return read_block(self._state, block, now)
        except Exception:
            # The block may have changed a part of the state.
            self._is_broken = True
            raise

    def bytes_to_send(self) -> bytes:
        """Return the queued bytes and empty the queue."""
        # A peer that broke the protocol gets no more messages.
        data = b"" if self._is_broken else b"".join(self._state.outbound)
        self._state.outbound.clear()
        return data

    def next_deadline(self) -> float | None:
        """Return the latest time for the next ``tick``; None before ``start``."""
        if self._started_at is None:
            return None
        if not self.is_ready:
            return self._ready_by(self._started_at)
        state = self._state
        return min(state.flow.deadline, state.liveness.deadline)

    def tick(self, now: float) -> None:
        """Send due acknowledgements, and check that the peer is alive.

        Raises:
            NodeUnavailableError: the peer is silent for too long, or the bootstrap takes too
                long.
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
        # One sum for both callers: comparing a difference of floats could round the other way.
        return started_at + self._state.liveness.settings.bootstrap_timeout_seconds

    def lost(self, breakage: str = "") -> SourceError:
        """Return the error for a connection that ended.

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
        """Ask for the vbucket's changes after ``position``; return the opaque of the stream's
        messages.

        ``failover_log`` is the log accepted with the data up to ``position``. ``filter`` is the
        JSON value of STREAM_REQ; with a ``stream_id`` it must contain it as ``sid``.

        Raises:
            LocalProtocolError: the connection is not ready, the vbucket has a stream, or the
                failover log lacks the position's branch.
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
        """Return the ``filter`` for the newest purge seqno of a marker; empty if there is none.

        A server that knows this purge then orders no rollback for it. Source: kv_engine
        ``engines/ep/src/collections/vbucket_filter.cc`` and
        ``docs/dcp/documentation/commands/stream-request.md``.
        """
        features = self._state.bootstrap.features
        # Without Collections a server refuses any filter.
        if not purge_seqno or HelloFeature.COLLECTIONS not in features:
            return b""
        return b'{"purge_seqno":"%d"}' % purge_seqno

    def close_stream(self, vbucket: int, *, stream_id: int | None = None) -> None:
        """Ask for the end of a stream; its later messages are charged and dropped."""
        self._require_ready("close_stream")
        self._state.close_stream(self._open_stream(vbucket, stream_id))

    def close_streams(self) -> None:
        """Ask for the end of all streams; ``awaits_closed`` turns False when the peer has answered
        each CLOSE_STREAM.
        """
        # A copy: closing changes the dict.
        for opaque, stream in list(self._state.streams.items()):
            if not stream.is_closing:
                self._state.close_stream(opaque)

    def acknowledge_prepares(self, vbucket: int, seqno: int) -> None:
        """Acknowledge all prepares up to ``seqno``, as a replica does.

        Raises:
            LocalProtocolError: the vbucket has no stream.
        """
        self._open_stream(vbucket, None)
        body = m.SeqnoAcknowledged(seqno)
        self._state.ask(body, Opcode.DCP_SEQNO_ACKNOWLEDGED, vbucket=vbucket)

    def count_streams(self) -> None:
        """Count bytes by stream even without stream windows, so that charges name their streams."""
        self._state.flow.offer_streams(0)

    def excuse_silence(self, now: float) -> None:
        """Restart the silence timer, because the caller has not read until now."""
        self._state.liveness = self._state.liveness.heard(now)

    def request_seqnos(self, state: VbucketState = VbucketState.ACTIVE) -> None:
        self._require_ready("request_seqnos")
        self._state.ask(m.GetAllVbSeqnos(int(state)), Opcode.GET_ALL_VB_SEQNOS)

    def request_failover_log(self, vbucket: int) -> None:
        self._require_ready("request_failover_log")
        opcode = Opcode.GET_FAILOVER_LOG
        if self._opens_dcp:
            # DCP connections have an opcode of their own for this.
            opcode = Opcode.DCP_GET_FAILOVER_LOG
        self._state.ask(m.Empty(), opcode, vbucket=vbucket)

    def request_persistence(self, vbucket: int, vb_uuid: int) -> None:
        """Ask up to which seqno this node has the branch ``vb_uuid`` on disk."""
        self._require_ready("request_persistence")
        self._state.ask(m.ObserveSeqno(vb_uuid), Opcode.OBSERVE_SEQNO, vbucket=vbucket)

    def request_cluster_config(self) -> None:
        self._require_ready("request_cluster_config")
        self._state.ask(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)

    def request_manifest(self) -> None:
        self._require_ready("request_manifest")
        self._state.ask(m.Empty(), Opcode.GET_COLLECTIONS_MANIFEST)

    def acknowledge(self, now: float) -> None:
        """Queue the acknowledgements that are due for released bytes."""
        for opaque, acked_bytes in self._state.flow.acknowledge(now):
            self._state.say(encode(m.BufferAck(acked_bytes), Opcode.DCP_BUFFER_ACK, opaque=opaque))

    def collect_positions(self) -> dict[int, Position]:
        """Return the positions of the vbuckets that have moved since the last call."""
        moved, self._state.moved = self._state.moved, {}
        return moved

    def resize_window(self, window_bytes: int, now: float) -> None:
        """Change the connection's window, at any time; 0 switches flow control off.

        The request leaves after the bootstrap and the answer to the previous one; only the last
        size counts. If the producer refuses, ``WindowRefused`` follows and the old size stays.

        Raises:
            ValueError: the size does not fit into 32 bits.
        """
        self._state.resize = self._state.resize.want(window_bytes)
        # A smaller window may make released bytes due.
        self._state.resize_window(now)
        self.acknowledge(now)

    def change_stream_window(self, window_bytes: int) -> None:
        """Change the window of all streams, at any time; 0 removes it.

        ``StreamWindowChanged`` follows; data servers refuse. Streams without windows get one too,
        and start with no outstanding bytes.

        Raises:
            ValueError: the size does not fit into 32 bits.
        """
        require_unsigned("window_bytes", window_bytes, U32_MAX)
        self._state.change_stream_window(window_bytes)

    @property
    def is_ready(self) -> bool:
        return self._state.bootstrap.is_done

    @property
    def awaits_closed(self) -> bool:
        """True if a stream is open or its CLOSE_STREAM unanswered.

        An answered CLOSE_STREAM leaves only STREAM_END, which may wait for room in the window.
        """
        streams = self._state.streams.values()
        return any(stream.phase is not StreamPhase.DRAINING for stream in streams)

    def has_stream(self, vbucket: int) -> bool:
        """Return whether the vbucket has a stream; a closed one counts until the peer has
        ended it.
        """
        return (vbucket, None) in self._state.opaques

    def vbucket_of(self, opaque: int) -> int | None:
        stream = self._state.streams.get(opaque)
        return None if stream is None else stream.vbucket

    def awaits(self, opcode: Opcode, vbucket: int = 0) -> bool:
        pending = self._state.pending.values()
        return any(each.opcode == opcode and each.vbucket == vbucket for each in pending)

    @property
    def waiting_for(self) -> str:
        """The answer that the connection waits for, for a message to people."""
        if not self.is_ready:
            return f"the answer to {self._state.bootstrap.step.name}"
        opcodes = {opcode_name(each.opcode) for each in self._state.pending.values()}
        return f"answers to: {', '.join(sorted(opcodes)) or 'nothing'}"

    @property
    def set_up_step(self) -> str:
        """The bootstrap step under way; empty when the bootstrap is done."""
        return "" if self.is_ready else self._state.bootstrap.step.name

    @property
    def bootstrap(self) -> Bootstrap:
        return self._state.bootstrap

    @property
    def flow(self) -> FlowControl:
        return self._state.flow

    @property
    def most_window_bytes(self) -> int:
        """The largest window that the producer may have now."""
        return self._state.resize.most_bytes

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

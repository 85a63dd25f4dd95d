"""The reader thread of a connection, which alone uses its socket and its protocol.

It answers NOOPs at once, even while the application is busy, and runs ahead of it only by the
flow-control window. Other threads post commands, which it runs between two reads. One lock guards
the posted commands, another the release of deliveries. Nobody holds them for long, so receiving,
decoding and handing over never wait for the application.

The last brake is for a node that ignores its window. The reader stops reading the socket while the
application holds more than one message beyond the largest window that the node ever had. It goes on
when a quarter of that is released. A node that keeps to its window never gets there, nor while the
window shrinks, so NOOPs always arrive.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic, sleep
from typing import Any, Final

from dcp.client.addresses import NodeAddress
from dcp.client.awaited import Awaited, E
from dcp.client.buffer_pool import BufferPool
from dcp.client.delivery import ConnectionEnded, Delivery, DeliveryQueue, Receipt
from dcp.client.settings import ConnectionSettings
from dcp.client.stats import ConnectionStats, WindowStats
from dcp.client.transport import LostConnectionError, Transport
from dcp.errors import (
    AuthenticationError,
    BucketError,
    DcplakeError,
    FrameError,
    LocalProtocolError,
    NodeUnavailableError,
)
from dcp.protocol.bootstrap import Bootstrap
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.events import Event
from dcp.protocol.refusals import spoken_instead
from dcp.wire.framing import FrameBlock, FrameSplitter
from dcp.wire.vocabulary import HEADER_BYTES

_LOGGER = logging.getLogger(__name__)

_IDLE_WAIT_SECONDS: Final = 1.0
"""The longest wait of an idle reader: it looks at released bytes no later than this."""
_BULK_BYTES: Final = 128 * 1024
_BULK_PAUSE_SECONDS: Final = 0.001
"""The pause after large reads that fill less than half of a buffer. Decoding a fuller buffer costs
hardly more, which saves a third of a reader's CPU.
"""
_RESTING_SECONDS: Final = 1.0
"""After this time without reads the buffers are given back."""
_COMMAND_SECONDS: Final = 10.0
"""The longest wait of a posted command for the reader, which never blocks once it is connected."""
_LEAVING_SECONDS: Final = 1.0
"""A node may take this long to answer each CLOSE_STREAM before we close the connection."""
_JOIN_SECONDS: Final = 2.0

Command = Callable[[ConsumerConnection, float], None]


@dataclass(frozen=True, slots=True)
class SetUpStep:
    """A step that begins, after which all earlier ones are done, and the results so far.

    ``name`` is ``TCP``, ``TLS`` or a bootstrap step's; empty at the end. ``certificate`` is the
    node's, from ``ssl.SSLSocket.getpeercert``. It and ``tls_version`` are empty without TLS, and
    until the handshake is done.
    """

    name: str
    progress: Bootstrap
    tls_version: str
    certificate: Mapping[str, Any]


class Reader:
    """Connects, then reads until it is stopped or the connection ends; one use only.

    Everything ends with a ``ConnectionEnded`` in the queue. Threads that wait for an answer or for
    a command get the same error.
    """

    def __init__(
        self,
        address: NodeAddress,
        settings: ConnectionSettings,
        protocol: ConsumerConnection,
        name: str,
        queue: DeliveryQueue,
        buffers: BufferPool,
    ) -> None:
        self.address = address
        self.awaited: list[Awaited[Any]] = []
        """The events that threads wait for, in the order of their questions. Only the thread uses
        it, once it has started."""
        self._settings = settings
        self._protocol = protocol
        self._name = name
        self._queue = queue
        self._buffers = buffers
        self._splitter = FrameSplitter(settings.max_frame_bytes)
        self._on_step: Callable[[SetUpStep], None] | None = None
        self._told_step: str | None = None
        self._transport: Transport | None = None
        self._thread = threading.Thread(
            target=self._main, name=f"dcp-reader-{address}", daemon=True
        )
        self._release_lock = threading.Lock()  # lets any thread release
        self._lock = threading.Lock()  # guards the next three
        self._commands: list[tuple[Command, Future[None]]] = []
        self._closing = False
        self._ended: DcplakeError | None = None
        self._leaves_at = inf
        self._is_connecting = False
        self._limit_bytes = settings.unreleased_limit_bytes(settings.window_bytes)
        self._read_at = -inf
        self._paused = self._is_woken = False
        self.part_heard: tuple[int, float] | None = None
        """The vbucket of the last message that came in parts, and the time of its last part."""
        self._data_heard_at = -inf

    # --- for other threads -----------------------------------------------------------------

    def start(self, on_step: Callable[[SetUpStep], None] | None = None) -> None:
        """Begin to connect. ``on_step`` gets each step as it begins, in the reader's thread."""
        self._on_step = on_step
        self._is_connecting = True
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end the streams and close the connection. Does not wait."""
        with self._lock:
            self._closing = True
        self._wake()

    def join(self) -> None:
        """Wait for the thread's end. A running connection attempt may go on, but reports
        nothing.
        """
        if self._is_connecting:
            return
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def call(self, command: Command, what: str) -> None:
        """Run ``command`` on the reader thread; raise its error.

        Raises:
            NodeUnavailableError: the reader did not run it in time; it will not run.
        """
        future: Future[None] = Future()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            if self._closing:
                raise LocalProtocolError(f"{what}: the connection to {self.address} is closed")
            self._commands.append((command, future))
        self._wake()
        try:
            future.result(_COMMAND_SECONDS)
        except FutureTimeoutError:
            if future.cancel():
                raise NodeUnavailableError(
                    f"waited {_COMMAND_SECONDS:.1f} s to send {what} to {self.address}"
                ) from None
            future.result()  # it has begun: what it does takes no time

    def ask(self, awaited: Awaited[E], command: Command, what: str) -> list[E]:
        """Run ``command`` on the reader thread; return the events that answer it.

        Raises:
            NodeUnavailableError: the reader did not run it in time, or no answer came in time.
        """

        def run(protocol: ConsumerConnection, now: float) -> None:
            command(protocol, now)
            self.awaited.append(awaited)

        self.call(run, what)
        timeout_seconds = self._settings.request_timeout_seconds
        return awaited.wait(timeout_seconds, f"{what} from {self.address}")

    def post(self, command: Command) -> None:
        """Run ``command`` on the reader thread before the connection ends, if it can."""
        with self._lock:
            if self._ended is not None:
                return
            self._commands.append((command, Future()))
        self._wake()

    def stats(self, now: float) -> ConnectionStats:
        """Return the connection's statistics; from any thread."""
        protocol, flow = self._protocol, self._protocol.flow
        window = flow.connection
        return ConnectionStats(
            node=self.address,
            name=self._name,
            is_ready=protocol.is_ready,
            waits_for="" if protocol.is_ready else protocol.waiting_for,
            window=WindowStats.of(window, now) if window.size_bytes else None,
            unfinished_bytes=self._splitter.pending_bytes,
            longest_bytes=self._settings.max_frame_bytes,
            unreleased_limit_bytes=self._limit_bytes,
            received_bytes=window.received,
            taken_bytes=window.taken,
            given_bytes=window.given,
            released_bytes=window.released,
            acknowledged_bytes=window.acknowledged,
            acks=window.acks,
            stream_window_bytes=flow.stream_window_bytes,
            full_stream_windows=flow.full_streams,
            quiet_seconds=None if self._data_heard_at == -inf else now - self._data_heard_at,
        )

    def _released(self, is_due: bool) -> None:
        """Wake the thread if a release lets it go on, or is to be acknowledged; from any thread."""
        if (is_due or self._paused) and not self._is_woken:
            self._is_woken = True
            self._wake()

    def _wake(self) -> None:
        transport = self._transport
        if transport is not None:
            transport.wake()

    # --- the thread ------------------------------------------------------------------------

    def _main(self) -> None:
        error: DcplakeError | None = None
        try:
            self._read_until_closed()
        except DcplakeError as caught:
            error = self._in_context(caught)
        except Exception as caught:  # a bug of ours must reach the application, not only stderr
            _LOGGER.exception("reader of %s", self.address)
            error = LocalProtocolError(f"reader of {self.address}: {caught!r}")
            error.__cause__ = caught
        self._end(error)

    def _read_until_closed(self) -> None:
        settings = self._settings
        transport = Transport.connect(
            self.address,
            timeout_seconds=settings.connect_timeout_seconds,
            tls=settings.tls,
            on_step=self._begin_step,
        )
        self._transport = transport
        self._is_connecting = False
        try:
            self._protocol.start(monotonic())
            self._begin_step(self._protocol.set_up_step)
            while self._goes_on(monotonic()):
                self._turn(transport)
        except LostConnectionError as lost:
            raise self._protocol.lost(lost.breakage) from lost
        finally:
            self._transport = None
            transport.close()

    def _begin_step(self, name: str) -> None:
        if self._on_step is not None and name != self._told_step:
            self._told_step = name
            tls = ("", {}) if self._transport is None else self._transport.encryption
            self._on_step(SetUpStep(name, self._protocol.bootstrap, *tls))

    def _goes_on(self, now: float) -> bool:
        """Return whether to take another turn.

        A closing reader takes turns until the node has answered each CLOSE_STREAM: a node logs a
        warning for each stream that loses its connection.
        """
        if not self._closing:
            return True
        self._protocol.close_streams()
        self._leaves_at = min(self._leaves_at, now + _LEAVING_SECONDS)
        return self._protocol.awaits_closed and now < self._leaves_at

    def _may_read(self) -> bool:
        """Return whether the application holds few enough bytes, or the connection is closing."""
        most_bytes = self._settings.unreleased_limit_bytes(self._protocol.most_window_bytes)
        self._limit_bytes = max(self._limit_bytes, most_bytes)
        limit_bytes = self._limit_bytes * 3 // 4 if self._paused else self._limit_bytes
        return self._closing or self._protocol.flow.connection.unreleased_bytes < limit_bytes

    def _turn(self, transport: Transport) -> None:
        now = monotonic()
        self._is_woken = False  # before it is looked what was released
        self._run_commands(now)
        self._protocol.acknowledge(now)
        transport.write(self._protocol.bytes_to_send())
        if not self._may_read():
            self._paused = True  # from now on a release wakes this thread
            if not self._may_read():  # once more, since a release before wakes nobody
                transport.wait(_IDLE_WAIT_SECONDS, reading=False)
            return
        if self._paused:  # a node that we did not listen to cannot be called silent
            self._paused = False
            self._protocol.excuse_silence(now)
        if transport.wait(self._wait_seconds(now), reading=True):
            self._read_at = now
            self._read_and_decode(transport)
        elif now - self._read_at > _RESTING_SECONDS:
            self._buffers.rest()
        self._protocol.tick(monotonic())

    def _read_and_decode(self, transport: Transport) -> None:
        """Read the rest of a large message into its own buffer, or decode all other bytes.

        Decoded data refers to no lent buffer.
        """
        room = self._splitter.room()
        if room is not None:
            self._decode(self._splitter.fill(self._read(transport, room)))
            return
        with self._buffers.lend() as buffer:
            begun = self._splitter.take_back(buffer)
            count = begun + self._read(transport, buffer[begun:])
            if _BULK_BYTES <= count < self._settings.read_buffer_bytes // 2:
                sleep(_BULK_PAUSE_SECONDS)
                with suppress(DcplakeError):  # of which the next read hears as well
                    count += self._read(transport, buffer[count:])
            said = buffer[:count].toreadonly()
            try:
                block = self._splitter.feed(said)
            except FrameError as error:
                raise spoken_instead(bytes(said[:HEADER_BYTES])) or error from None
            self._decode(block)

    def _decode(self, block: FrameBlock) -> None:
        now = monotonic()
        window = self._protocol.flow.connection
        before_bytes = window.received
        events = self._protocol.receive(block, now)
        self._begin_step(self._protocol.set_up_step)
        unfinished_vbucket = self._splitter.unfinished_vbucket
        if unfinished_vbucket is not None:
            self.part_heard = (unfinished_vbucket, now)
        if self._splitter.pending_bytes or window.received > before_bytes:
            self._data_heard_at = now
        self._enqueue(events)

    def _read(self, transport: Transport, buffer: memoryview) -> int:
        return transport.read(buffer[: self._settings.read_buffer_bytes])

    def _run_commands(self, now: float) -> None:
        with self._lock:
            commands, self._commands = self._commands, []
        for command, future in commands:
            if not future.set_running_or_notify_cancel():
                continue  # its caller waits no longer, and may have asked again
            try:
                command(self._protocol, now)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)

    def _wait_seconds(self, now: float) -> float:
        deadline = self._protocol.next_deadline()
        at = self._leaves_at if deadline is None else min(deadline, self._leaves_at)
        return min(max(0.0, at - now), _IDLE_WAIT_SECONDS)

    def _enqueue(self, events: list[Event]) -> None:
        """Enqueue events with the receipt for the bytes since the last call.

        Bytes without an event are enqueued, too: for example of streams that we closed.
        """
        if self.awaited:
            events = [each for each in events if not any(one.take(each) for one in self.awaited)]
            self.awaited = [each for each in self.awaited if not each.is_over]
        flow = self._protocol.flow
        frame_bytes = flow.connection.received - flow.connection.delivered
        if not events and not frame_bytes:
            return
        receipt = Receipt(flow.deliver(), flow, self._release_lock, self._released)
        positions = self._protocol.collect_positions()
        self._queue.put(Delivery(self.address, events, receipt, frame_bytes, positions, self._name))

    def _end(self, error: DcplakeError | None) -> None:
        reason = error or LocalProtocolError(f"the connection to {self.address} is closed")
        with self._lock:
            self._ended = reason
            commands, self._commands = self._commands, []
        _LOGGER.debug("= %s ended: %s", self._name, reason)
        # Receipts keep the reader alive, which must not keep the bytes of an unfinished message.
        self._splitter = FrameSplitter()
        for _, future in commands:
            if future.set_running_or_notify_cancel():
                future.set_exception(reason)
        for awaited in self.awaited:
            awaited.fail(reason)
        self._queue.put(ConnectionEnded(self._name, self.address, None if self._closing else error))

    def _in_context(self, error: DcplakeError) -> DcplakeError:
        """Return ``error`` with the node's address, which the protocol does not know."""
        parts = [str(self.address)]
        if isinstance(error, BucketError | AuthenticationError):
            parts.append(f"bucket {self._settings.bucket!r}")
        missing = [part for part in parts if part not in str(error)]
        if not missing:
            return error
        named = type(error)(f"{', '.join(missing)}: {error}")
        named.__cause__ = error
        return named

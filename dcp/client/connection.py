"""One connection to one node: a socket, a reader thread, and blocking calls for the application.

The reader thread is the only one that touches the socket and the protocol machine. It answers
NOOPs at once however long the application is busy, and runs ahead of it only by the flow-control
window. Other threads post commands, which it runs between two reads; a lock guards only what is
posted, so receiving, decoding and handing over never wait for the application.

Memory: at most ``window_bytes`` plus one message in deliveries that are not released (decoded
columns copy their bytes, add about 100 bytes a row, and never pin the read buffer), plus one read
buffer, plus the frames being received (one unfinished message and one read buffer). A node that
ignores the window is stopped by TCP: reading stops at ``ConnectionSettings.held_limit_bytes``.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

from dcp.client.addresses import NodeAddress
from dcp.client.answers import AnswerBoard, Awaited, E
from dcp.client.delivery import ConnectionEnded, Delivery, Handover
from dcp.client.machine import new_machine, positions_behind
from dcp.client.settings import ConnectionSettings
from dcp.client.transport import ClosedByPeerError, Transport
from dcp.errors import DcplakeError, LocalProtocolError, NodeUnavailableError
from dcp.protocol.connection import ClientConnection
from dcp.protocol.credentials import Credentials
from dcp.protocol.events import (
    ClusterConfigReceived,
    Event,
    FailoverLogReceived,
    Ready,
    SeqnosReceived,
)
from dcp.protocol.position import Position
from dcp.types import END_OF_TIME, FailoverLog
from dcp.wire.framing import FrameSplitter

_log = logging.getLogger(__name__)

_IDLE_WAIT_SECONDS: Final = 1.0
"""The longest wait of an idle reader; released bytes are looked at no later than this."""
_COMMAND_SECONDS: Final = 10.0
"""How long a posted command may wait for the reader, which never blocks once it is connected."""
_JOIN_SECONDS: Final = 2.0

T = TypeVar("T")
Command = Callable[[ClientConnection, float], T]


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """One stream to open: after ``position``, up to ``end_seqno``."""

    vbucket: int
    position: Position
    failover_log: FailoverLog | None = None
    end_seqno: int = END_OF_TIME
    filter: bytes = b""


@dataclass(frozen=True, slots=True)
class _Posted:
    """A command for the reader thread, and where its result goes."""

    command: Command[Any]
    future: Future[Any]

    def run(self, machine: ClientConnection, now: float) -> None:
        try:
            result = self.command(machine, now)
        except Exception as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class NodeConnection:
    """A DCP connection to one node. All methods may be called from any thread.

    ``name`` must be unique: a server closes an older connection of the same name. Several
    connections may share one ``handover``; each ends with a ``ConnectionEnded`` in it.
    """

    def __init__(
        self,
        address: NodeAddress,
        settings: ConnectionSettings,
        credentials: Credentials,
        name: str,
        *,
        handover: Handover | None = None,
        open_dcp: bool = True,
    ) -> None:
        """Prepare; nothing is sent before ``start`` or ``open``.

        Without ``open_dcp`` the connection answers questions only; it opens no streams.
        """
        self.address = address
        self.name = name
        self._settings = settings
        self._machine = new_machine(settings, credentials, name, open_dcp=open_dcp)
        self._splitter = FrameSplitter(settings.max_frame_bytes)
        self._handover = handover or Handover()
        self._owns_handover = handover is None
        self._answers = AnswerBoard()
        self._transport: Transport | None = None
        self._thread = threading.Thread(target=self._run, name=f"dcp-reader-{address}", daemon=True)
        self._lock = threading.Lock()  # guards the five below
        self._commands: list[_Posted] = []
        self._unreleased: dict[int, int] = {}
        self._released_bytes = 0
        self._closing = False
        self._ended: DcplakeError | None = None
        self._wake_bytes = int(settings.window_bytes * settings.ack_fraction / 2)
        self._serial = 0  # from here on: the reader's own
        self._held_bytes = 0
        self._charged_bytes = 0

    # --- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect; ``Ready`` or the failure comes through the hand-over."""
        self._thread.start()

    def open(self) -> Ready:
        """Connect and bootstrap, and return once streams may be opened.

        Raises:
            NodeUnavailableError: not reachable, or not ready within the time.
            AuthenticationError: user or password refused.
            BucketError: no such bucket, or no access to it.
            RemoteProtocolError: the node breaks the protocol.
        """
        awaited = Awaited(Ready)
        self._answers.add(awaited)
        self.start()
        settings = self._settings
        # The reader has both limits of its own; this one only backs them up.
        most = settings.connect_timeout_seconds + settings.bootstrap_timeout_seconds + 1
        try:
            return self._answers.wait(awaited, most, f"the bootstrap with {self.address}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection and wait for the reader's end; a second call does nothing."""
        self.stop()
        if self._owns_handover:
            self._handover.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def stop(self) -> None:
        """Tell the reader to close the connection, without waiting for it."""
        with self._lock:
            self._closing = True
        self._wake()

    # --- streams ---------------------------------------------------------------------------

    def open_stream(
        self,
        vbucket: int,
        position: Position,
        *,
        failover_log: FailoverLog | None = None,
        end_seqno: int = END_OF_TIME,
        filter: bytes = b"",
    ) -> None:
        """Ask for a stream; ``StreamOpened``, ``StreamRefused`` or ``RollbackOrdered`` follows.

        Raises:
            LocalProtocolError: the connection is closed, or has this stream already.
            DcplakeError: what ended the connection.
        """
        self.open_streams([StreamRequest(vbucket, position, failover_log, end_seqno, filter)])

    def open_streams(self, requests: Iterable[StreamRequest]) -> None:
        """Ask for several streams at once; see ``open_stream``."""
        wanted = list(requests)

        def command(machine: ClientConnection, now: float) -> None:
            for each in wanted:
                machine.open_stream(
                    each.vbucket,
                    each.position,
                    failover_log=each.failover_log,
                    end_seqno=each.end_seqno,
                    filter=each.filter,
                )

        self._call(command, "open_stream")

    def close_stream(self, vbucket: int) -> None:
        """Ask the node to end a stream; ``StreamClosed`` follows. Raises as ``open_stream``."""
        self._call(lambda machine, _: machine.close_stream(vbucket), "close_stream")

    def next(self, timeout_seconds: float) -> Delivery | None:
        """Return the next delivery; None where none came in time.

        Raises:
            DcplakeError: what ended the connection, after all that was received before.
            LocalProtocolError: the connection was closed by us, perhaps while waiting.
        """
        if not self._owns_handover:
            raise LocalProtocolError("next(): this connection hands over to a shared queue")
        entry = self._handover.get(timeout_seconds)
        if isinstance(entry, ConnectionEnded):
            self._handover.put(entry)  # so that the next call says the same
            raise entry.error or LocalProtocolError(f"{self.address}: connection is closed")
        return entry

    def release(self, delivery: Delivery) -> None:
        """Say that the application holds a delivery's bytes no longer: they may be acknowledged.

        A delivery released before, or received by an earlier connection, is ignored.
        """
        if delivery.connection_name != self.name:
            return
        with self._lock:
            frame_bytes = self._unreleased.pop(delivery.serial, 0)
            self._released_bytes += frame_bytes
            wake = frame_bytes > 0 and self._released_bytes > self._wake_bytes
        if wake:
            self._wake()

    # --- questions -------------------------------------------------------------------------

    def all_vb_seqnos(self, timeout_seconds: float | None = None) -> dict[int, int]:
        """Return the high seqno of every vbucket that is active on this node.

        Raises:
            NodeUnavailableError: no answer in time.
            DcplakeError: what ended the connection.
        """
        answer = self._ask(
            Awaited(SeqnosReceived),
            lambda machine, _: machine.request_seqnos(),
            "the high seqnos",
            timeout_seconds,
        )
        return dict(answer.seqnos)

    def failover_log(
        self, vbucket: int, timeout_seconds: float | None = None
    ) -> FailoverLog | None:
        """Return a vbucket's failover log; None where it is not here.

        Raises as ``all_vb_seqnos``.
        """
        return self._ask(
            Awaited(FailoverLogReceived, vbucket),
            lambda machine, _: machine.request_failover_log(vbucket),
            f"the failover log of vbucket {vbucket}",
            timeout_seconds,
        ).failover_log

    def cluster_config(self, timeout_seconds: float | None = None) -> bytes:
        """Return the cluster map's JSON as this node knows it. Raises as ``all_vb_seqnos``."""
        return self._ask(
            Awaited(ClusterConfigReceived),
            lambda machine, _: machine.request_cluster_config(),
            "the cluster map",
            timeout_seconds,
        ).config

    def request_failover_log(self, vbucket: int) -> None:
        """Ask without waiting: ``FailoverLogReceived`` will be delivered."""
        self._call(lambda machine, _: machine.request_failover_log(vbucket), "failover log")

    def request_cluster_config(self) -> None:
        """Ask without waiting: ``ClusterConfigReceived`` will be delivered."""
        self._call(lambda machine, _: machine.request_cluster_config(), "cluster map")

    def _ask(
        self,
        awaited: Awaited[E],
        command: Command[None],
        what: str,
        timeout_seconds: float | None,
    ) -> E:
        timeout = timeout_seconds or self._settings.request_timeout_seconds
        self._answers.add(awaited)
        self._call(command, what)
        return self._answers.wait(awaited, timeout, f"{what} from {self.address}")

    # --- posting commands to the reader ----------------------------------------------------

    def _call(self, command: Command[T], what: str) -> T:
        """Run ``command`` on the reader thread and return what it returns, or raise its error."""
        future: Future[T] = Future()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            if self._closing:
                raise LocalProtocolError(f"{what}: the connection to {self.address} is closed")
            self._commands.append(_Posted(command, future))
        self._wake()
        try:
            return future.result(_COMMAND_SECONDS)
        except FutureTimeoutError:
            raise NodeUnavailableError(
                f"waited {_COMMAND_SECONDS:.1f} s to send {what} to {self.address}"
            ) from None

    def _wake(self) -> None:
        transport = self._transport
        if transport is not None:
            transport.wake()

    # --- the reader thread -----------------------------------------------------------------

    def _run(self) -> None:
        error: DcplakeError | None = None
        try:
            self._read_until_closed()
        except DcplakeError as caught:
            error = _of_node(self.address, caught)
        except Exception as caught:  # a bug of ours must reach the application, not only stderr
            _log.exception("reader of %s", self.address)
            error = LocalProtocolError(f"reader of {self.address}: {caught!r}")
            error.__cause__ = caught
        self._end(error)

    def _read_until_closed(self) -> None:
        settings = self._settings
        transport = Transport.connect(
            self.address,
            timeout_seconds=settings.connect_timeout_seconds,
            read_buffer_bytes=settings.read_buffer_bytes,
            tls=settings.tls,
        )
        self._transport = transport
        try:
            self._machine.start(monotonic())
            while not self._closing:
                self._turn(transport)
        finally:
            self._transport = None
            transport.close()

    def _turn(self, transport: Transport) -> None:
        """Run commands, send, wait, read: one round of the reader."""
        now = monotonic()
        self._run_commands(now)
        transport.write(self._machine.bytes_to_send())
        reading = self._held_bytes < self._settings.held_limit_bytes
        if transport.wait(self._wait_seconds(now), reading=reading):
            block = self._splitter.feed(self._read(transport))
            self._receive(self._machine.receive(block, monotonic()))
        if reading:  # a node that we do not listen to cannot be called silent
            self._receive(self._machine.tick(monotonic()))

    def _read(self, transport: Transport) -> memoryview:
        try:
            return transport.read()
        except ClosedByPeerError:
            raise self._machine.closed_by_peer() from None

    def _run_commands(self, now: float) -> None:
        with self._lock:
            commands, self._commands = self._commands, []
            released_bytes, self._released_bytes = self._released_bytes, 0
        if released_bytes:
            self._held_bytes -= released_bytes
            self._machine.release(released_bytes, now)
        for posted in commands:
            posted.run(self._machine, now)

    def _wait_seconds(self, now: float) -> float:
        deadline = self._machine.next_deadline()
        if deadline is None:
            return _IDLE_WAIT_SECONDS
        return min(max(0.0, deadline - now), _IDLE_WAIT_SECONDS)

    def _receive(self, events: list[Event]) -> None:
        """Hand events over, with the bytes that were charged since the last time."""
        charged_bytes = self._machine.charged_bytes - self._charged_bytes
        events = self._answers.sift(events)
        if not events and not charged_bytes:
            return
        self._charged_bytes += charged_bytes
        self._held_bytes += charged_bytes
        with self._lock:
            self._serial += 1
            serial = self._serial
            if events:
                self._unreleased[serial] = charged_bytes
            else:  # dropped by the machine: nobody else will release them
                self._released_bytes += charged_bytes
        if events:
            positions = positions_behind(self._machine, events)
            self._handover.put(
                Delivery(self.address, events, charged_bytes, positions, self.name, serial)
            )

    def _end(self, error: DcplakeError | None) -> None:
        reason = error or LocalProtocolError(f"the connection to {self.address} is closed")
        with self._lock:
            self._ended = reason
            commands, self._commands = self._commands, []
        _log.debug("= %s ended: %s", self.name, reason)
        for posted in commands:
            posted.future.set_exception(reason)
        self._answers.fail(reason)
        self._handover.put(
            ConnectionEnded(self.name, self.address, None if self._closing else error)
        )


def _of_node(address: NodeAddress, error: DcplakeError) -> DcplakeError:
    """Return ``error`` with the node's address in its message: the machine does not know it."""
    if str(address) in str(error):
        return error
    named = type(error)(f"{address}: {error}")
    named.__cause__ = error
    return named

"""A non-blocking TCP or TLS socket. Other threads can wake up the one thread that uses it.

Other threads may only call ``wake``. ``wait`` reports TLS records that OpenSSL holds back as
readable. Reads go into a buffer of the caller's.
"""

import selectors
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from dcp.client.addresses import NodeAddress
from dcp.client.certificates import certificate_fault
from dcp.errors import AuthenticationError, NodeUnavailableError
from dcp.protocol.refusals import PORT_CURE, REACH_CURE, certificate_cure, tls_cure
from dcp.tls_settings import TlsSettings

TCP: Final = "TCP connection"
TLS: Final = "TLS handshake"

_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class LostConnectionError(NodeUnavailableError):
    """The node closed the connection (``breakage`` is empty), or it broke."""

    def __init__(self, address: NodeAddress, breakage: str = "") -> None:
        told = (
            f"connection to {address} {breakage}"
            if breakage
            else f"{address} closed the connection"
        )
        super().__init__(told)
        self.breakage = breakage


class Transport:
    """One connected socket. Not thread-safe, except ``wake``."""

    def __init__(self, address: NodeAddress, connected: socket.socket) -> None:
        self._address = address
        self._socket = connected
        self._socket.setblocking(False)
        self._outgoing = bytearray()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._registered = 0

    @classmethod
    def connect(
        cls,
        address: NodeAddress,
        *,
        timeout_seconds: float,
        tls: TlsSettings | None,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> "Transport":
        """Connect, with a TLS handshake if ``tls`` is given; report each step as it begins.

        Raises:
            NodeUnavailableError: refused, unreachable, too slow, or bad certificate.
            AuthenticationError: our certificate is refused.
        """
        step = TCP
        try:
            on_step(step)
            connected = socket.create_connection((address.host, address.port), timeout_seconds)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if tls is not None:
                step = TLS
                on_step(step)
                connected = _encrypted(connected, address, tls)
        except TimeoutError:
            cure = REACH_CURE if step == TCP else PORT_CURE
            raise NodeUnavailableError(
                f"waited {timeout_seconds:.1f} s for the {step} with {address}, {cure}"
            ) from None
        except OSError as error:
            fault = tls and certificate_fault(error, address, tls, timeout_seconds)
            cure = REACH_CURE if step == TCP else fault or tls_cure(error)
            told = f"{step} with {address}: {_reason(error)}, {cure}"
            if certificate_cure(error):
                raise AuthenticationError(told) from error
            raise NodeUnavailableError(told) from error
        return cls(address, connected)

    @property
    def encryption(self) -> tuple[str, Mapping[str, Any]]:
        """The version of TLS, and the node's certificate; both are empty without TLS."""
        if not isinstance(self._socket, ssl.SSLSocket):
            return "", {}
        return self._socket.version() or "", self._socket.getpeercert() or {}

    def wait(self, timeout_seconds: float, *, reading: bool) -> bool:
        """Wait for bytes (if ``reading``), for room, or for ``wake``; return whether to read."""
        if reading and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        self._register(
            (selectors.EVENT_READ if reading else 0)
            | (selectors.EVENT_WRITE if self._outgoing else 0)
        )
        readable = False
        for key, mask in self._selector.select(max(0.0, timeout_seconds)):
            if key.fileobj is self._wake_receiver:
                self._drain_wakes()
            elif mask & selectors.EVENT_READ:
                readable = True
        return readable

    def read(self, buffer: memoryview) -> int:
        """Put the waiting bytes into ``buffer``, as far as they fit; return their number.

        Raises:
            LostConnectionError: the connection is closed or broken and nothing is left.
            AuthenticationError: our certificate is refused.
        """
        filled = 0
        while filled < len(buffer):
            try:
                count = self._socket.recv_into(buffer[filled:])
            except _NOT_NOW:
                break
            except OSError as error:
                if filled:
                    break
                lost = LostConnectionError(self._address, f"broke: {_reason(error)}")
                # With TLS 1.3 a server that refuses our certificate says so after the handshake.
                if cure := certificate_cure(error):
                    raise AuthenticationError(f"{lost}, {cure}") from error
                raise lost from error
            if count == 0:
                if filled:
                    break
                raise LostConnectionError(self._address)
            filled += count
        return filled

    def write(self, data: bytes) -> None:
        """Send ``data`` as far as there is room; keep the rest for the next call.

        If the connection is broken, nothing is sent. `read` then raises, after the bytes that have
        arrived.
        """
        self._outgoing += data
        while self._outgoing:
            try:
                sent = self._socket.send(self._outgoing)
            except _NOT_NOW:
                return
            except OSError:
                self._outgoing.clear()
                return
            del self._outgoing[:sent]

    def wake(self) -> None:
        """Let a running ``wait``, or the next one, return; from any thread."""
        with suppress(OSError):  # full: one is pending already; closed: nobody waits any more
            self._wake_sender.send(b"\0")

    def close(self) -> None:
        """Close all sockets. A second call does nothing."""
        self._selector.close()
        for each in (self._socket, self._wake_receiver, self._wake_sender):
            each.close()

    def _register(self, events: int) -> None:
        if events == self._registered:
            return
        if not self._registered:
            self._selector.register(self._socket, events)
        elif not events:
            self._selector.unregister(self._socket)
        else:
            self._selector.modify(self._socket, events)
        self._registered = events

    def _drain_wakes(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_receiver.recv(4096):
                pass


def _encrypted(plain: socket.socket, address: NodeAddress, tls: TlsSettings) -> socket.socket:
    try:
        return tls.client_context().wrap_socket(plain, server_hostname=address.host)
    except BaseException:
        plain.close()
        raise


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__

"""A client's socket as bytes in and bytes out, plain or with TLS; for asyncio.

TLS runs in memory (``ssl.SSLObject``) over the same non-blocking socket calls, so that both kinds
stop reading and writing exactly when their owner does.
"""

import asyncio
import fcntl
import socket
import ssl
import sys
import termios
from contextlib import suppress
from typing import Any, Final, Protocol

_READ_BYTES: Final = 256 * 1024
_MOST_RECORDS: Final = 256
"""So many records of TLS are read in a row, however small: each costs what some KiB cost."""
_ENCRYPT_BYTES: Final = 256 * 1024
_SEND_BUFFER_BYTES: Final = 1024 * 1024
_HANDSHAKE_SECONDS: Final = 10.0
_LOOK_AGAIN_SECONDS: Final = 0.01
KEEP_ALIVE: Final = {socket.TCP_KEEPIDLE: 360, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""After so many seconds of silence TCP asks, how often, and how many times before it gives up
(kv_engine ``daemon/settings.h``)."""


class Channel(Protocol):
    """A connected client. One task may receive while another sends.

    Every call lets other tasks have their turn, also where the socket makes nobody wait: a client
    that floods us, or reads as fast as we write, must not have the loop for itself.
    """

    @property
    def taken_bytes(self) -> int:
        """The sent bytes that the other side's system has taken."""

    async def open(self) -> None:
        """Do what comes before the first byte; raises OSError where the client cannot."""

    @property
    def certificate_name(self) -> str:
        """The common name in the certificate that the client showed; empty where it showed none."""

    @property
    def has_more(self) -> bool:
        """True if ``receive`` has bytes to return at once."""

    async def receive(self) -> bytes:
        """Return the bytes that are there; empty when the client closed."""

    async def send(self, data: bytes | bytearray) -> None:
        """Return when the socket took all of ``data``."""

    async def end(self) -> None:
        """Say that nothing more comes, and return when the client has all that was sent.

        What it says meanwhile is thrown away: to close a socket that was not read would take back
        what is still on its way.
        """

    def close(self) -> None:
        """Let go of the socket; harmless when it is closed."""


class PlainChannel:
    """The socket itself."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sent_bytes = 0
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEP_ALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def taken_bytes(self) -> int:
        """The bytes that the client's system has acknowledged: read, or in its buffer."""
        return self._sent_bytes - _unacknowledged_bytes(self._socket)

    async def open(self) -> None:
        """Nothing comes first."""

    @property
    def certificate_name(self) -> str:
        """Nothing: only TLS has certificates."""
        return ""

    @property
    def has_more(self) -> bool:
        """True if the system has bytes that were not read."""
        return _count(self._socket, termios.FIONREAD) > 0

    async def receive(self) -> bytes:
        """Return the bytes that are there; empty when the client closed."""
        await asyncio.sleep(0)
        try:
            return await self._loop.sock_recv(self._socket, _READ_BYTES)
        except OSError as error:
            raise _without_cycle(error) from None

    async def send(self, data: bytes | bytearray) -> None:
        """Return when the socket took all of ``data``."""
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise _without_cycle(error) from None
        self._sent_bytes += len(data)
        await asyncio.sleep(0)

    async def end(self) -> None:
        """Return when the client has acknowledged everything, or closed."""
        self._socket.shutdown(socket.SHUT_WR)
        while _unacknowledged_bytes(self._socket):
            with suppress(BlockingIOError):
                if not self._socket.recv(_READ_BYTES):
                    return
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


def _without_cycle(error: OSError) -> OSError:
    """Return an error without the frames of asyncio, in which its own future holds the error.

    Else what was to be sent to a client that went away stays in memory until the next full run of
    the garbage collector, which may be never.
    """
    return error.with_traceback(None)


def _unacknowledged_bytes(sock: socket.socket) -> int:
    return _count(sock, termios.TIOCOUTQ)  # SIOCOUTQ of tcp(7)


def _count(sock: socket.socket, request: int) -> int:
    return int.from_bytes(fcntl.ioctl(sock, request, bytes(4)), sys.byteorder)


class TlsChannel:
    """The server's side of TLS over a socket.

    Encrypted bytes wait nowhere for long: they are read only when TLS has nothing left to give, and
    a part of at most 256 KiB is encrypted when the socket took the part before it.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._plain = PlainChannel(sock)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sending = asyncio.Lock()

    @property
    def taken_bytes(self) -> int:
        """The encrypted bytes that the client's system has acknowledged."""
        return self._plain.taken_bytes

    async def open(self) -> None:
        """Shake hands.

        Raises:
            OSError: the client speaks no TLS that we accept, closed, or took too long.
        """
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._fill()
                except ssl.SSLError:
                    await self._flush()  # the alert that says what is wrong
                    raise
                else:
                    await self._flush()
                    return

    @property
    def certificate_name(self) -> str:
        """The common name of the certificate's subject, where the client showed one."""
        shown: Any = self._tls.getpeercert() or {}  # typed for all that a certificate may have
        subject = dict(entry for part in shown.get("subject", ()) for entry in part)
        return str(subject.get("commonName", ""))

    @property
    def has_more(self) -> bool:
        """True if bytes of a record are left; what is still encrypted may be no whole record."""
        return self._tls.pending() > 0

    async def receive(self) -> bytes:
        """Return the content of the records that are there, of some of them where they are many.

        Empty when the client closed, politely or not.
        """
        await asyncio.sleep(0)
        while True:
            try:
                first = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()  # TLS's own answers, to a change of keys
                await self._fill()
            except ssl.SSLEOFError:
                return b""
            else:
                return self._with_more(first)

    def _with_more(self, first: bytes) -> bytes:
        """Return what was read of one record with what the next ones hold; empty stays empty."""
        parts, left_bytes = [first], _READ_BYTES - len(first)
        with suppress(ssl.SSLError):  # also none is left; what is wrong is said next time too
            while parts[-1] and left_bytes > 0 and len(parts) < _MOST_RECORDS:
                parts.append(self._tls.read(left_bytes))
                left_bytes -= len(parts[-1])
        return first if len(parts) == 1 else b"".join(parts)

    async def send(self, data: bytes | bytearray) -> None:
        """Return when the socket took all of ``data``."""
        if not data:
            await asyncio.sleep(0)
        with memoryview(data) as view:
            for begin in range(0, len(view), _ENCRYPT_BYTES):
                await self._send_part(view[begin : begin + _ENCRYPT_BYTES])

    async def end(self) -> None:
        """Take leave in TLS too."""
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        await self._flush()
        await self._plain.end()

    def close(self) -> None:
        """Let go of the socket."""
        self._plain.close()

    async def _send_part(self, part: memoryview) -> None:
        done = 0
        while done < len(part):  # a write takes one record
            done += self._tls.write(part[done:])
        await self._flush()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            async with self._sending:  # two tasks must not mix their bytes
                await self._plain.send(self._outgoing.read())

    async def _fill(self) -> None:
        data = await self._plain.receive()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

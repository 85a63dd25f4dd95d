"""A client's socket, plain or with TLS, for asyncio.

TLS runs in memory (``ssl.SSLObject``) over the same socket calls, so both kinds stop reading and
writing exactly when their owner does.
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
"""Most TLS records that are read in a row: a small record costs as much as some KiB."""
_ENCRYPT_BYTES: Final = 256 * 1024
_SEND_BUFFER_BYTES: Final = 1024 * 1024
_HANDSHAKE_SECONDS: Final = 10.0
_LOOK_AGAIN_SECONDS: Final = 0.01
KEEP_ALIVE: Final = {socket.TCP_KEEPIDLE: 360, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Seconds of silence before TCP probes the client, seconds between probes, and probes before it
gives up (kv_engine ``daemon/settings.h``)."""


class Channel(Protocol):
    """A connected client. One task may receive while another sends.

    Every call yields to other tasks, even if the socket is ready. A client that floods the server,
    or reads as fast as it writes, must not take the whole loop.
    """

    @property
    def drained_bytes(self) -> int:
        """Sent bytes that the client's system has acknowledged: they are read, or in its buffer."""

    async def open(self) -> None:
        """Do the handshake, if any; raise OSError if the client fails it."""

    @property
    def certificate_name(self) -> str | None:
        """Common name in the client's certificate; empty without one, None without TLS."""

    @property
    def has_more(self) -> bool:
        """True if ``receive`` would return bytes at once."""

    async def receive(self) -> bytes:
        """Return the next bytes; empty once the client has closed."""

    async def send(self, data: bytes | bytearray) -> None:
        """Return when the socket has taken all of ``data``."""

    async def end(self) -> None:
        """Send the end of the stream, and return when the client has acknowledged all bytes."""

    def close(self) -> None:
        """Release the socket; a second call does nothing."""


class PlainChannel:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sent_bytes = 0
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        # Nagle's algorithm would delay a small answer until the client acknowledges the one before.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEP_ALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def drained_bytes(self) -> int:
        return self._sent_bytes - _unacknowledged_bytes(self._socket)

    async def open(self) -> None:
        """Do nothing: TCP is connected."""

    @property
    def certificate_name(self) -> None:
        """None: only TLS has certificates."""

    @property
    def has_more(self) -> bool:
        return _count(self._socket, termios.FIONREAD) > 0

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        try:
            return await self._loop.sock_recv(self._socket, _READ_BYTES)
        except OSError as error:
            raise _without_cycle(error) from None

    async def send(self, data: bytes | bytearray) -> None:
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise _without_cycle(error) from None
        self._sent_bytes += len(data)
        await asyncio.sleep(0)

    async def end(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)
        while _unacknowledged_bytes(self._socket):
            # The client's bytes are read and dropped. Closing a socket with unread bytes sends a
            # reset, which would discard bytes that are still on their way to the client.
            with suppress(BlockingIOError):
                if not self._socket.recv(_READ_BYTES):
                    return
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def close(self) -> None:
        self._socket.close()


def _without_cycle(error: OSError) -> OSError:
    """Return the error without its traceback.

    In asyncio's frames, a future holds the error, and the error holds the frames. The cycle would
    keep unsent bytes in memory until a full garbage collection.
    """
    return error.with_traceback(None)


def _unacknowledged_bytes(sock: socket.socket) -> int:
    return _count(sock, termios.TIOCOUTQ)  # SIOCOUTQ of tcp(7)


def _count(sock: socket.socket, request: int) -> int:
    return int.from_bytes(fcntl.ioctl(sock, request, bytes(4)), sys.byteorder)


class TlsChannel:
    """The server's side of TLS over a socket.

    Little encrypted data waits in memory: bytes are read once TLS has none left, and at most 256
    KiB are encrypted at a time.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._plain = PlainChannel(sock)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sending = asyncio.Lock()

    @property
    def drained_bytes(self) -> int:
        """Acknowledged bytes, counted encrypted."""
        return self._plain.drained_bytes

    async def open(self) -> None:
        """Do the handshake.

        Raises:
            OSError: the client speaks no TLS that we accept, closed, or took too long.
        """
        # The session's time limits act only after the handshake.
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._fill()
                except ssl.SSLError:
                    await self._flush()  # sends TLS's alert, which names the fault
                    raise
                else:
                    await self._flush()
                    return

    @property
    def certificate_name(self) -> str:
        shown: Any = self._tls.getpeercert() or {}  # typeshed's type is too wide
        subject = dict(entry for part in shown.get("subject", ()) for entry in part)
        return str(subject.get("commonName", ""))

    @property
    def has_more(self) -> bool:
        """True if a decrypted record is left; encrypted bytes may not be a whole record."""
        return self._tls.pending() > 0

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        while True:
            try:
                first = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()  # TLS answers a change of keys by itself
                await self._fill()
            except ssl.SSLEOFError:
                return b""
            else:
                return self._with_more(first)

    def _with_more(self, first: bytes) -> bytes:
        """Return ``first`` with the content of the records after it; empty stays empty."""
        parts, left_bytes = [first], _READ_BYTES - len(first)
        # No record is left, or a fault that the next read raises again.
        with suppress(ssl.SSLError):
            while parts[-1] and left_bytes > 0 and len(parts) < _MOST_RECORDS:
                parts.append(self._tls.read(left_bytes))
                left_bytes -= len(parts[-1])
        return first if len(parts) == 1 else b"".join(parts)

    async def send(self, data: bytes | bytearray) -> None:
        if not data:
            await asyncio.sleep(0)
        with memoryview(data) as view:
            for begin in range(0, len(view), _ENCRYPT_BYTES):
                await self._send_part(view[begin : begin + _ENCRYPT_BYTES])

    async def end(self) -> None:
        # Sends close_notify, and does not wait for the client's.
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        await self._flush()
        await self._plain.end()

    def close(self) -> None:
        self._plain.close()

    async def _send_part(self, part: memoryview) -> None:
        done = 0
        while done < len(part):  # one write encrypts one record
            done += self._tls.write(part[done:])
        await self._flush()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            async with self._sending:  # reader and writer must not interleave records
                await self._plain.send(self._outgoing.read())

    async def _fill(self) -> None:
        data = await self._plain.receive()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

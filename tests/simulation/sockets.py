"""Replaces sockets at the product's edges: ports, channels, asyncio's transport."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tests.simulation.network import Link, Network

_READ_BYTES: Final = 256 * 1024


class AcceptedSocket:
    """A client's connection, as a node's port hands it over."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def close(self) -> None:
        """Refuse the client."""
        self.link.close_side(self.link.down, self.link.up)


class Port:
    """Stands for ``dcp.server.node.listener.Listener``."""

    network: Network

    def __init__(
        self, host: str, port: int, serve: Callable[[Any], None], option: str = ""
    ) -> None:
        """``option`` is for errors of ports, of which there are none here."""
        self.host = host
        self.port = port
        self._serve = serve
        self._is_open = False

    def open(self) -> None:
        """Listen and accept clients."""
        self.bind()
        self.network.listeners[self.host, self.port] = self._accept

    def bind(self) -> None:
        """Take the port."""
        if not self.port:
            self.port = self.network.free_port()
        self._is_open = True

    def _accept(self, link: Link) -> None:
        if self._is_open:
            self._serve(AcceptedSocket(link))
        else:
            AcceptedSocket(link).close()

    def close(self) -> None:
        """Accept no new clients."""
        self._is_open = False
        self.network.listeners.pop((self.host, self.port), None)

    def leave(self) -> None:
        """Let others have the port: nobody wants it."""


class ServedChannel:
    """Stands for ``dcp.server.node.channels.PlainChannel``."""

    certificate_name = ""

    def __init__(self, accepted: AcceptedSocket) -> None:
        self._link = accepted.link
        self._in, self._out = self._link.up, self._link.down
        self._closed = False
        self._has_bytes, self._has_room = asyncio.Event(), asyncio.Event()
        self._in.on_bytes, self._out.on_room = self._has_bytes.set, self._has_room.set

    @property
    def drained_bytes(self) -> int:
        """How much the client has read."""
        return self._out.drained_bytes

    async def open(self) -> None:
        """Nothing comes first."""

    @property
    def has_more(self) -> bool:
        """Whether ``receive`` returns at once."""
        return self._in.is_readable

    async def receive(self) -> bytes:
        """Return the bytes that are there; empty when the client closed."""
        await asyncio.sleep(0)
        while (found := self._in.read(_READ_BYTES)) is None:
            self._has_bytes.clear()
            await self._has_bytes.wait()
        return found

    async def send(self, data: bytes | bytearray) -> None:
        """Return when the connection took all of ``data``."""
        done = 0
        while done < len(data):
            self._has_room.clear()
            sent = self._out.send(bytes(data[done:]))
            done += sent
            if not sent:
                await self._has_room.wait()
        await asyncio.sleep(0)

    async def end(self) -> None:
        """Say that nothing more comes, and return when the client has all, or closed."""
        self._out.end()
        while not (self._in.has_end or self._in.error):
            self._has_bytes.clear()
            self._in.read(_READ_BYTES)
            await self._has_bytes.wait()

    def close(self) -> None:
        """Let go of the connection."""
        if not self._closed:
            self._closed = True
            self._link.close_side(self._out, self._in)


class LoopTransport(asyncio.Transport):
    """What ``asyncio.open_connection`` gets: links of a relay, and between nodes."""

    def __init__(self, link: Link, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._link, self._protocol = link, protocol
        self._in, self._out = link.down, link.up
        self._loop = link.network.loop
        self._unsent = bytearray()
        self._closing = self._paused = self._is_over = False
        self._in.on_bytes, self._out.on_room = self._arrived, self._flush
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Know nothing about it."""
        return default

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell another one."""
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return who is told."""
        return self._protocol

    def is_reading(self) -> bool:
        """Whether what arrives is told."""
        return not self._paused

    def pause_reading(self) -> None:
        """Let what arrives wait."""
        self._paused = True

    def resume_reading(self) -> None:
        """Tell again what arrives."""
        self._paused = False
        self._loop.call_soon(self._arrived)

    def can_write_eof(self) -> bool:
        """Nobody here does."""
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, now or when there is room."""
        if not self._closing:
            self._unsent += data
            self._flush()

    def get_write_buffer_size(self) -> int:
        """Return what is not sent."""
        return len(self._unsent)

    def _flush(self) -> None:
        try:
            while self._unsent and (sent := self._out.send(bytes(self._unsent))):
                del self._unsent[:sent]
        except ConnectionError as error:
            self._end(error)
        if self._closing and not self._unsent:
            self._end(None)

    def _arrived(self) -> None:
        if self._paused or self._closing:
            return
        try:
            found = self._in.read(_READ_BYTES)
        except ConnectionError as error:
            self._end(error)
            return
        if found:
            self._protocol.data_received(found)
            self._loop.call_soon(self._arrived)
        elif found is not None and not self._protocol.eof_received():
            self.close()

    def close(self) -> None:
        """Close when all is sent."""
        self._closing = True
        self._flush()

    def abort(self) -> None:
        """Close at once."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = self._closing = True
        self._unsent.clear()
        self._link.close_side(self._out, self._in)
        self._loop.call_soon(self._protocol.connection_lost, error)


def connector(network: Network) -> Callable[[asyncio.Protocol, str, int], Any]:
    """Return what connects for ``asyncio.open_connection``."""

    async def connect(protocol: asyncio.Protocol, host: str, port: int) -> LoopTransport:
        await asyncio.sleep(network.connect_seconds())
        link = network.connect((host, port), "loop")
        if link is None:
            raise ConnectionRefusedError(111, "Connection refused")
        return LoopTransport(link, protocol)

    return connect

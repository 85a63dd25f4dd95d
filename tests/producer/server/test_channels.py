"""Channels over real sockets: who says much at once does not have the loop for himself.

Counted in turns that others get, never in seconds.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine

import pytest

from dcp.server.node.channels import Channel, PlainChannel, TlsChannel
from tests.producer.tls import TLS_FILES, client_context

RECORDS = 2000


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        server, _ = listening.accept()
    client.setblocking(False)
    return server, client


class TlsClient:
    """The client's side of TLS over a socket, in the loop of the channel that is tried."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = client_context().wrap_bio(
            self._incoming, self._outgoing, server_hostname="127.0.0.1"
        )

    async def shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        is_done = False
        while not is_done:
            try:
                self._tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                await self._send()
                self._incoming.write(await loop.sock_recv(self._socket, 65_536))
        await self._send()

    async def say_in_records_of_one_byte(self, count: int) -> None:
        for _ in range(count):
            self._tls.write(b"x")
        await self._send()

    async def _send(self) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, self._outgoing.read())


class Others:
    """Somebody else in the loop; ``turns`` is how often it was their turn."""

    def __init__(self) -> None:
        self.turns = 0

    async def run(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


async def _turns_while_reading(channel: Channel, count: int) -> list[int]:
    """Read so many bytes; how many turns others had before each part was there."""
    others, found, got_bytes = Others(), [], 0
    running = asyncio.ensure_future(others.run())
    while got_bytes < count:
        before = others.turns
        got_bytes += len(await channel.receive())
        found.append(others.turns - before)
    running.cancel()
    return found


async def _plain() -> list[int]:
    server, client = _connected()
    with server, client:
        await asyncio.get_running_loop().sock_sendall(client, b"x" * RECORDS)
        return await _turns_while_reading(PlainChannel(server), RECORDS)


async def _encrypted() -> list[int]:
    server, sock = _connected()
    with server, sock:
        channel, client = TlsChannel(server, TLS_FILES.server_context()), TlsClient(sock)
        await asyncio.gather(channel.open(), client.shake_hands())
        await client.say_in_records_of_one_byte(RECORDS)
        return await _turns_while_reading(channel, RECORDS)


@pytest.mark.parametrize("read", [_plain, _encrypted])
def test_others_have_a_turn_before_each_part(
    read: Callable[[], Coroutine[None, None, list[int]]],
) -> None:
    assert all(asyncio.run(read()))


def test_small_records_are_read_many_at_a_time() -> None:
    assert len(asyncio.run(_encrypted())) <= RECORDS // 100


def test_a_channel_tells_whether_it_has_more() -> None:
    async def told() -> list[bool]:
        server, client = _connected()
        with server, client:
            channel = PlainChannel(server)
            found = [channel.has_more]
            await asyncio.get_running_loop().sock_sendall(client, b"xx")
            found.append(channel.has_more)
            await channel.receive()
            return [*found, channel.has_more]

    assert asyncio.run(told()) == [False, True, False]

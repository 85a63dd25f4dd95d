"""A connection over a channel that does as it is told: what happens when nobody reads."""

import asyncio
from collections.abc import Callable

import pytest

from dcp.producer.bucket import Bucket
from dcp.producer.commands import COMMANDS
from dcp.producer.connection import ClientConnection
from dcp.producer.session import Session
from dcp.producer.settings import ClusterSettings
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import Opcode

HELLO = encode(m.Hello(b"x", ()), Opcode.HELLO).to_bytes()


class StuckChannel:
    """A client that says one thing, then nothing, and reads nothing."""

    def __init__(self, said: bytes) -> None:
        self._said = [said]
        self.is_sending = asyncio.Event()
        self.is_closed = False

    @property
    def taken_bytes(self) -> int:
        return 0

    async def open(self) -> None:
        """Nothing comes first."""

    async def receive(self) -> bytes:
        if self._said:
            return self._said.pop()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that event")

    async def send(self, data: bytes | bytearray) -> None:
        self.is_sending.set()
        await asyncio.Event().wait()

    async def end(self) -> None:
        raise AssertionError("there is something to send first")

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("end", [Session.close, Session.abort])
def test_a_connection_that_must_end_does_although_its_client_reads_nothing(
    end: Callable[[Session], None],
) -> None:
    bucket = Bucket(ClusterSettings(vbuckets=1, last_words_seconds=0.01))
    session = Session(bucket, 0, COMMANDS)

    async def serve() -> StuckChannel:
        channel, awake = StuckChannel(HELLO), asyncio.Event()
        awake.set()
        client = ClientConnection(bucket, session, channel, awake)
        served = asyncio.ensure_future(client.run())
        await channel.is_sending.wait()
        end(session)
        async with asyncio.timeout(10.0):
            await served
        client.close()
        return channel

    assert asyncio.run(serve()).is_closed

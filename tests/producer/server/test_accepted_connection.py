"""A connection over a channel that does as it is told: what happens when nobody reads."""

import asyncio
from collections.abc import Callable

import pytest

from dcp.producer.bucket import ProducerBucket
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.commands import COMMANDS
from dcp.server.commands.session import Session
from dcp.server.node.accepted_connection import AcceptedConnection
from dcp.server.node.turns import Turns
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import Opcode
from tests.producer.scripted_channel import ScriptedChannel, always_awake

HELLO = encode(m.Hello(b"x", ()), Opcode.HELLO).to_bytes()


class StuckChannel(ScriptedChannel):
    """A client that reads nothing."""

    def __init__(self, said: bytes) -> None:
        super().__init__(said)
        self.is_sending = asyncio.Event()

    async def send(self, data: bytes | bytearray) -> None:
        self.is_sending.set()
        await asyncio.Event().wait()

    async def end(self) -> None:
        raise AssertionError("there is something to send first")


@pytest.mark.parametrize("end", [Session.close, Session.abort])
def test_a_connection_that_must_end_does_although_its_client_reads_nothing(
    end: Callable[[Session], None],
) -> None:
    bucket = ProducerBucket(ClusterSettings(vbuckets=1, last_words_seconds=0.01))
    session = Session(bucket, 0, COMMANDS, 0.0)

    async def serve() -> StuckChannel:
        channel = StuckChannel(HELLO)
        client = AcceptedConnection(bucket, session, channel, always_awake(), Turns())
        served = asyncio.ensure_future(client.run())
        await channel.is_sending.wait()
        end(session)
        async with asyncio.timeout(10.0):
            await served
        client.close()
        return channel

    assert asyncio.run(serve()).is_closed

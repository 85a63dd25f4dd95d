"""The asyncio edge of orders between processes: a connection that asks one thing at a time."""

import asyncio
from contextlib import suppress
from secrets import token_urlsafe
from typing import Self

from dcp.errors import FrameError, RemoteProtocolError, SourceError
from dcp.producer.auth import NODE_MECHANISM
from dcp.producer.background import ended
from dcp.producer.cluster_map import NodeAddress
from dcp.protocol.credentials import Credentials
from dcp.protocol.refusals import describe_refusal
from dcp.protocol.sasl import SaslExchange
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import HelloFeature, Opcode, Status

_AGENT = b"dcplake-cluster"
_READ_BYTES = 64 * 1024
_NONCE_BYTES = 18


class OrderConnection:
    """A connection to a node, signed in as the cluster's own user. Not for two tasks at once.

    ``lost`` is set when the peer closes it.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_seconds: float
    ) -> None:
        self.lost = asyncio.Event()
        self._writer = writer
        self.timeout_seconds = timeout_seconds
        self._opaque = 0
        self._answers: asyncio.Queue[Frame | None] = asyncio.Queue(1)  # None at the end
        self._reading = asyncio.ensure_future(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        splitter = FrameSplitter()
        try:
            while data := await reader.read(_READ_BYTES):
                block = splitter.feed(data)
                for index in range(len(block)):
                    await self._answers.put(block.frame(index))
        except (OSError, FrameError):
            pass  # what follows cannot be read either
        finally:
            self.lost.set()
            if self._answers.empty():
                self._answers.put_nowait(None)

    @classmethod
    async def open(
        cls, address: NodeAddress, credentials: Credentials, timeout_seconds: float
    ) -> Self:
        """Connect and sign in; ``timeout_seconds`` is how long each answer may take.

        Raises:
            OSError: the node cannot be reached, or does not answer in time (TimeoutError).
            SourceError: it refuses us, or does not know our password.
        """
        async with asyncio.timeout(timeout_seconds):
            reader, writer = await asyncio.open_connection(address.host, address.kv)
        found = cls(reader, writer, timeout_seconds)
        try:
            await found.ask(m.Hello(_AGENT, (HelloFeature.XERROR,)), Opcode.HELLO)
            await found._sign_in(credentials)
        except BaseException:
            await found.close()
            raise
        return found

    async def _sign_in(self, credentials: Credentials) -> None:
        nonce = token_urlsafe(_NONCE_BYTES)
        exchange = SaslExchange.start(NODE_MECHANISM, credentials, nonce)
        said = m.Sasl(NODE_MECHANISM.encode(), exchange.payload)
        challenge = await self.ask(said, Opcode.SASL_AUTH, Status.AUTH_CONTINUE)
        exchange = exchange.answer(challenge)
        said = m.Sasl(NODE_MECHANISM.encode(), exchange.payload)
        exchange.verify(await self.ask(said, Opcode.SASL_STEP))

    async def ask(self, body: m.Body, opcode: Opcode, expected: Status = Status.SUCCESS) -> bytes:
        """Send a request and return the value of its answer, which has the ``expected`` status.

        Raises:
            OSError: the connection is lost, or there is no answer in time (TimeoutError).
            SourceError: it was refused, or the answer is none.
        """
        self._opaque += 1
        self._writer.write(encode(body, opcode, opaque=self._opaque).to_bytes())
        async with asyncio.timeout(self.timeout_seconds):
            await self._writer.drain()
            answer = await self._answers.get()
            while answer is not None and answer.opaque != self._opaque:
                answer = await self._answers.get()  # that was of one who was cancelled
        if answer is None:
            self._answers.put_nowait(None)  # for whoever asks next
            raise ConnectionResetError("the connection was closed")
        if not answer.magic.is_response or answer.opcode != opcode:
            raise RemoteProtocolError(
                f"order {opcode.name}: found opcode {answer.opcode:#04x}, expected its answer"
            )
        if answer.status != expected:
            raise SourceError(
                f"order {opcode.name}: found {describe_refusal(answer)}, expected {expected.name}"
            )
        return answer.value

    async def close(self) -> None:
        """Close it; harmless when it is lost. What was not sent yet is for nobody."""
        # Before anything is waited for: who closes may be cancelled. And else a peer that reads
        # nothing would keep it open.
        self._writer.transport.abort()
        self._reading.cancel()
        await ended("reading of answers to orders", self._reading)
        with suppress(OSError):
            await self._writer.wait_closed()

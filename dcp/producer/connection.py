"""One client's connection: a task that reads and a task that writes, around a sans-I/O session.

Memory per connection is bounded: reading stops while more than ``OUTBOX_BYTES`` of answers wait for
the client, and stream messages are taken from the session only when the socket took the last ones.
"""

import asyncio
from contextlib import suppress

from dcp.errors import FrameError
from dcp.producer.bucket import Bucket
from dcp.producer.channels import Channel
from dcp.producer.session import Session
from dcp.producer.settings import OUTBOX_BYTES, WRITE_BYTES
from dcp.wire.framing import FrameSplitter


class ClientConnection:
    """Runs a session over a channel until either side closes; ``awake`` cleared makes it hang."""

    def __init__(
        self, bucket: Bucket, session: Session, channel: Channel, awake: asyncio.Event
    ) -> None:
        self.session = session
        self._bucket = bucket
        self._channel = channel
        self._awake = awake
        self._loop = asyncio.get_running_loop()
        self._something_to_write = asyncio.Event()
        self._outbox_is_short = asyncio.Event()
        self._outbox_is_short.set()
        session.on_close = session.on_answer = self.wake

    def wake(self) -> None:
        """Let the writer look whether there is something; only from the loop's thread."""
        self._something_to_write.set()

    async def run(self) -> None:
        """Serve the client; returns when the connection is over. ``close`` must follow."""
        await self._awake.wait()
        with suppress(OSError):
            await self._channel.open()
            await self._read_and_write()

    async def _read_and_write(self) -> None:
        reader = asyncio.ensure_future(self._read())
        writer = asyncio.ensure_future(self._write())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and self.session.is_closing:
                await asyncio.wait((writer,), timeout=1.0)  # let it say the last answers
        finally:
            for task in (reader, writer):
                task.cancel()
            results = await asyncio.gather(reader, writer, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception) and not isinstance(result, OSError):
                    raise result

    def close(self) -> None:
        """Let go of channel and session; for the done callback of ``run``, however it ended."""
        with self._bucket.lock:
            self.session.forget()
        self._channel.close()

    async def _read(self) -> None:
        splitter = FrameSplitter(self.session.max_frame_bytes)
        while not self.session.is_closing:
            data = await self._channel.receive()
            await self._awake.wait()
            if not data:
                return
            try:
                self._feed(splitter, data)
            except FrameError:
                with self._bucket.lock:
                    self.session.abort()
            self.wake()
            await self._outbox_is_short.wait()

    def _feed(self, splitter: FrameSplitter, data: bytes) -> None:
        block = splitter.feed(data)
        with self._bucket.lock:
            for index in range(len(block)):
                self.session.feed(block.frame(index), self._loop.time())
            splitter.max_frame_bytes = self.session.max_frame_bytes
            if self.session.outbox_bytes > OUTBOX_BYTES or self.session.is_waiting:
                self._outbox_is_short.clear()

    async def _write(self) -> None:
        while True:
            await self._awake.wait()
            self._something_to_write.clear()
            with self._bucket.lock:
                now = self._loop.time()
                frames = self.session.output(WRITE_BYTES, now)
                deadline = self.session.next_deadline(now)
            if frames:
                await self._send(frames)
                if not self.session.is_waiting:
                    self._outbox_is_short.set()
            elif self.session.is_closing:
                return
            else:
                await self._wait_until(deadline)

    async def _send(self, frames: list[bytes | bytearray]) -> None:
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        await self._channel.send(data)
        await asyncio.sleep(0)  # sending does not yield while the socket takes all

    async def _wait_until(self, deadline: float | None) -> None:
        timeout = None if deadline is None else max(0.0, deadline - self._loop.time())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._something_to_write.wait()

"""One client's connection: a reading and a writing task around a session.

Limits keep a client from taking memory or time from others:

- Requests are handled in turns, shared with all connections (``turns.py``).
- Requests wait while more than ``OUTBOX_BYTES`` of answers wait for the client.
- A batch is encoded once the socket has taken the last one (``client_load.py``).
- A large frame is read once there is room for it (``large_frames.py``).
"""

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Final

from dcp.errors import FrameError
from dcp.server.bucket.assembly import Bucket
from dcp.server.bucket.large_frames import FrameRoom
from dcp.server.commands.session import Session
from dcp.server.model.server_settings import OUTBOX_BYTES
from dcp.server.node.channels import Channel
from dcp.server.node.turns import ITERATION_SECONDS, Turns
from dcp.wire.framing import FrameBlock, FrameSplitter

_LOGGER = logging.getLogger(__name__)
_PART_FRAMES: Final = 16
"""Frames of a long answer that are made in one turn."""
_ANSWER_BYTES: Final = 8 * 1024
"""Size at which answers are sent although requests still wait: each send costs a system call."""
FLUSH_REQUESTS: Final = 4096
"""Number of handled requests after which writes are flushed, although more requests wait."""


class AcceptedConnection:
    """Runs a session over a channel until either side closes; hangs while ``awake`` is cleared."""

    def __init__(
        self,
        bucket: Bucket,
        session: Session,
        channel: Channel,
        awake: asyncio.Event,
        turns: Turns,
    ) -> None:
        self.session = session
        self._bucket = bucket
        self._channel = channel
        self._awake = awake
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._something_to_write = asyncio.Event()
        self._outbox_is_short = asyncio.Event()
        self._outbox_is_short.set()
        self._there_is_room = asyncio.Event()
        self._room = FrameRoom(bucket.clients.large_frames, self._there_is_room.set)
        self._unflushed_requests = 0
        self._reader: asyncio.Future[None] | None = None
        self._is_closing = asyncio.Event()
        session.attach(self.wake)

    @property
    def drained_bytes(self) -> int:
        return self._channel.drained_bytes

    def wake(self) -> None:
        """Let the writer look for bytes to send, and end the connection if the session closes.

        Call it in the loop's thread only.
        """
        self._something_to_write.set()
        if self.session.is_closing:
            self._is_closing.set()

    async def run(self) -> None:
        """Serve the client until the connection is over; ``close`` must follow."""
        await self._awake.wait()
        try:
            await self._channel.open()
        except OSError:
            return
        if self._takes_certificate():
            await self._read_and_write()

    def _takes_certificate(self) -> bool:
        """Log in the certificate's user; return False if a required one names nobody."""
        name, tls = self._channel.certificate_name, self._bucket.settings.tls
        if name is None or tls is None:
            return True
        is_user = bool(name) and self.session.login.take_certificate(name)
        # An optional certificate that names no user leaves the login to SASL (kv_engine
        # ``daemon/connection.cc``).
        return is_user or not tls.requires_client_certificate

    async def _read_and_write(self) -> None:
        reader = self._reader = asyncio.ensure_future(self._read())
        writer = asyncio.ensure_future(self._write())
        closing = asyncio.ensure_future(self._is_closing.wait())
        tasks = (reader, writer, closing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            has_last_words = self.session.is_closing
            await self._let_go_of_streams()
            if has_last_words:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._bucket.settings.last_words_seconds):
                        await self._say_last_words(reader, writer)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [result for result in results if isinstance(result, Exception)]
        if failed:
            raise failed[0] if len(failed) == 1 else ExceptionGroup("reading and writing", failed)

    async def _let_go_of_streams(self) -> None:
        while True:
            with self._bucket.lock:
                if not self.session.let_go_of_some():
                    return
            # A connection can have thousands of streams; others get their turns in between.
            await asyncio.sleep(0)

    async def _say_last_words(
        self, reader: asyncio.Future[None], writer: asyncio.Future[None]
    ) -> None:
        """Wait until the client has received all sent bytes, if it reads at all."""
        await asyncio.wait((writer,))
        with self._bucket.lock:
            self.session.forget()
        # The reader must stop first: ``end`` reads and drops the client's bytes.
        reader.cancel()
        with suppress(OSError):
            await self._channel.end()

    def close_if_overdue(self, now: float) -> None:
        self.session.close_if_overdue(now)
        if self._room.is_overdue(now) and not self.session.is_waiting:
            _LOGGER.warning(
                "node %d closes a connection: its frame of %d bytes lacks %d, and %d others wait "
                "for room",
                self.session.node,
                self._room.frame_bytes,
                self._room.lacking_bytes,
                self._bucket.clients.large_frames.waiting,
            )
            self.session.abort()
            if self._reader is not None:
                self._reader.cancel()  # the reader holds the arrived part of the frame

    def close(self) -> None:
        """Release channel and session; for the done callback of ``run``, however it ended."""
        with self._bucket.lock:
            self._bucket.writes.flush()  # a block that was not finished may have written something
            self.session.forget()
        self.session.detach()  # breaks the reference cycle of connection and session
        self._channel.close()

    async def _read(self) -> None:
        try:
            await self._read_frames()
        finally:
            self._room.let_go(self._loop.time())

    async def _read_frames(self) -> None:
        splitter = FrameSplitter(self.session.max_frame_bytes)
        while not self.session.is_closing:
            data = await self._receive()
            await self._awake.wait()
            if not data:
                return
            await self._have_room(splitter, len(data))
            try:
                block = splitter.feed(data)
                if not len(block):  # the rest of the frame may come much later
                    self._flush()
                await self._take(block)
            except FrameError:
                with self._bucket.lock:
                    self.session.abort()
            # The limit grows with the login.
            splitter.max_frame_bytes = self.session.max_frame_bytes

    async def _have_room(self, splitter: FrameSplitter, count: int) -> None:
        """Wait until there is room for the bytes of a large frame."""
        self._there_is_room.clear()
        arrived_bytes = splitter.pending_bytes + count
        self._room.brought(arrived_bytes, splitter.unfinished_frame_bytes, self._loop.time())
        if self._room.is_waiting:
            self._flush()
            await self._there_is_room.wait()

    def _flush(self) -> None:
        """Write the turns' writes to the disk in memory, and send all answers."""
        with self._bucket.lock:
            self._bucket.writes.flush()
        self._unflushed_requests = 0
        self.wake()

    async def _take(self, block: FrameBlock) -> None:
        if len(block):
            self._room.whole(self._loop.time())
            await self._act_on(block)
            self._room.let_go(self._loop.time())

    async def _receive(self) -> bytes:
        """Return bytes from the client; empty if it is gone, with or without a proper close."""
        with suppress(OSError):
            return await self._channel.receive()
        return b""

    async def _act_on(self, block: FrameBlock) -> None:
        done = 0
        while done < len(block) and not self.session.is_closing:
            turn = partial(self._take_turn, block, done)
            done += await self._turns.take(turn, is_new=not done)
            while self.session.work is not None and not self.session.is_closing:
                await self._turns.take(self._work, is_new=False)
            await self._outbox_is_short.wait()
            await self._awake.wait()

    def _take_turn(self, block: FrameBlock, first: int, most_frames: int, end: float) -> int:
        """Handle some frames of a block from ``first`` on; return their number."""
        index, now = first, self._loop.time()
        with self._bucket.lock, self._bucket.writes.turn():
            for frame in block.frames(first, first + most_frames):
                self.session.feed(frame, now)
                index += 1
                # The client must read its answers before more of its requests are handled.
                if self.session.outbox_bytes > OUTBOX_BYTES or self.session.is_waiting:
                    self._outbox_is_short.clear()
                    break
                now = self._loop.time()
                if now >= end:
                    break
            self._unflushed_requests += index - first
            goes_on = self._outbox_is_short.is_set() and not self.session.is_closing
            has_more = index < len(block) or self._channel.has_more
            # One flush serves many requests. Before the last answer leaves, all their writes must
            # be on a disk in memory.
            if not (goes_on and has_more) or self._unflushed_requests >= FLUSH_REQUESTS:
                self._flush()
        if self.session.outbox_bytes >= _ANSWER_BYTES:
            self.wake()
        return index - first

    def _work(self, _: int, end: float) -> int:
        """Do some steps of long work, without the lock; it counts as one request."""
        work = self.session.work
        if work is None:
            return 1
        for _step in work:
            if self._loop.time() >= end:
                return 1
        with self._bucket.lock:
            self.session.end_work()
        self.wake()
        return 1

    async def _write(self) -> None:
        while True:
            await self._awake.wait()
            self._something_to_write.clear()
            try:
                is_sent = await self._send_batch()
            except OSError:
                return
            if self.session.outbox_bytes <= OUTBOX_BYTES and not self.session.is_waiting:
                self._outbox_is_short.set()
            if is_sent:
                continue
            if self.session.is_closing:
                return
            with self._bucket.lock:
                deadline = self.session.next_deadline(self._loop.time())
            await self._wait_until(deadline)

    async def _send_batch(self) -> bool:
        """Send one batch; return False if there was nothing to send."""
        if self.session.has_long_answer:
            batch = await self._next_part()
        else:
            batch = self._next_batch()
        if batch is None:
            return False
        # While the socket takes the batch, it is in memory once and counts as unsent.
        with self._bucket.clients.sending(len(batch)):
            await self._channel.send(batch)
        return True

    async def _next_part(self) -> bytes | bytearray | None:
        """Return part of a long answer, made in this connection's turn."""
        made: list[bytes | bytearray | None] = []

        def turn(most_frames: int, _: float) -> int:
            frames = min(most_frames, _PART_FRAMES)
            made.append(self._next_batch(frames))
            return frames

        await self._turns.take(turn, is_new=False)
        return made[0]

    def _next_batch(self, most_made: int | None = None) -> bytes | bytearray | None:
        """Return bytes to send; empty while the disk is searched for them, None without any."""
        most_bytes = self._bucket.clients.batch_bytes(self._channel.drained_bytes)
        with self._bucket.lock:
            now = self._loop.time()
            end = now + ITERATION_SECONDS
            frames = self.session.output(
                most_bytes, now, most_made, lambda: self._loop.time() >= end
            )
        if not frames:
            return None
        return frames[0] if len(frames) == 1 else b"".join(frames)

    async def _wait_until(self, deadline: float | None) -> None:
        timeout = None if deadline is None else max(0.0, deadline - self._loop.time())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._something_to_write.wait()

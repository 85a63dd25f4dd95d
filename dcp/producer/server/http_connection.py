"""One HTTP client: its requests in turn, each answered before the next is read; for asyncio.

What a client may cost is bounded: its head and body in bytes, its silence and its slowness in time.
A stream of maps holds the newest one only, so that a slow reader misses some and delays nobody.
"""

import asyncio
from typing import Final

from dcp.producer.bucket.bucket import Bucket
from dcp.producer.replication.background import ended
from dcp.producer.server.channels import Channel
from dcp.producer.server.http_endpoints import MAP_SEPARATOR, respond
from dcp.producer.server.http_messages import (
    HttpRefusal,
    HttpRequest,
    HttpResponse,
    encode_chunk,
    encode_response,
    parse_head,
    split_head,
)

_REQUEST_SECONDS: Final = 30.0
"""How long a request may take to arrive, from the answer before it."""
_SEND_SECONDS: Final = 30.0
"""How long a client may take to read an answer, or one map."""


class HttpConnection:
    """Serves one client until it leaves; ``awake`` cleared makes it hang."""

    def __init__(self, bucket: Bucket, node: int, channel: Channel, awake: asyncio.Event) -> None:
        self._bucket = bucket
        self._node = node
        self._channel = channel
        self._awake = awake
        self._map_is_new = asyncio.Event()
        self._received = bytearray()

    def map_changed(self) -> None:
        """Let a stream of maps send the new one; only from the loop's thread."""
        self._map_is_new.set()

    def close(self) -> None:
        """Let go of the channel; for the done callback of ``run``, however it ended."""
        self._channel.close()

    async def run(self) -> None:
        """Serve the client; returns when the connection is over. ``close`` must follow."""
        await self._awake.wait()
        try:
            await self._channel.open()
            while await self._serve_request():
                pass
        except HttpRefusal as refusal:
            await self._refuse(refusal)
        except OSError:  # gone, or too slow: asyncio's TimeoutError is one
            return

    async def _refuse(self, refusal: HttpRefusal) -> None:
        """Say what was wrong, as far as the client listens."""
        response = HttpResponse(refusal.status, f"{refusal}\n".encode())
        try:
            await self._send(encode_response(response, to=None))
        except OSError:
            return

    async def _serve_request(self) -> bool:
        """Answer one request; False when there is no next one."""
        async with asyncio.timeout(_REQUEST_SECONDS):
            request = await self._next_request()
        await self._awake.wait()
        if request is None:
            return False
        with self._bucket.lock:
            response = respond(request, self._bucket, self._node)
        await self._send(encode_response(response, to=request))
        if response.streams_map and request.method != "HEAD":
            await self._stream_until_client_leaves(in_chunks=request.takes_chunks)
            return False
        return request.keeps_alive

    async def _next_request(self) -> HttpRequest | None:
        """Read a request and skip its body; None where the client closed."""
        while (found := split_head(self._received)) is None:
            if not await self._receive():
                return None
        head, end = found
        request = parse_head(head)
        while len(self._received) < end + request.body_bytes:
            if not await self._receive():
                return None
        del self._received[: end + request.body_bytes]
        return request

    async def _receive(self) -> bool:
        data = await self._channel.receive()
        self._received += data
        return bool(data)

    async def _stream_until_client_leaves(self, *, in_chunks: bool) -> None:
        sender = asyncio.ensure_future(self._stream_maps(in_chunks=in_chunks))
        reader = asyncio.ensure_future(self._channel.receive())
        try:
            # A client has nothing to say here: more bytes are taken for its end, like none.
            await asyncio.wait((sender, reader), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sender, reader):
                task.cancel()
            await ended("stream of maps over HTTP", sender, reader, expected=(OSError,))

    async def _stream_maps(self, *, in_chunks: bool) -> None:
        sent = b""
        while True:
            await self._awake.wait()
            self._map_is_new.clear()
            with self._bucket.lock:
                document = self._bucket.map.as_json(self._node) + MAP_SEPARATOR
            if document != sent:
                await self._send(encode_chunk(document) if in_chunks else document)
                sent = document
            await self._map_is_new.wait()

    async def _send(self, data: bytes) -> None:
        async with asyncio.timeout(_SEND_SECONDS):
            await self._channel.send(data)

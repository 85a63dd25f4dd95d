"""One HTTP client: each request is answered before the next is read."""

import asyncio
from http import HTTPStatus
from typing import Final

import h11

from dcp.server.bucket.assembly import Bucket
from dcp.server.node.channels import Channel
from dcp.server.node.http_endpoints import MAP_SEPARATOR, respond
from dcp.server.node.http_messages import (
    MAX_HEAD_BYTES,
    HttpRequest,
    HttpResponse,
    request_of,
)
from dcp.server.replication.background import ended

_REQUEST_SECONDS: Final = 30.0
"""Most seconds from one answer until the next request is complete."""
_SEND_SECONDS: Final = 30.0
"""Most seconds in which a client must read an answer, or one map."""


class HttpConnection:
    """Serves one client until it leaves; it hangs while ``awake`` is cleared.

    A stream of maps holds only the newest one: a slow reader misses some, and delays nobody.
    """

    def __init__(self, bucket: Bucket, node: int, channel: Channel, awake: asyncio.Event) -> None:
        self._bucket = bucket
        self._node = node
        self._channel = channel
        self._awake = awake
        self._map_is_new = asyncio.Event()
        self._certified: str | None = None
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    def map_changed(self) -> None:
        """Let a stream of maps send the new one; only from the loop's thread."""
        self._map_is_new.set()

    def close(self) -> None:
        """Release the channel; for the done callback of ``run``, however it ended."""
        self._channel.close()

    async def run(self) -> None:
        """Serve the client until the connection is over; ``close`` must follow."""
        await self._awake.wait()
        try:
            await self._channel.open()
            self._certified = self._bucket.users.certified(self._channel.certificate_name or "")
            while await self._serve_request():
                pass
        except h11.RemoteProtocolError as error:
            await self._refuse(error)
        except OSError:  # gone, or too slow: asyncio's TimeoutError is one
            return

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Report the fault, if the client still reads."""
        status = HTTPStatus(error.error_status_hint)
        response = HttpResponse(status, f"{error}\n".encode(), {"Connection": "close"})
        try:
            await self._send(response.head, h11.Data(data=response.body))
        except OSError:
            return

    async def _serve_request(self) -> bool:
        """Answer one request; return False if no other can follow."""
        async with asyncio.timeout(_REQUEST_SECONDS):
            request = await self._next_request()
        await self._awake.wait()
        if request is None:
            return False
        with self._bucket.lock:
            response = respond(request, self._bucket, self._node, self._certified)
        if request.method == "HEAD":
            await self._send(response.head, h11.EndOfMessage())
        elif response.streams_map:
            await self._send(response.head)
            await self._stream_until_client_leaves()
            return False
        else:
            await self._send(response.head, h11.Data(data=response.body), h11.EndOfMessage())
        if self._http.our_state is h11.MUST_CLOSE:
            return False
        self._http.start_next_cycle()
        return True

    async def _next_request(self) -> HttpRequest | None:
        """Read a request and skip its body; None if the client closed."""
        request = None
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Request):
                request = request_of(event)
            elif event is h11.NEED_DATA:
                if not (data := await self._channel.receive()):
                    return None
                self._http.receive_data(data)
        return request

    async def _stream_until_client_leaves(self) -> None:
        sender = asyncio.ensure_future(self._stream_maps())
        reader = asyncio.ensure_future(self._channel.receive())
        try:
            # A client sends nothing here. Any bytes count as its end, like a close.
            await asyncio.wait((sender, reader), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sender, reader):
                task.cancel()
            await ended("stream of maps over HTTP", sender, reader, expected=(OSError,))

    async def _stream_maps(self) -> None:
        sent = b""
        while True:
            await self._awake.wait()
            self._map_is_new.clear()
            with self._bucket.lock:
                document = self._bucket.map.as_json(self._node) + MAP_SEPARATOR
            if document != sent:
                await self._send(h11.Data(data=document))
                sent = document
            await self._map_is_new.wait()

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._http.send(event) or b"" for event in events)
        async with asyncio.timeout(_SEND_SECONDS):
            await self._channel.send(data)

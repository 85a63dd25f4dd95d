"""Reads from a connection, but not longer than until a time."""

import asyncio


async def read_until(reader: asyncio.StreamReader, most_bytes: int, until: float) -> bytes | None:
    """Return what there is, nothing at the end of the stream, None when there was none in time.

    ``until`` is of the loop's clock.

    Raises:
        OSError: the connection is lost, perhaps because it timed out itself.
    """
    limit = asyncio.timeout_at(until)
    try:
        async with limit:
            return await reader.read(most_bytes)
    except TimeoutError:
        if not limit.expired():  # the socket's own
            raise
        return None

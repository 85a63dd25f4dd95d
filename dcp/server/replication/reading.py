"""Reads from a connection with a deadline."""

import asyncio


async def read_until(reader: asyncio.StreamReader, most_bytes: int, until: float) -> bytes | None:
    """Read up to ``most_bytes``; return b"" at the end of the stream and None at the deadline.

    ``until`` is a time of the running loop's clock. Raises OSError if the connection is lost.
    """
    limit = asyncio.timeout_at(until)
    try:
        async with limit:
            return await reader.read(most_bytes)
    except TimeoutError:
        # OSError of a socket's own timeout (ETIMEDOUT) is a TimeoutError too.
        if not limit.expired():
            raise
        return None

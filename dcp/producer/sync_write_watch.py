"""The asyncio edge of sync writes: looks again and again, while any is under way."""

import asyncio
from collections.abc import Callable
from typing import Final

from dcp.producer.bucket import Bucket

_PAUSE_SECONDS: Final = 0.01


class SyncWriteWatch:
    """Made in the loop that runs it; ``call_soon`` runs a function in that loop from any thread."""

    def __init__(self, bucket: Bucket, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._bucket = bucket
        self._is_wanted = asyncio.Event()
        self._is_wanted.set()
        bucket.sync_writes.on_pending = lambda: call_soon(self._is_wanted.set)

    async def run(self) -> None:
        """Let sync writes go on, for ever."""
        while True:
            await self._is_wanted.wait()
            with self._bucket.lock:
                self._bucket.sync_writes.check()
                if not self._bucket.sync_writes.has_pending:
                    self._is_wanted.clear()
            await asyncio.sleep(_PAUSE_SECONDS)

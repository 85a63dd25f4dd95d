"""Compacts the logs of vbuckets periodically: removes replaced versions and old tombstones.

kv_engine does the same for ephemeral buckets in ``ephemeral_tombstone_purger.cc``
(EphTombstoneHTCleaner, StaleItemDeleter), and for others by its compaction.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from threading import RLock

from dcp.server.storage.pending_write import PendingWrite
from dcp.server.vbucket.persistence import Persistence
from dcp.server.vbucket.vbucket import Vbucket

_LOG = logging.getLogger(__name__)


class Compactor:
    """Compacts all vbuckets in turn, repeatedly."""

    def __init__(
        self,
        vbuckets: Callable[[], Sequence[Vbucket]],
        lock: RLock,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """``seconds`` pass between two turns; ``clock`` returns seconds since 1970.

        ``vbuckets`` is called with the lock held.
        """
        self._vbuckets = vbuckets
        self._lock = lock
        self._seconds = seconds
        self._clock = clock

    async def run(self) -> None:
        with ThreadPoolExecutor(1, "dcp-producer-compactor") as thread:
            while True:
                await asyncio.sleep(self._seconds)
                with self._lock:
                    vbuckets = self._vbuckets()
                for vbucket in vbuckets:
                    begin = partial(vbucket.begin_compaction, self._clock())
                    try:
                        await write_off_lock(begin, vbucket.data.persistence, self._lock, thread)
                    except Exception:  # one broken vbucket must not stop the others' compaction
                        _LOG.exception(
                            "vbucket %d: cannot compact its log; the next turn tries again",
                            vbucket.id,
                        )

    def run_once(self, now: float) -> int:
        """Run one turn now, with the lock held; return the number of bytes freed.

        Raises:
            OSError: a file cannot be written; its vbucket keeps its data.
        """
        vbuckets = self._vbuckets()
        before = sum(vbucket.data.disk.size_bytes for vbucket in vbuckets)
        for vbucket in vbuckets:
            _compact(vbucket, vbucket.begin_compaction(now))
        return before - sum(vbucket.data.disk.size_bytes for vbucket in vbuckets)


def compact_in_passing(vbucket: Vbucket, now: float) -> None:
    """Compact a vbucket in memory if most of its data is replaced versions, to save memory."""
    _compact(vbucket, vbucket.begin_compaction(now, in_passing=True))


def _compact(vbucket: Vbucket, write: PendingWrite | None) -> None:
    if write is not None:
        try:
            write.run()
        finally:
            vbucket.data.persistence.finish_flush(write)


async def write_off_lock(
    begin: Callable[[], PendingWrite | None],
    persistence: Persistence,
    lock: RLock,
    thread: Executor,
) -> None:
    """Prepare a write under the lock, run it in a thread without, and finish it under the lock.

    Copying a log can take seconds; meanwhile streams and commands go on. ``begin`` returns None if
    there is nothing to write.

    Raises:
        OSError: a batch cannot be written; it stays begun. A failed compaction is only given up.
    """
    with lock:
        write = begin()
    if write is not None:
        try:
            await asyncio.get_running_loop().run_in_executor(thread, write.run)
        except Exception:
            # A compaction is optional: without it the log is larger, but complete.
            if not write.is_optional:
                raise
        with lock:
            persistence.finish_flush(write)

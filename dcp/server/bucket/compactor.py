"""Compacts the vbuckets' logs now and then: replaced versions and old tombstones go.

The lock is held to decide what stays of a vbucket and when that is done, never while its log is
copied: that runs in a thread. Whoever writes to that vbucket meanwhile writes behind, or waits for
it. For ephemeral buckets this is what kv_engine does in ``ephemeral_tombstone_purger.cc``
(EphTombstoneHTCleaner, StaleItemDeleter), for others its compaction.
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
    """Looks at all vbuckets again and again."""

    def __init__(
        self,
        vbuckets: Callable[[], Sequence[Vbucket]],
        lock: RLock,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """``seconds`` pass between two looks, at what ``vbuckets`` returns with the lock held.

        ``clock`` returns seconds since 1970.
        """
        self._vbuckets = vbuckets
        self._lock = lock
        self._seconds = seconds
        self._clock = clock

    async def run(self) -> None:
        """Remove what is due, turn after turn, until cancelled."""
        with ThreadPoolExecutor(1, "dcp-producer-compactor") as thread:
            while True:
                await asyncio.sleep(self._seconds)
                with self._lock:
                    vbuckets = self._vbuckets()
                for vbucket in vbuckets:
                    begin = partial(vbucket.begin_compaction, self._clock())
                    try:
                        await write_off_lock(begin, vbucket.data.persistence, self._lock, thread)
                    except Exception:  # whatever it is: the others are compacted
                        _LOG.exception("vbucket %d: cannot compact; tried again later", vbucket.id)

    def run_once(self, now: float) -> int:
        """Do one turn at once, with the lock held; return by how many bytes the logs shrank.

        Raises:
            OSError: a file cannot be written; its vbucket holds what it held.
        """
        vbuckets = self._vbuckets()
        before = sum(vbucket.data.disk.size_bytes for vbucket in vbuckets)
        for vbucket in vbuckets:
            _compact(vbucket, vbucket.begin_compaction(now))
        return before - sum(vbucket.data.disk.size_bytes for vbucket in vbuckets)


def compact_in_passing(vbucket: Vbucket, now: float) -> None:
    """Compact a vbucket in memory that is mostly replaced versions, so that it stays that small."""
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
    """Do what ``begin`` prepares, if anything, in a thread; the lock is held before and after.

    Raises:
        OSError: a batch cannot be written; it stays begun. A compaction is given up instead.
    """
    with lock:
        write = begin()
    if write is not None:
        try:
            await asyncio.get_running_loop().run_in_executor(thread, write.run)
        except Exception:
            if not write.is_optional:
                raise
        with lock:
            persistence.finish_flush(write)

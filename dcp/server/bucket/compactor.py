"""Compacts the disk logs of vbuckets periodically: removes replaced versions and old tombstones.

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
from dcp.server.vbucket.vbucket_states import Vbucket

_LOGGER = logging.getLogger(__name__)


async def keep_compacting(
    vbuckets: Callable[[], Sequence[Vbucket]],
    lock: RLock,
    seconds: float,
    clock: Callable[[], float],
) -> None:
    """Compact all vbuckets in turn, until cancelled; ``seconds`` pass between two turns.

    ``vbuckets`` is called with the lock held; ``clock`` returns seconds since 1970.
    """
    with ThreadPoolExecutor(1, "dcp-server-compactor") as thread:
        while True:
            await asyncio.sleep(seconds)
            with lock:
                found = vbuckets()
            for vbucket in found:
                begin = partial(vbucket.begin_compaction, clock())
                try:
                    await write_off_lock(begin, vbucket.data.persistence, lock, thread)
                except Exception:  # one broken vbucket must not stop the others' compaction
                    _LOGGER.exception(
                        "vbucket %d: cannot compact its disk log; the next turn tries again",
                        vbucket.id,
                    )


def compact(vbucket: Vbucket, now: float, *, in_passing: bool = False) -> None:
    """Compact a vbucket in this call, with the lock held, if that is due.

    ``in_passing``: only if most of its data is replaced versions.

    Raises:
        OSError: the file cannot be written; the vbucket keeps its data.
    """
    write = vbucket.begin_compaction(now, in_passing=in_passing)
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

    Copying a disk log can take seconds; meanwhile streams and commands go on. ``begin`` returns
    None if there is nothing to write.

    Raises:
        OSError: a batch cannot be written; it stays begun. A failed compaction is only given up.
    """
    with lock:
        write = begin()
    if write is not None:
        try:
            await asyncio.get_running_loop().run_in_executor(thread, write.run)
        except Exception:
            # A compaction is optional: without it the disk log is larger, but complete.
            if not write.is_optional:
                raise
        with lock:
            persistence.finish_flush(write)

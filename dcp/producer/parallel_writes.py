"""Writes the logs of many vbuckets in parallel: a disk syncs many files about as fast as one.

For what waits for the disk with the bucket's lock held: a failover of a node, a takeover of many.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dcp.server.storage.pending_write import PendingWrite
from dcp.server.vbucket.vbucket_data import VbucketData

_THREADS: Final = 16


def run_together(writes: Sequence[PendingWrite]) -> None:
    """Run writes of different logs; returns or raises when all have ended.

    Raises:
        OSError: one that is not optional cannot be written; the others may be.
    """
    if not writes:
        return
    with ThreadPoolExecutor(min(len(writes), _THREADS), "dcp-producer-together") as threads:
        ended = [(write, threads.submit(write.run)) for write in writes]
    for write, future in ended:
        failure = future.exception()
        if failure is not None and not write.is_optional:
            raise failure


def flush_together(all_data: Sequence[VbucketData]) -> None:
    """Flush all data of several vbuckets.

    Raises:
        OSError: a file cannot be written; what waits for it goes on waiting.
    """
    left = list(all_data)
    while left:
        begun = [(data, data.persistence.begin_flush(data.high_seqno)) for data in left]
        writes = [(data, write) for data, write in begun if write is not None]
        run_together([write for _, write in writes])
        for data, write in writes:
            data.persistence.finish_flush(write)
        left = [data for data, _ in writes]  # which may have more, behind a compaction


def save_together(all_data: Sequence[VbucketData]) -> None:
    """Save the states of several vbuckets, where they differ from the ones on disk.

    Raises:
        OSError: a file cannot be written; some may have the new state, others the one before.
    """
    begun: list[PendingWrite] = []
    try:
        for data in all_data:
            if (write := data.persistence.begin_save()) is not None:
                begun.append(write)
        run_together(begun)
    finally:
        for write in begun:
            write.end()

"""Writes the disk logs of many vbuckets in parallel: a disk syncs many files about as fast as one.

For callers that hold the bucket's lock meanwhile: a failover, or a takeover of many vbuckets.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dcp.server.storage.pending_write import PendingWrite
from dcp.server.vbucket.vbucket_data import VbucketData

_THREADS: Final = 16


def run_together(writes: Sequence[PendingWrite]) -> None:
    """Run writes of different disk logs; return or raise when all have ended.

    Raises:
        OSError: a write that is not optional failed; others may have succeeded.
    """
    if not writes:
        return
    # Leaving this block waits for all threads.
    with ThreadPoolExecutor(min(len(writes), _THREADS), "dcp-producer-together") as threads:
        ended = [(write, threads.submit(write.run)) for write in writes]
    for write, future in ended:
        failure = future.exception()
        if failure is not None and not write.is_optional:
            raise failure


def flush_together(all_data: Sequence[VbucketData]) -> None:
    """Flush all data of several vbuckets.

    Raises:
        OSError: a file cannot be written; its data waits for the next flush.
    """
    left = list(all_data)
    while left:
        begun = [(data, data.persistence.begin_flush(data.high_seqno)) for data in left]
        writes = [(data, write) for data, write in begun if write is not None]
        run_together([write for _, write in writes])
        for data, write in writes:
            data.persistence.finish_flush(write)
        left = [data for data, _ in writes]  # a compaction may have left more


def save_together(all_data: Sequence[VbucketData]) -> None:
    """Save the states of several vbuckets that differ from those on disk.

    Raises:
        OSError: a file cannot be written; some vbuckets may have their new state, others the
            old one.
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

"""Configures Arrow in receiving processes to return freed memory to the system soon."""

from typing import Final

import pyarrow as pa

_DECAY_MS: Final = 50
"""jemalloc keeps free memory so long; each block reuses the memory of earlier ones.

With 0 each block is mapped anew: a third more CPU for a task, all in page faults. With 250 a task
that meets documents of 20 MiB takes 40 MiB more.
"""


def return_freed_memory() -> None:
    """Let Arrow return freed memory to the system, in this process.

    Its default pool (mimalloc) keeps 70 MiB more after documents of 20 MiB, with batches of 4 MiB
    and no less time. An Arrow without jemalloc (Windows) keeps it.
    """
    try:
        pool = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return
    pa.set_memory_pool(pool)
    pa.jemalloc_set_decay_ms(_DECAY_MS)

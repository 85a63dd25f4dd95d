"""Arrow's memory in the processes that receive: given back as soon as it is free."""

import pyarrow as pa


def return_freed_memory() -> None:
    """Let Arrow give what it frees back to the system at once, in this process.

    Its default pool (mimalloc) keeps 70 MiB more after documents of 20 MiB, with batches of 4 MiB
    and no less time. Where Arrow was built without jemalloc (Windows), it stays.
    """
    try:
        pool = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return
    pa.set_memory_pool(pool)
    pa.jemalloc_set_decay_ms(0)

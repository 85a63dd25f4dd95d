"""Bounds the memory of a run by a formula; ``docs/reference/memory.md`` explains it. No Spark.

Two parts are enforced limits: the JVM keeps to its heap and its direct memory, a node keeps to the
window of its connection. The others follow from the largest document and from the limits that
``session.py`` sets for Parquet. So a task's need of heap is known before the first byte arrives,
and a smaller heap is refused.
"""

import re
from typing import Final

from dcp.client.settings import READ_BUFFER_BYTES
from dcp.errors import ConfigError

KIBIBYTE: Final = 1024
MEBIBYTE: Final = 1024 * KIBIBYTE
DOCUMENT_BYTES: Final = 20 * MEBIBYTE
"""The largest document of Couchbase (kv_engine ``max_item_size``)."""

ROW_GROUP_BYTES: Final = 64 * MEBIBYTE
"""A Parquet writer collects this many encoded bytes before it writes them."""
PAGE_BYTES: Final = MEBIBYTE
CHECK_ROWS: Final = 4
"""After this many rows a Parquet writer checks whether page and row group are full.

Its own rule (every 100 to 10,000 rows, guessed from the rows so far) misses gigabytes when large
documents follow small ones.
"""
COLUMN_BATCH_BYTES: Final = 64 * MEBIBYTE
"""The vectorised Parquet reader may decode this many bytes at once."""
COLUMN_BATCH_ROWS: Final = 4096
"""Spark's own number of rows in a column batch."""
ARROW_BATCH_BYTES: Final = 4 * MEBIBYTE
"""The size of a round's default batch; one more document may follow."""
_LEAST_BATCH_ROWS: Final = 64
"""With fewer rows, reading row by row is as fast, and holds one document."""

UPLOAD_PART_BYTES: Final = 5 * MEBIBYTE
"""The least part of an upload to an object store: S3 takes no smaller ones."""
UPLOAD_PARTS: Final = 2
"""The number of parts that travel at once."""

_ROW_COPIES: Final = 5
"""Spark's operators may each keep a buffer of the largest row so far."""
_JVM_FIXED_HEAP_BYTES: Final = 320 * MEBIBYTE
"""Spark itself and Delta's log."""
_WORKER_FIXED_BYTES: Final = 140 * MEBIBYTE
"""An interpreter with numpy, pyarrow and the client."""
_LEAST_HEAP_BYTES: Final = 1024 * MEBIBYTE

_AUTO_HEAP_BYTES: Final = 2048 * MEBIBYTE
AUTO_MEMORY: Final = "auto"

_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def worker_bytes(
    connections: int, window_bytes: int, batch_bytes: int, *, edits_values: bool = False
) -> int:
    """Return the most memory that the Python worker of one receiving task takes.

    Each connection holds its window and one message more, the incoming message and its copy while
    it grows, and the read buffer. The worker holds once: the batch that Spark is taking, joined
    from its parts, and the same as an Arrow message. Uploads hold less than two such messages, and
    only while nothing else grows. If privacy rules edit values, the worker holds a batch three
    times more: the texts, the edited texts, and their column.
    """
    batches = 5 if edits_values else 2
    connection = window_bytes + 3 * DOCUMENT_BYTES + READ_BUFFER_BYTES
    return _WORKER_FIXED_BYTES + connections * connection + batches * (batch_bytes + DOCUMENT_BYTES)


def direct_memory_bytes(tasks: int, batch_bytes: int) -> int:
    return 64 * MEBIBYTE + tasks * 2 * (batch_bytes + DOCUMENT_BYTES)


def least_heap_bytes(tasks: int) -> int:
    """Return the heap that ``tasks`` tasks need if each meets the largest documents.

    A task writes a row group, or reads one: encoded, with one page decoded and one column batch.
    """
    page = PAGE_BYTES + CHECK_ROWS * DOCUMENT_BYTES
    row_group = ROW_GROUP_BYTES + CHECK_ROWS * DOCUMENT_BYTES
    task = row_group + page + 2 * COLUMN_BATCH_BYTES + _ROW_COPIES * DOCUMENT_BYTES
    return max(_LEAST_HEAP_BYTES, _JVM_FIXED_HEAP_BYTES + tasks * task)


def heap_bytes(driver_memory: str, tasks: int) -> int:
    """Return the heap for ``tasks`` tasks at once, from the setting ``spark.driver_memory``.

    Raises:
        ConfigError: the tasks can need more.
    """
    least = least_heap_bytes(tasks)
    if driver_memory == AUTO_MEMORY:
        return max(least, _AUTO_HEAP_BYTES)
    heap = parse_memory(driver_memory)
    if heap < least:
        raise ConfigError(
            f"spark.driver_memory: found {driver_memory!r}, expected {AUTO_MEMORY!r} or at least "
            f"{-(-least // MEBIBYTE)}m: each of the {tasks} tasks of the master may meet documents "
            f"of {DOCUMENT_BYTES // MEBIBYTE} MiB"
        )
    return heap


def direct_memory_options(tasks: int, batch_bytes: int) -> str:
    limit = direct_memory_bytes(tasks, batch_bytes) // MEBIBYTE
    # The second: what a thread keeps for its next write, else the largest write it ever made.
    return f"-XX:MaxDirectMemorySize={limit}m -Djdk.nio.maxCachedBufferSize={MEBIBYTE}"


def parse_memory(text: str) -> int:
    """Return the bytes of a size as Spark writes it (``1500m``, ``2g``)."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"driver_memory: found {text!r}, expected a size such as 1500m or 2g")
    return int(match[1]) * _UNITS[match[2]]


def reader_settings(largest_bytes: int) -> dict[str, str]:
    """Return settings to read Parquet files with documents of up to ``largest_bytes``.

    The vectorised reader decodes a fixed number of rows at once, however large they are.
    """
    rows = min(COLUMN_BATCH_ROWS, COLUMN_BATCH_BYTES // max(1, largest_bytes))
    return {
        "spark.sql.parquet.enableVectorizedReader": str(rows >= _LEAST_BATCH_ROWS).lower(),
        "spark.sql.parquet.columnarReaderBatchSize": str(max(rows, _LEAST_BATCH_ROWS)),
    }


def arrow_settings(largest_bytes: int) -> dict[str, str]:
    return {
        **reader_settings(largest_bytes),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
        "spark.sql.execution.arrow.useLargeVarTypes": "false",
    }


def writer_settings() -> dict[str, str]:
    """Return Hadoop settings that bound a Parquet writer's memory; a session may set them."""
    rows = str(CHECK_ROWS)
    return {
        "parquet.block.size": str(ROW_GROUP_BYTES),
        "parquet.page.size": str(PAGE_BYTES),
        "parquet.page.size.check.estimate": "false",
        "parquet.page.size.row.check.min": rows,
        "parquet.page.size.row.check.max": rows,  # the row group's check goes by these two as well
    }

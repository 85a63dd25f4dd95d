"""The memory formula as pure functions: what is refused, what is chosen, what the docs say."""

import re
from pathlib import Path

import pytest

from dcp.errors import ConfigError
from dcp.lake.adapters.opening import session
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.memory import (
    COLUMN_BATCH_BYTES,
    COLUMN_BATCH_ROWS,
    DOCUMENT_BYTES,
    MEBIBYTE,
    direct_memory_options,
    heap_bytes,
    least_heap_bytes,
    parse_memory,
    reader_settings,
    worker_bytes,
)
from dcp.lake.config.settings import Settings, SparkSettings
from tests.lake.memory_bound import memory_bound

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "memory.md"
VECTORISED = "spark.sql.parquet.enableVectorizedReader"
BATCH_ROWS = "spark.sql.parquet.columnarReaderBatchSize"


@pytest.mark.parametrize(
    ("text", "size"),
    [("1500m", 1500 * MEBIBYTE), ("2g", 2048 * MEBIBYTE), ("2GB", 2048 * MEBIBYTE), ("64k", 65536)],
)
def test_sizes_are_read_as_spark_reads_them(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "g", "0g", "-1g", "1.5g", "2 gigabytes", "lots"])
def test_what_is_no_size_is_refused_when_settings_are_made(text: str) -> None:
    with pytest.raises(ConfigError, match="driver_memory"):
        SparkSettings(driver_memory=text)


def test_a_heap_too_small_for_the_tasks_is_refused_before_spark_starts() -> None:
    settings = Settings(spark=SparkSettings(master="local[8]", driver_memory="2g"))
    with pytest.raises(ConfigError, match=r"spark.driver_memory: found '2g'.*3944m.*8 tasks"):
        session(settings)


@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 8, 64])
def test_auto_is_never_refused_and_grows_with_the_tasks(tasks: int) -> None:
    heap = heap_bytes("auto", tasks)
    assert heap >= least_heap_bytes(tasks)
    assert heap_bytes(f"{-(-heap // MEBIBYTE)}m", tasks) >= heap
    assert least_heap_bytes(tasks + 1) >= least_heap_bytes(tasks)


def test_a_worker_grows_with_window_connections_and_batch() -> None:
    small = worker_bytes(1, 10 * MEBIBYTE, 4 * MEBIBYTE)
    assert worker_bytes(1, 30 * MEBIBYTE, 4 * MEBIBYTE) - small == 20 * MEBIBYTE
    assert worker_bytes(1, 10 * MEBIBYTE, 5 * MEBIBYTE) - small == 2 * MEBIBYTE
    assert worker_bytes(2, 10 * MEBIBYTE, 4 * MEBIBYTE) - small >= 10 * MEBIBYTE + DOCUMENT_BYTES


@pytest.mark.parametrize("largest", [0, 1, 1000, 16_384, 16_385, 2**20, 2**20 + 1, DOCUMENT_BYTES])
def test_a_column_batch_holds_no_more_than_its_limit(largest: int) -> None:
    settings = reader_settings(largest)
    rows = int(settings[BATCH_ROWS])
    if settings[VECTORISED] == "true":
        assert 1 <= rows <= COLUMN_BATCH_ROWS
        assert rows * largest <= COLUMN_BATCH_BYTES
    else:
        assert largest > 2**20


def test_the_jvm_is_given_its_direct_memory_limit() -> None:
    assert "-XX:MaxDirectMemorySize=160m" in direct_memory_options(2, 4 * MEBIBYTE)


def test_the_table_of_the_docs_is_the_formula() -> None:
    flow = FlowControlSettings()
    rows = re.findall(r"^\|\s*(\d+) \|(.*)\|$", DOCS.read_text("utf-8"), re.MULTILINE)
    assert [int(tasks) for tasks, _ in rows] == [1, 2, 4, 8]
    for text, cells in rows:
        tasks = int(text)
        found = [
            int(cell.strip().removesuffix(" MiB").replace(",", "")) for cell in cells.split("|")
        ]
        least, auto = least_heap_bytes(tasks), heap_bytes("auto", tasks)
        totals = [
            memory_bound(
                tasks=tasks,
                connections=1,
                window_bytes=flow.window_bytes,
                batch_bytes=flow.batch_bytes,
                heap_bytes=heap,
            ).total_bytes
            for heap in (least, auto)
        ]
        worker = worker_bytes(1, flow.window_bytes, flow.batch_bytes)
        assert found == [size // MEBIBYTE for size in (least, auto, worker, *totals)]

"""Data files that tasks write: what they tell of their rows, and what is left of a broken one."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcp.lake.tables.data_file import DATA_FILE, DataFile, DataFileWriter, FileContents
from dcp.lake.tables.schema import CHANGES, CHANGES_STATISTICS, REPLICA

LARGEST = 2**64 - 1


def writing(folder: Path, schema: pa.Schema, *statistics_columns: str) -> DataFileWriter:
    return DataFileWriter(folder, FileContents(schema, statistics_columns, 1_000_000))


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=CHANGES)


def test_a_file_tells_the_bounds_of_its_rows_exactly(tmp_path: Path) -> None:
    with writing(tmp_path, CHANGES, *CHANGES_STATISTICS) as writer:
        writer.write(batch({"round": 7, "vbucket": 3, "kind": "mutation", "seqno": Decimal(5)}))
        large = {"value": b"x" * 2_000_000}  # a row group of its own
        writer.write(
            batch({"round": 7, "vbucket": 1, "kind": "status", "seqno": Decimal(LARGEST)} | large)
        )
        writer.write(batch({"round": 7, "vbucket": 2, "kind": "status"}))
        file = writer.finish()
    assert file is not None
    assert json.loads(file.statistics) == {
        "numRecords": 3,
        "minValues": {"round": 7, "vbucket": 1, "kind": "mutation", "seqno": 5},
        "maxValues": {"round": 7, "vbucket": 3, "kind": "status", "seqno": LARGEST},
        "nullCount": {
            "round": 0,
            "epoch": 3,
            "vbucket": 0,
            "kind": 0,
            "seqno": 1,
            "collection_id": 3,
        },
        "tightBounds": True,
    }
    assert str(LARGEST) in file.statistics, "no float"
    [written] = tmp_path.iterdir()
    assert (file.name, file.size_bytes, file.rows) == (written.name, written.stat().st_size, 3)
    found = pq.ParquetFile(written)
    assert found.schema_arrow.equals(CHANGES)
    assert found.read().column("vbucket").to_pylist() == [3, 1, 2]
    assert found.num_row_groups == 2, "small batches are gathered"
    assert DataFile(**file.to_batch().to_pylist()[0]) == file
    assert file.to_batch().schema.equals(DATA_FILE)


def test_without_rows_there_is_no_file(tmp_path: Path) -> None:
    with writing(tmp_path, CHANGES, "round") as writer:
        assert writer.finish() is None
    assert list(tmp_path.iterdir()) == []


def test_times_are_told_as_delta_reads_them(tmp_path: Path) -> None:
    times = [datetime(2026, 11, 25, 1, 2, 3, 456789, UTC), datetime(1969, 12, 31, tzinfo=UTC)]
    with writing(tmp_path, REPLICA, "key", "modified_at") as writer:
        rows = [{"key": f"schlüssel-{time.year}", "modified_at": time} for time in times]
        writer.write(pa.RecordBatch.from_pylist(rows, schema=REPLICA))
        file = writer.finish()
    assert file is not None
    told = json.loads(file.statistics)
    assert told["minValues"] == {
        "key": "schlüssel-1969",
        "modified_at": "1969-12-31T00:00:00.000000Z",
    }
    assert told["maxValues"]["modified_at"] == "2026-11-25T01:02:03.456789Z"


def test_nothing_is_left_of_a_file_that_was_not_finished(tmp_path: Path) -> None:
    def fail() -> None:
        with writing(tmp_path, CHANGES, "round") as writer:
            writer.write(batch({"round": 1, "value": b"x" * 2_000_000}))
            assert list(tmp_path.iterdir())
            raise RuntimeError("the node is gone")

    with pytest.raises(RuntimeError, match="the node is gone"):
        fail()
    assert list(tmp_path.iterdir()) == []

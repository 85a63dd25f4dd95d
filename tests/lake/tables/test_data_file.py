"""Data files that tasks write: what they tell of their rows, and what is left of a broken one."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcp.lake.tables.data_file import DATA_FILE, DataFile, DataFileWriter
from dcp.lake.tables.schema import CHANGES, CHANGES_STATISTICS

LARGEST = 2**64 - 1


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=CHANGES)


def test_a_file_tells_the_bounds_of_its_rows_exactly(tmp_path: Path) -> None:
    with DataFileWriter(tmp_path, CHANGES, CHANGES_STATISTICS) as writer:
        writer.write(batch({"round": 7, "vbucket": 3, "kind": "mutation", "seqno": Decimal(5)}))
        large = {"value": b"x" * 2_000_000}  # a row group of its own
        writer.write(
            batch({"round": 7, "vbucket": 1, "kind": "status", "seqno": Decimal(LARGEST)} | large)
        )
        writer.write(batch({"round": 7, "vbucket": 2, "kind": "status"}))
        file = writer.finish()
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


def test_no_rows_are_a_file_without_bounds(tmp_path: Path) -> None:
    with DataFileWriter(tmp_path, CHANGES, ("round",)) as writer:
        file = writer.finish()
    assert json.loads(file.statistics)["nullCount"] == {"round": 0}
    assert (file.rows, pq.read_table(tmp_path / file.name).num_rows) == (0, 0)


def test_nothing_is_left_of_a_file_that_was_not_finished(tmp_path: Path) -> None:
    def fail() -> None:
        with DataFileWriter(tmp_path, CHANGES, ("round",)) as writer:
            writer.write(batch({"round": 1, "value": b"x" * 2_000_000}))
            assert list(tmp_path.iterdir())
            raise RuntimeError("the node is gone")

    with pytest.raises(RuntimeError, match="the node is gone"):
        fail()
    assert list(tmp_path.iterdir()) == []

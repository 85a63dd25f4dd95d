"""Data files that tasks write: what they tell of their rows, and what is left of a broken one."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcp.lake.config.memory import UPLOAD_PART_BYTES
from dcp.lake.store.data_file import DATA_FILE, DataFile, DataFileWriter, FileContents
from dcp.lake.store.folder_location import FolderLocation
from dcp.lake.store.table_location import TableLocation
from dcp.lake.tables.schema import CHANGES, CHANGES_STATISTICS, REPLICA
from tests.lake.object_store import BUCKET, ObjectStore, Request

LARGEST = 2**64 - 1


@dataclass
class Place:
    """Where a table's files go, and what a look there finds."""

    table: TableLocation
    names: Callable[[], list[str]]
    read: Callable[[str], bytes]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, store: ObjectStore, tmp_path: Path) -> Place:
    if request.param == "folder":
        folder = tmp_path

        def names() -> list[str]:
            return [each.name for each in folder.iterdir()]

        return Place(FolderLocation(folder), names, lambda name: (folder / name).read_bytes())
    prefix = uuid4().hex

    def read(name: str) -> bytes:
        with store.files.open_input_file(f"{BUCKET}/{prefix}/{name}") as file:
            return bytes(file.read())

    return Place(store.location(prefix), lambda: store.names(prefix), read)


def writing(place: Place, schema: pa.Schema, *statistics_columns: str) -> DataFileWriter:
    return DataFileWriter(place.table, FileContents(schema, statistics_columns, 1_000_000))


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=CHANGES)


def test_a_file_tells_the_bounds_of_its_rows_exactly(place: Place) -> None:
    with writing(place, CHANGES, *CHANGES_STATISTICS) as writer:
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
    [name] = place.names()
    content = place.read(name)
    assert (file.name, file.size_bytes, file.rows) == (name, len(content), 3)
    found = pq.ParquetFile(pa.BufferReader(content))
    assert found.schema_arrow.equals(CHANGES)
    assert found.read().column("vbucket").to_pylist() == [3, 1, 2]
    assert found.num_row_groups == 2, "small batches are gathered"
    assert DataFile(**file.to_batch().to_pylist()[0]) == file
    assert file.to_batch().schema.equals(DATA_FILE)


def test_without_rows_there_is_no_file(place: Place) -> None:
    with writing(place, CHANGES, "round") as writer:
        assert writer.finish() is None
    assert place.names() == []


def test_times_are_told_as_delta_reads_them(place: Place) -> None:
    times = [datetime(2026, 11, 25, 1, 2, 3, 456789, UTC), datetime(1969, 12, 31, tzinfo=UTC)]
    with writing(place, REPLICA, "key", "modified_at") as writer:
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


def test_nothing_is_left_of_a_file_that_was_not_finished(place: Place) -> None:
    def fail() -> None:
        with writing(place, CHANGES, "round") as writer:
            writer.write(batch({"round": 1, "value": b"x" * 2_000_000}))
            raise RuntimeError("the node is gone")

    with pytest.raises(RuntimeError, match="the node is gone"):
        fail()
    assert place.names() == []


def test_a_large_file_goes_to_a_store_in_parts_and_one_that_is_cut_is_taken_back(
    store: ObjectStore,
) -> None:
    """Random bytes, which do not get smaller."""
    prefix = uuid4().hex
    asked: list[str] = []

    def note(request: Request) -> None:
        part = request["QUERY_STRING"].partition("=")[0]
        asked.append(f"{request['REQUEST_METHOD']} {part}".strip())

    store.answer = note
    row = {"round": 1, "value": os.urandom(UPLOAD_PART_BYTES // 2)}
    contents = FileContents(CHANGES, CHANGES_STATISTICS, 1_000_000)
    with DataFileWriter(store.location(prefix), contents) as writer:
        for _ in range(5):
            writer.write(batch(row))
        file = writer.finish()
    assert file is not None
    assert store.names(prefix) == [file.name]
    uploaded = ["POST uploads", *["PUT partNumber"] * 3, "POST uploadId"]
    assert asked[: len(uploaded)] == uploaded
    asked.clear()

    def cut() -> None:
        with DataFileWriter(store.location(prefix), contents) as writer:
            for _ in range(5):
                writer.write(batch(row))
            raise RuntimeError("the node is gone")

    with pytest.raises(RuntimeError, match="the node is gone"):
        cut()
    store.answer = lambda _: None
    assert asked[0] == "POST uploads" and asked[-1] == "DELETE uploadId"
    assert store.names(prefix) == [file.name]

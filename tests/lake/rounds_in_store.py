"""A table of rounds in an object store, written and committed as tasks and drivers do."""

import json
import os
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from deltalake import Schema

from dcp.lake.store.data_file import DataFile, DataFileWriter, FileContents
from dcp.lake.store.file_commit import commit_files
from dcp.lake.store.table_location import TableLocation
from dcp.lake.tables.schema import CHANGES, CHANGES_STATISTICS

_FIRST_COMMIT: Final = (
    '{"commitInfo":{"timestamp":%d,"operation":"CREATE TABLE","operationParameters":{}}}\n'
    '{"protocol":{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["appendOnly"]}}\n'
    '{"metaData":{"id":"0","format":{"provider":"parquet","options":{}},"schemaString":%s,'
    '"partitionColumns":[],"configuration":%s,"createdTime":0}}\n'
)

CONTENTS: Final = FileContents(CHANGES, CHANGES_STATISTICS, 1_000_000)


def make_table(
    location: TableLocation,
    columns: pa.Schema = CHANGES,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> None:
    schema = json.dumps(Schema.from_arrow(columns).to_json())
    now_milliseconds = time.time_ns() // 1_000_000
    told = now_milliseconds, schema, json.dumps(dict(properties))
    location.commit(0, (_FIRST_COMMIT % told).encode())


def write_file(location: TableLocation, row_bytes: int = 100) -> DataFile:
    """Write four rows of so many random bytes."""
    rows = [{"round": 1, "vbucket": 1, "kind": "mutation", "value": os.urandom(row_bytes)}]
    with DataFileWriter(location, CONTENTS) as writer:
        for _ in range(4):
            writer.write(pa.RecordBatch.from_pylist(rows, schema=CHANGES))
        file = writer.finish()
    assert file is not None
    return file


def commit_file(location: TableLocation, file: DataFile, version: int = 0) -> None:
    """Commit it as the round after a version."""
    commit_files(location, [file], version, ("app", version + 1), "")

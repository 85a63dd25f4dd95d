"""Versions of Delta tables that a test writes itself: Spark would take seconds for each."""

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.store.location import LakeLocation
from tests.lake.memory_store import MemoryStore
from tests.lake.memory_table import MemoryVersion
from tests.lake.tables_at import no_spark


def put_rows(folder: str, rows: pa.Table) -> None:
    """Give a table other rows, as somebody else would who overwrites it."""
    _commit(folder, datetime.now(UTC), {"operation": "WRITE"}, _other_files(folder, rows))


def write_to_disk(store: MemoryStore, location: LakeLocation) -> None:
    """Write a lake that is in memory to a folder: all versions of each table, with their times."""
    on_disk = SparkStore(no_spark, location)
    for name, kept in store.kept.items():
        first, *later = kept.versions
        on_disk.table(name).create(first.columns, (), first.properties)
        [log] = (Path(location.path(name)) / "_delta_log").glob("*.json")
        info, *actions = map(json.loads, log.read_text().splitlines())
        log.unlink()
        _write_log(log, first.time, info["commitInfo"], actions)
        [metadata] = (each["metaData"] for each in actions if "metaData" in each)
        for version in later:
            _write(location.path(name), version, metadata)


def _write(folder: str, version: MemoryVersion, metadata: Mapping[str, Any]) -> None:
    told = version.told()
    names = ("operation", "operationParameters", "operationMetrics", "userMetadata")
    actions: list[Mapping[str, Any]] = [
        {"txn": {"appId": application, "version": number}}
        for application, number in version.transactions.items()
    ]
    if "TBLPROPERTIES" in version.operation:
        actions.append({"metaData": {**metadata, "configuration": {**version.properties}}})
    if version.has_new_rows:
        actions += _other_files(folder, version.rows)
    _commit(folder, version.time, {name: told[name] for name in names}, actions)


def _other_files(folder: str, rows: pa.Table) -> list[dict[str, Any]]:
    """Write a file of these rows; return the actions by which it takes the place of all others."""
    file = Path(folder) / f"part-{uuid4()}.parquet"
    pq.write_table(rows, file)
    there = pa.table(DeltaTable(folder).get_add_actions()).column("path").to_pylist()
    added = {
        "path": file.name,
        "partitionValues": {},
        "size": file.stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows.num_rows}),
    }
    removed = [{"remove": {"path": path, "dataChange": True}} for path in there]
    return [*removed, {"add": added}]


def _commit(
    folder: str, time: datetime, told: Mapping[str, Any], actions: Sequence[Mapping[str, Any]]
) -> None:
    version = DeltaTable(folder).version() + 1
    _write_log(Path(folder) / "_delta_log" / f"{version:020d}.json", time, told, actions)


def _write_log(
    log: Path, time: datetime, told: Mapping[str, Any], actions: Sequence[Mapping[str, Any]]
) -> None:
    info = {"commitInfo": {**told, "timestamp": round(time.timestamp() * 1000)}}
    with log.open("x") as lines:
        lines.writelines(json.dumps(each) + "\n" for each in (info, *actions))
    os.utime(log, (time.timestamp(), time.timestamp()))

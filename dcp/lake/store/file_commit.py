"""Commits finished data files to a Delta table, without Spark.

delta-rs reads a lake's tables and writes their checkpoints, but refuses to write to tables with
liquid clustering. An append is one file in the table's Delta log (Delta protocol, "Delta Log
Entries", "Writer Version Requirements"). It is written only if no such file exists: by a link in a
folder, by a conditional write in an object store. So one of two writers of a version wins.
"""

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from random import random
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from dcp.client.backoff import Backoff
from dcp.errors import LakeError
from dcp.lake.store.data_file import DataFile
from dcp.lake.store.failures import plain_line, store_error
from dcp.lake.store.table import CommitConflictError, Operation, Transaction
from dcp.lake.store.table_location import DELTA_LOG, TableLocation, commit_name

if TYPE_CHECKING:
    from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too

_WRITER_VERSION: Final = 7
"""Tables with this writer version list their features."""

_FIRST_WRITER_VERSIONS: Final = (1, 2)
"""Tables with these writer versions have at most the features appendOnly and invariants."""

_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "clustering",
        "deletionVectors",
        "domainMetadata",
        "invariants",
    }
)
"""Features that require nothing of an append except statistics of the clustering columns.

``invariants`` are conditions on columns, which a lake's tables lack. A change data feed derives an
append from its rows.
"""

_CHECKPOINT_INTERVAL: Final = "delta.checkpointInterval"
_KNOWN_INTERVAL: Final = re.compile(r"0*[1-9][0-9]*")
_DEFAULT_CHECKPOINT_INTERVAL: Final = 10
_DELTA_LOG_CLEANUP: Final = "delta.enableExpiredLogCleanup"
DELTA_LOG_RETENTION: Final = "delta.logRetentionDuration"
_KNOWN_RETENTION: Final = re.compile(r"interval \d+ seconds")
"""delta-rs reads any other interval as 30 days."""


_ATTEMPTS: Final = 10
_PAUSES: Final = Backoff(0.05, 1.0, random)


_PARAMETERS: Final = {
    Operation.WRITE: {"mode": "Append", "partitionBy": "[]"},
    Operation.MERGE: {
        "predicate": "false",
        "matchedPredicates": "[]",
        "notMatchedPredicates": '[{"actionType":"insert"}]',
    },
}
_METRICS: Final = {
    Operation.WRITE: ("numFiles", "numOutputRows", "numOutputBytes"),
    Operation.MERGE: ("numTargetFilesAdded", "numTargetRowsInserted", "numTargetBytesAdded"),
}

_LOGGER = logging.getLogger(__name__)


def takes_files(location: TableLocation, table: "StoredTable") -> bool:
    """Return whether dcplake can append to a table without Spark.

    Raises:
        SetupError: the store does not answer.
        LakeError: the store overwrites existing files.
    """
    if unknown := unknown_features(table):
        _LOGGER.info("%s: found the Delta features %s; Spark writes to it", location, unknown)
    return not unknown and location.can_commit()


def unknown_features(table: "StoredTable") -> str:
    """Name the features that our commits cannot respect; empty if there are none."""
    if table.metadata().partition_columns:
        return "partitions"
    protocol = table.protocol()
    if protocol.min_writer_version in _FIRST_WRITER_VERSIONS:
        return ""
    if protocol.min_writer_version != _WRITER_VERSION:
        return f"of writer version {protocol.min_writer_version}"
    return ", ".join(sorted(set(protocol.writer_features or ()) - _FEATURES))


def commit_files(
    location: TableLocation,
    files: Sequence[DataFile],
    read_version: int,
    transaction: Transaction,
    user_metadata: str,
    operation: Operation = Operation.WRITE,
    table: "StoredTable | None" = None,
) -> None:
    """Append the rows of ``files`` as the version after ``read_version``.

    Like Delta, it commits nothing, and raises nothing, if ``read_version`` has this or a later
    transaction of the same application. The caller must read the commit back.

    Args:
        location: the location of a table that `takes_files`.
        files: files at that location; perhaps none.
        read_version: the newest version that the caller has read.
        transaction: application id and version.
        user_metadata: appears in the table's history.
        operation: the operation that the history shows.
        table: the table in ``read_version`` or a later version; if missing, it is read.

    Raises:
        CommitConflictError: another commit came first.
        LakeError: the table has got unknown features, or a file is missing.
        Exception: the store or disk failed; read back whether the commit exists.
    """
    app_id, app_version = transaction
    table = table or location.open(read_version)
    properties = table.metadata().configuration
    newest = table.transaction_version(app_id)
    if newest is not None and newest >= app_version:
        return
    if unknown := unknown_features(table):
        raise LakeError(
            f"{location}: found the Delta features {unknown}, which the table got after the files "
            "were written; nothing was committed, run it again: Spark then writes to the table"
        )
    # An executor with another disk at the same path would have written elsewhere.
    _refuse_missing(location, files)
    actions = appended(files, read_version, user_metadata, operation, transaction)
    version = read_version + 1
    try:
        location.commit(version, commit_lines(actions))
    except FileExistsError:
        name = f"{location}/{DELTA_LOG}/{commit_name(version)}"
        raise CommitConflictError(f"{name}: found a commit there, expected none") from None
    checkpoint_if_due(location, version, properties)


def attempts() -> Iterator[None]:
    """Yield once for each attempt to commit, with a growing pause between attempts."""
    yield
    for attempt in range(_ATTEMPTS - 1):
        time.sleep(_PAUSES.delay_seconds(attempt))
        yield


def appended(
    files: Sequence[DataFile],
    read_version: int,
    user_metadata: str,
    operation: Operation,
    transaction: Transaction | None = None,
) -> list[dict[str, Any]]:
    now_milliseconds = time.time_ns() // 1_000_000
    actions: list[dict[str, Any]] = [
        commit_info(
            now_milliseconds,
            operation,
            _PARAMETERS[operation],
            isBlindAppend=operation is Operation.WRITE,
            operationMetrics=_metrics(files, operation),
            readVersion=read_version,
            userMetadata=user_metadata,
        )
    ]
    if transaction is not None:
        app_id, version = transaction
        fence = {"appId": app_id, "version": version, "lastUpdated": now_milliseconds}
        actions.append({"txn": fence})
    return [*actions, *({"add": _added(file)} for file in files)]


def compacted(sizes: Mapping[str, int], file: DataFile, read_version: int) -> list[dict[str, Any]]:
    """Return the actions that replace the files in ``sizes`` (bytes by name) with ``file``."""
    now_milliseconds = time.time_ns() // 1_000_000
    metrics = {
        "numRemovedFiles": len(sizes),
        "numRemovedBytes": sum(sizes.values()),
        "numAddedFiles": 1,
        "numAddedBytes": file.size_bytes,
    }
    info = commit_info(
        now_milliseconds,
        "OPTIMIZE",
        {"predicate": "[]"},
        isBlindAppend=False,
        operationMetrics={name: str(number) for name, number in metrics.items()},
        readVersion=read_version,
    )
    removed = [
        {
            "path": name,
            "deletionTimestamp": now_milliseconds,
            "dataChange": False,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": size,
        }
        for name, size in sizes.items()
    ]
    added = _added(file) | {"dataChange": False}
    return [info, *({"remove": each} for each in removed), {"add": added}]


def commit_info(
    milliseconds: int, operation: str, parameters: Mapping[str, Any], **told: Any
) -> dict[str, Any]:
    """Return the action that a table's history shows; ``told`` has more fields."""
    info = {
        "timestamp": milliseconds,
        "operation": operation,
        "operationParameters": parameters,
        "isolationLevel": "Serializable",
        "engineInfo": "dcplake",
        "txnId": str(uuid4()),
    }
    return {"commitInfo": info | told}


def table_metadata(**told: Any) -> dict[str, Any]:
    """Return the action that describes a table without partitions; ``told`` has its fields."""
    files = {"format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
    return {"metaData": {**told, **files}}


def commit_lines(actions: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in actions).encode()


def _refuse_missing(location: TableLocation, files: Sequence[DataFile]) -> None:
    for file, found in zip(files, location.sizes_of([each.name for each in files]), strict=True):
        if found != file.size_bytes:
            elsewhere = (
                ""
                if location.is_remote
                else "executors on other machines must have lake.root at the same path, and "
            )
            raise LakeError(
                f"{location}/{file.name}: found no such file, or one of another size, expected the "
                f"{file.size_bytes} bytes that a Spark task wrote; {elsewhere}nobody may remove "
                "files of the lake"
            )


def _metrics(files: Sequence[DataFile], operation: Operation) -> dict[str, str]:
    rows, size_bytes = sum(file.rows for file in files), sum(file.size_bytes for file in files)
    counts = (len(files), rows, size_bytes)
    return dict(zip(_METRICS[operation], map(str, counts), strict=True))


def _added(file: DataFile) -> dict[str, Any]:
    return {
        "path": file.name,
        "partitionValues": {},
        "size": file.size_bytes,
        "modificationTime": file.modified_milliseconds,
        "dataChange": True,
        "stats": file.statistics,
    }


def checkpoint_if_due(
    location: TableLocation, version: int, properties: Mapping[str, str | None]
) -> None:
    """Write a checkpoint and clean up the Delta log, as Delta does after its own commits.

    If this fails, the commit still stands.
    """
    told = properties.get(_CHECKPOINT_INTERVAL) or ""
    interval = int(told) if _KNOWN_INTERVAL.fullmatch(told) else _DEFAULT_CHECKPOINT_INTERVAL
    if version % interval == 0:
        write_checkpoint(location, version, properties)


def write_checkpoint(
    location: TableLocation, version: int, properties: Mapping[str, str | None]
) -> None:
    """Write a checkpoint and clean up the Delta log. A failure is logged, not raised."""
    try:
        location.prepare_checkpoint()
        table = location.open(version)
        table.create_checkpoint()
        is_wanted = properties.get(_DELTA_LOG_CLEANUP, "true") == "true"
        if is_wanted and _KNOWN_RETENTION.fullmatch(properties.get(DELTA_LOG_RETENTION) or ""):
            table.cleanup_metadata()
    except Exception as failure:  # of many classes, some undocumented
        why = store_error(failure) or plain_line(failure)
        _LOGGER.warning("%s: version %d has no checkpoint: %s", location, version, why)

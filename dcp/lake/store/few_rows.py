"""Appends few rows to a Delta table without Spark, and keeps the number of its files small."""

import logging
import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import QueryBuilder

from dcp.errors import DcplakeError, LakeError, StoreUnavailableError
from dcp.lake.config.memory import MEBIBYTE
from dcp.lake.store.data_file import DataFile, DataFileWriter, FileContents
from dcp.lake.store.failures import plain_line, store_error
from dcp.lake.store.file_commit import (
    appended,
    attempts,
    checkpoint_if_due,
    commit_lines,
    compacted,
    unknown_features,
    write_checkpoint,
)
from dcp.lake.store.table import Operation
from dcp.lake.store.table_location import TableLocation

if TYPE_CHECKING:
    from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too

_MOST_FILES: Final = 4
"""If an append makes so many files, it compacts them into one."""

_MOST_BYTES: Final = 16 * MEBIBYTE
"""Only `dcplake maintain` compacts a table with more bytes."""

_PLAIN_NAME: Final = re.compile(r"[\w.-]+")
"""A file name that the Delta log stores unencoded, for a file directly in the table's folder."""

_LOGGER = logging.getLogger(__name__)


def append_rows(location: TableLocation, rows: pa.Table, user_metadata: str, where: str) -> bool:
    """Append rows as a separate version; return whether it did.

    It did not if the table has other columns or unknown features, or if other commits came first in
    every attempt. ``location`` must be able to commit (`dcp.lake.store.file_commit.takes_files`).

    Raises:
        DcplakeError: the commit failed. If it may have succeeded nevertheless, the message, which
            begins with ``where``, says so.
        Exception: the store or the disk failed before the commit.
    """
    file: DataFile | None = None
    for _ in attempts():
        table = location.open()
        columns = pa.schema(table.schema().to_arrow())
        given = {each.name: each for each in rows.schema}
        if unknown_features(table) or given != {each.name: each for each in columns}:
            return False
        # The file is written once: if another commit comes first, only the version changes.
        file = file or _written(location, rows)
        version, properties = table.version() + 1, table.metadata().configuration
        are_many = len(table.file_uris()) + 1 >= _MOST_FILES
        added = [] if file is None else [file]
        lines = commit_lines(appended(added, table.version(), user_metadata, Operation.WRITE))
        try:
            location.commit(version, lines)
        except FileExistsError:
            continue
        except Exception as failure:  # of many classes, some undocumented
            raise _commit_error(failure, where) from failure
        checkpoint_if_due(location, version, properties)
        if are_many:
            _keep_few_files(location, table)
        return True
    return False


def _keep_few_files(location: TableLocation, table: "StoredTable") -> None:
    """Compact the files of many appends into one, and write a checkpoint.

    Otherwise, each append adds two files that every reader requests from an object store. A failure
    here leaves the rows unchanged.
    """
    try:
        table.update_incremental()
        files = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
        sizes = {each["path"]: each["size_bytes"] for each in files}
        # A large table, and all that needs Spark (deletion vectors, encoded names), stays as it is.
        if (
            sum(sizes.values()) > _MOST_BYTES
            or not all(map(_PLAIN_NAME.fullmatch, sizes))
            or table.protocol().reader_features
            or unknown_features(table)
        ):
            return
        file = _written(location, _all_rows(table))
        if file is None:
            return
        location.commit(table.version() + 1, commit_lines(compacted(sizes, file, table.version())))
        write_checkpoint(location, table.version() + 1, table.metadata().configuration)
    except Exception as failure:  # another process may be compacting, too
        _LOGGER.debug("%s: %s; its files stay as they are", location, plain_line(failure))


def _all_rows(table: "StoredTable") -> pa.Table:
    found = QueryBuilder().register("t", table).execute("SELECT * FROM t")
    rows = pa.RecordBatchReader.from_stream(found).read_all()
    return rows.cast(pa.schema(table.schema().to_arrow()))


def _written(location: TableLocation, rows: pa.Table) -> DataFile | None:
    kinds = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_string, pa.types.is_timestamp)
    bounded = [each.name for each in rows.schema if any(is_of(each.type) for is_of in kinds)]
    with DataFileWriter(location, FileContents(rows.schema, bounded, _MOST_BYTES)) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
        return writer.finish()


def _commit_error(failure: Exception, where: str) -> DcplakeError:
    error = store_error(failure, where)
    if error is not None and not isinstance(error, StoreUnavailableError):
        return error  # the store refused the commit, so it does not exist
    kind: type[DcplakeError] = LakeError if error is None else StoreUnavailableError
    told = plain_line(failure) if error is None else str(store_error(failure)).partition("; ")[0]
    return kind(
        f"{where}: {told}; the rows may have been written: look whether the table has them before "
        "you write them again"
    )

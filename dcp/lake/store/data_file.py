"""Writes data files of a Delta table with pyarrow, in tasks, without Spark's JVM.

A file belongs to the table once a commit names it (`dcp.lake.store.file_commit`). VACUUM removes
files of killed tasks; a bucket's lifecycle rule removes their unfinished uploads.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from dcp.lake.config.memory import UPLOAD_PART_BYTES
from dcp.lake.store.table_location import TableLocation
from dcp.records import row_of


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file at the table's location, with the facts that a commit needs."""

    name: str
    size_bytes: int
    modified_milliseconds: int
    rows: int
    statistics: str
    """JSON as in the Delta protocol, "Per-file Statistics"."""

    def to_batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([row_of(self)], schema=DATA_FILE)


_TYPES: Final[Mapping[object, pa.DataType]] = {str: pa.string(), int: pa.int64()}
DATA_FILE: Final = pa.schema([(each.name, _TYPES[each.type]) for each in fields(DataFile)])


@dataclass(frozen=True, slots=True)
class FileContents:
    schema: pa.Schema
    statistics_columns: Sequence[str]
    """Each file's statistics have the minimum and maximum of these columns."""
    row_group_bytes: int
    """Smaller batches are gathered into one row group.

    A row group costs some kilobytes in the file's footer, and some seeks of a reader. Parts of an
    upload are as large, but at least 5 MiB; S3 allows 10,000 parts.
    """
    sorted_by: Sequence[str] = ()
    """Sorts the rows of each row group, so that a reader can skip pages."""


class DataFileWriter(AbstractContextManager["DataFileWriter"]):
    """Writes one file, or none if the block raises or writes no rows.

    It holds less than ``row_group_bytes`` of rows, plus one batch; while it encodes them, also the
    encoded rows.
    """

    def __init__(self, location: TableLocation, contents: FileContents) -> None:
        """Store the arguments; the file begins with the first rows."""
        self._location = location
        self._contents = contents
        self._name = f"part-{uuid4()}.zstd.parquet"
        self._open = ExitStack()
        self._file: pa.NativeFile | None = None
        self._footer: list[pq.FileMetaData] = []
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        self._gathered.append(rows)
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= self._contents.row_group_bytes:
            self._write_row_group()

    def finish(self) -> DataFile | None:
        """Close the file and return it; None if there were no rows."""
        self._write_row_group()
        if self._writer is None or self._file is None:
            return None
        self._writer.close()
        size_bytes = self._file.tell()
        self._open.close()
        [footer] = self._footer
        return DataFile(
            self._name,
            size_bytes,
            time.time_ns() // 1_000_000,
            footer.num_rows,
            _statistics(footer, self._contents.statistics_columns),
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._writer is not None:
            with suppress(Exception):  # on a full disk, closing fails too; the first error counts
                self._writer.close()
        self._open.__exit__(kind, error, trace)

    def _opened(self) -> pq.ParquetWriter:
        if self._writer is None:
            contents = self._contents
            part_bytes = max(UPLOAD_PART_BYTES, contents.row_group_bytes)
            self._file = self._open.enter_context(self._location.writing(self._name, part_bytes))
            self._writer = pq.ParquetWriter(
                self._file,
                contents.schema,
                compression="zstd",
                # For binary columns, dictionary and bounds would copy documents of 20 MiB.
                use_dictionary=[
                    each.name for each in contents.schema if pa.types.is_integer(each.type)
                ],
                write_statistics=list(contents.statistics_columns),
                store_decimal_as_integer=True,  # up to 18 digits, like Spark
                write_page_index=True,  # lets Spark read only the pages that it needs
                metadata_collector=self._footer,
            )
        return self._writer

    def _write_row_group(self) -> None:
        rows, self._gathered = self._gathered, []
        self._gathered_bytes = 0
        if sum(map(len, rows)):
            table = pa.Table.from_batches(rows)
            if self._contents.sorted_by:
                table = table.sort_by([(name, "ascending") for name in self._contents.sorted_by])
            self._opened().write_table(table)


def _statistics(footer: pq.FileMetaData, columns: Sequence[str]) -> str:
    indexes = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    minima: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in columns:
        told = [
            footer.row_group(group).column(indexes[column]).statistics
            for group in range(footer.num_row_groups)
        ]
        nulls[column] = sum(each.null_count for each in told)
        known = [each for each in told if each.has_min_max]
        # If one row group with values lacks bounds, the file's bounds are unknown.
        if known and all(each.has_min_max or not each.num_values for each in told):
            minima[column] = _plain(min(each.min for each in known))
            maxima[column] = _plain(max(each.max for each in known))
    content = {
        "numRecords": footer.num_rows,
        "minValues": minima,
        "maxValues": maxima,
        "nullCount": nulls,
        "tightBounds": True,
    }
    return json.dumps(content, separators=(",", ":"))


def _plain(value: Any) -> Any:
    match value:
        case Decimal():
            return int(value)
        case datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case _:
            return value

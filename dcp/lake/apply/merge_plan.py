"""The plan of one apply to a replica table, and its decisions as functions. No Spark.

`dcp.lake.apply.slice_rules` decides the slice of the log, `dcp.lake.apply.typed_plan` the typed
columns, `dcp.lake.change_log.touched_keys` the vbuckets without repeats.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

import pyarrow as pa

from dcp.lake.apply.typed_documents import made_columns
from dcp.lake.apply.typed_plan import UNTYPED, ColumnChange, TypedPlan
from dcp.lake.change_log.touched_keys import Touched
from dcp.lake.config.memory import DOCUMENT_BYTES, KIBIBYTE, MEBIBYTE
from dcp.lake.store.log_slice import LogSlice
from dcp.lake.store.merge import LogRows, Merge
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.records import UNSTORED, Record

EMPTY_ROUNDS: Final = 100
"""After so many rounds without rows for a table, a commit without rows moves its round on."""

LARGE_DOCUMENT_BYTES: Final = MEBIBYTE
"""Spark reads rounds with a larger document: this process would decode thousands at once."""

TABLE_BYTES_BY_NAMED_KEY: Final = 16 * KIBIBYTE
"""Naming a key in the MERGE costs about as much as reading so many bytes of its vbucket."""


@dataclass(frozen=True, slots=True)
class RowBudget:
    """The driver's memory limits for one apply. Beyond them, Spark's tasks read the rows."""

    rows: int = 20_000
    """Limits the references to all changed rows."""
    bytes: int = 16 * MEBIBYTE
    """Limits the newest row of each key."""

    def shared_by(self, applies: int) -> "RowBudget":
        return RowBudget(self.rows // applies, self.bytes // applies)


ROW_BUDGET: Final = RowBudget()


class CommitReason(StrEnum):
    """The reason for a table's commit, or for none."""

    ROWS = "it gets rows, loses some, or a vbucket becomes stale or is stale no longer"
    MOVE = "its round moves on without rows, so that the change log before it is not searched again"
    COLUMNS = "its typed columns differ from its contract"
    NONE = "it waits for further rounds"


def commit_reason(
    current: AppliedVersion,
    log_slice: LogSlice,
    touched: Touched | None,
    typed: TypedPlan,
    *,
    is_applied: bool,
) -> CommitReason:
    """Return why a table gets a commit, or that it waits.

    ``touched`` is None if its keys are too many to list; ``is_applied``: the table has had an
    apply.
    """
    if touched is None or touched or log_slice.stale != current.stale:
        return CommitReason.ROWS
    # Without a commit, every round would search the dead branch of a rollback again.
    if log_slice.undone or log_slice.to_round - current.to_round >= EMPTY_ROUNDS:
        return CommitReason.MOVE
    has_rows = log_slice.has_work or is_applied
    return CommitReason.COLUMNS if typed.rewrites and has_rows else CommitReason.NONE


class RowReader(StrEnum):
    """The process that reads the rows of an apply, and the reason."""

    DRIVER = "this process reads the rows"
    SPARK_FINDS_KEYS = "Spark finds the rows: they are many, or only the table has their keys"
    SPARK_FOR_BYTES = "Spark reads the rows: they have too many bytes for this process"
    SPARK_FOR_LARGE = "Spark reads the rows: a document may be large"


def row_reader(
    touched: Touched | None,
    olds: Sequence[pa.Table | None],
    largest_bytes: Callable[[Touched], int],
) -> RowReader:
    """Return who may read the rows of an apply.

    ``touched`` is None if its keys are too many to list. ``olds`` are the rows of lost keys
    (`SliceReader.old_rows`). Only if that decides, ``largest_bytes`` reads the size of the
    largest document in the rounds of the touched keys.
    """
    if touched is None:
        return RowReader.SPARK_FINDS_KEYS
    if any(each is None for each in olds):
        return RowReader.SPARK_FOR_BYTES
    if largest_bytes(touched) > LARGE_DOCUMENT_BYTES:
        return RowReader.SPARK_FOR_LARGE
    return RowReader.DRIVER


def reads_table(log_slice: LogSlice, typed: TypedPlan) -> bool:
    """Return whether an apply may read documents of the table; the log lacks their sizes."""
    return bool(log_slice.restored_versions) or typed.rewrites


def pays_to_name(touched: Touched, table_bytes: int, vbucket_count: int) -> bool:
    """Return whether the MERGE names its keys; ``table_bytes`` is the size of the whole table."""
    joined_bytes = table_bytes * len(touched.vbuckets) / vbucket_count
    return bool(touched) and len(touched) * TABLE_BYTES_BY_NAMED_KEY <= joined_bytes


@dataclass(frozen=True, slots=True)
class MergePlan(Record):
    """One apply. Its JSON has every decision."""

    current: AppliedVersion
    """The table's version that the plan was made on."""
    log_slice: LogSlice
    touched: Annotated[Touched | None, UNSTORED] = field(repr=False)
    """Empty if the apply only moves the table's round on. None: Spark finds the keys."""
    since_version: int
    """The version of the table's newest apply or RESTORE; the transaction id counts from it."""
    rows: Annotated[pa.Table | LogRows, UNSTORED] = field(repr=False, compare=False)
    """The rows to merge, in the columns of `dcp.lake.change_log.touched_keys.MERGE_SOURCE`; or
    where Spark reads them.
    """
    reason: CommitReason = CommitReason.ROWS
    reader: RowReader = RowReader.DRIVER
    """The process that reads ``rows``."""
    names_keys: bool = False
    """The MERGE names the touched keys (`pays_to_name`)."""
    is_first: bool = False
    """No commit has changed a row of the table, so it is empty."""
    typed: Annotated[TypedPlan, UNSTORED] = UNTYPED
    largest_bytes: int = DOCUMENT_BYTES
    """The size of the largest document that the apply may read."""

    @property
    def to_round(self) -> int:
        return self.log_slice.to_round

    @property
    def vbuckets(self) -> tuple[int, ...]:
        return self.log_slice.vbuckets if self.touched is None else self.touched.vbuckets

    @property
    def touched_keys(self) -> Annotated[int | None, "touched_keys"]:
        return None if self.touched is None else len(self.touched)

    @property
    def without_repeats(self) -> Annotated[tuple[int, ...], "without_repeats"]:
        """The vbuckets in which Spark need not pick the newest row of each key."""
        return tuple(sorted(self.rows.without_repeats)) if isinstance(self.rows, LogRows) else ()

    @property
    def typed_columns(self) -> Annotated[str, "typed_columns"]:
        return str(self.typed)

    def merge(self) -> Merge:
        typed = self.typed
        return Merge(
            rows=self.rows,
            current_version=self.current.version,
            vbuckets=self.vbuckets,
            largest_bytes=self.largest_bytes,
            keys=self.touched.keys if self.touched is not None and self.names_keys else (),
            made=None if typed.columns is None else made_columns(typed.columns),
            only_inserts=self.is_first,
            extends=typed.change is ColumnChange.EXTEND,
            rewrites=typed.rewrites,
        )

    @property
    def method(self) -> str:
        return "key literals" if self.names_keys else "hash join"

    def __str__(self) -> str:
        keys = "touched keys" if self.touched is None else str(self.touched)
        return (
            f"apply {self.current.table}: round {self.current.to_round} -> {self.to_round}, "
            f"{keys}, by {self.method}, reading {self.log_slice}"
        )

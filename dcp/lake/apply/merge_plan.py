"""The plan of one apply to a replica table, as pure data. No Spark.

`dcp.lake.apply.slice_rules` has the rules that decide its slice of the log.
"""

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from dcp.lake.apply.typed_documents import made_columns
from dcp.lake.apply.typed_plan import UNTYPED, ColumnChange, TypedPlan
from dcp.lake.change_log.touched_keys import Touched
from dcp.lake.config.memory import DOCUMENT_BYTES, KIBIBYTE, MEBIBYTE
from dcp.lake.store.log_slice import LogSlice
from dcp.lake.store.merge import LogRows, Merge
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.printable import number_ranges

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


@dataclass(frozen=True, slots=True)
class MergePlan:
    held: AppliedVersion
    """The state of the table in the version that the plan was made on."""
    collection_id: int
    log_slice: LogSlice
    touched: Touched | None = field(repr=False)
    """Empty if the apply only moves the table's round on. None: Spark finds the keys."""
    since_version: int
    """The version of the table's newest apply or RESTORE; the transaction id counts from it."""
    log_version: int
    """The version of ``changes`` to read. A cleaning during the apply cannot take rows from it."""
    names_keys: bool = False
    rows: pa.Table | None = field(default=None, repr=False, compare=False)
    """The rows to merge, in the columns of `dcp.lake.change_log.touched_keys.MERGE_SOURCE`.
    None: there are many, and Spark reads them by a query.
    """
    without_repeats: frozenset[int] = frozenset()
    """Vbuckets in which each key has one row, so that the query need not pick the newest."""
    is_first: bool = False
    """No commit has changed a row of the table, so it is empty."""
    typed: TypedPlan = UNTYPED
    largest_bytes: int = DOCUMENT_BYTES
    """The size of the largest document that the apply may read."""

    @property
    def to_round(self) -> int:
        return self.log_slice.to_round

    @property
    def vbuckets(self) -> tuple[int, ...]:
        return self.log_slice.vbuckets if self.touched is None else self.touched.vbuckets

    def merge(self, changes_sql: str) -> Merge:
        typed = self.typed
        log_rows = LogRows(
            changes_sql, self.log_version, self.collection_id, self.log_slice, self.without_repeats
        )
        return Merge(
            rows=log_rows if self.rows is None else self.rows,
            held_version=self.held.version,
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
        count = "" if self.touched is None else f"{len(self.touched)} "
        return (
            f"apply {self.held.table}: round {self.held.to_round} -> {self.to_round}, {count}"
            f"changed keys in {len(self.vbuckets)} vbuckets, by {self.method}, reading changes "
            f"from round {self.log_slice.first_round}{self._vbuckets_text()}"
        )

    def _vbuckets_text(self) -> str:
        log_slice, parts = self.log_slice, []
        if log_slice.restored:
            oldest = min(log_slice.restored.values())
            parts.append(
                f"vbuckets {number_ranges(log_slice.restored)} go back (oldest version {oldest})"
            )
        if log_slice.replaced:
            parts.append(f"vbuckets {number_ranges(log_slice.replaced)} are replaced")
        if log_slice.cleared:
            parts.append(f"vbuckets {number_ranges(log_slice.cleared)} were flushed or dropped")
        if log_slice.revived:
            parts.append(
                f"a flush or drop of vbuckets {number_ranges(log_slice.revived)} is undone"
            )
        if log_slice.stale:
            parts.append(f"vbuckets {number_ranges(log_slice.stale)} stay stale")
        return "".join(f"; {part}" for part in parts)

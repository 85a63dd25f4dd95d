"""The rows that an apply merges into a replica. `Table` turns them into statements."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dcp.lake.store.log_slice import LogSlice


@dataclass(frozen=True, slots=True)
class LogRows:
    """Rows that a query finds in the log: for each touched key its newest live row.

    A key without one gets its row from the version that its vbucket goes back to, or is deleted.
    """

    changes_sql: str
    """The SQL name of the change log."""
    log_version: int
    """The version of ``changes`` to read."""
    collection_id: int
    log_slice: LogSlice
    touched_sql: str
    """The relation `dcp.lake.adapters.apply_sql.touched_sql` of the vbuckets that may have repeats;
    empty if there are none. It may name a view that exists only while its planner keeps it."""
    without_repeats: frozenset[int] = frozenset()
    """Vbuckets in which each key has one row, so that the query need not pick the newest. Their
    slice only adds rows (`dcp.lake.change_log.touched_keys.without_repeats`)."""

    def __post_init__(self) -> None:
        if not self.touched_sql and (not self.without_repeats or self.rest.ranges):
            raise ValueError("rows of the log: found no relation of keys that may have repeats")

    @property
    def rest(self) -> LogSlice:
        """The slice of the vbuckets that may have repeats."""
        return self.log_slice.without(self.without_repeats)


@dataclass(frozen=True, slots=True)
class MadeColumns:
    """Columns that are computed from the rows of a replica and follow its own columns."""

    schema: pa.Schema
    make: Callable[[pa.Array, pa.Array], list[pa.Array]]
    """Returns the columns for the columns ``datatype`` and ``value``."""
    comments: Mapping[str, str]
    """By column name."""

    def added_to(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made = self.make(batch["datatype"], batch["value"])
        schema = pa.schema([*batch.schema, *self.schema])
        return pa.RecordBatch.from_arrays([*batch.columns, *made], schema=schema)

    def added_to_table(self, rows: pa.Table) -> pa.Table:
        schema = pa.schema([*rows.schema, *self.schema])
        return pa.Table.from_batches(map(self.added_to, rows.to_batches()), schema)


@dataclass(frozen=True, slots=True)
class Merge:
    """Rows to merge into a replica by ``vbucket`` and ``key``; rows with ``deleted`` go."""

    rows: pa.Table | LogRows = field(repr=False)
    """The columns of a replica, and ``deleted``. Each key occurs once."""
    current_version: int
    """The table version to merge into."""
    vbuckets: tuple[int, ...]
    """The vbuckets of the rows."""
    largest_bytes: int
    """The size of the largest document to read, for which Spark reserves memory."""
    keys: Sequence[str] = ()
    """All keys of the rows, if searching for single keys is cheaper."""
    made: MadeColumns | None = None
    only_inserts: bool = False
    """The table is empty, so that no row can be updated or deleted."""
    extends: bool = False
    """The made columns have fields that the table lacks."""
    rewrites: bool = False
    """All rows of the table are written again, with these made columns and no others."""

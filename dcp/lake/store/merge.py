"""The rows that an apply merges into a replica, as values: `Table` makes statements of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dcp.lake.store.log_slice import LogSlice


@dataclass(frozen=True, slots=True)
class LogRows:
    """Rows that a query finds: for each touched key its newest live row, or what takes its place.

    That is its row in the version that its vbucket goes back to, or its deletion.
    """

    changes_sql: str
    """The change log's name."""
    log_version: int
    """The version of ``changes`` that is read."""
    collection_id: int
    log_slice: LogSlice
    without_repeats: frozenset[int] = frozenset()
    """In these vbuckets the query need not look for the newest row of each key."""


@dataclass(frozen=True, slots=True)
class MadeColumns:
    """Columns behind those of a replica, which are made of its rows."""

    schema: pa.Schema
    make: Callable[[pa.Array, pa.Array], list[pa.Array]]
    """Makes them of ``datatype`` and ``value``."""
    comments: Mapping[str, str]
    """By column."""

    def added_to(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made = self.make(batch["datatype"], batch["value"])
        schema = pa.schema([*batch.schema, *self.schema])
        return pa.RecordBatch.from_arrays([*batch.columns, *made], schema=schema)

    def added_to_table(self, rows: pa.Table) -> pa.Table:
        schema = pa.schema([*rows.schema, *self.schema])
        return pa.Table.from_batches(map(self.added_to, rows.to_batches()), schema)


@dataclass(frozen=True, slots=True)
class Merge:
    """Rows to merge into a replica by ``vbucket`` and ``key``; rows marked ``deleted`` go."""

    rows: pa.Table | LogRows = field(repr=False)
    """A replica's columns, and ``deleted``; each key once."""
    held_version: int
    """The version of the table that is merged into."""
    vbuckets: tuple[int, ...]
    """All rows are in these."""
    largest_bytes: int
    """Of a document that is read; memory is kept for such."""
    keys: Sequence[str] = ()
    """All keys of the rows, if it pays to look for them alone."""
    made: MadeColumns | None = None
    only_inserts: bool = False
    """The table is empty: no row can be updated or deleted."""
    extends: bool = False
    """The made columns have fields that the table lacks."""
    rewrites: bool = False
    """The table gets all its rows anew, with these made columns and no others."""

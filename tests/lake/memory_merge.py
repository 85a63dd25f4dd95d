"""Runs the query for the rows of a merge over tables in memory, by DataFusion."""

import re
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa

from dcp.lake.adapters.apply_sql import MODIFIED_AT_SQL, merge_source_sql, micros_of
from dcp.lake.change_log.touched_keys import MERGE_SOURCE
from dcp.lake.store.merge import LogRows, MadeColumns

_AT_VERSION: Final = re.compile(r"(\w+) VERSION AS OF (\d+)")
_MODIFIED_AT: Final = """arrow_cast(NULL, 'Timestamp(Microsecond, Some("UTC"))')"""
"""Stands for the formula in Spark's functions; `log_rows` computes it."""


def log_rows(
    table_name: str,
    rows: LogRows,
    current_version: int,
    run: Callable[[str, Mapping[str, tuple[str, int]]], pa.Table],
) -> pa.Table:
    """Return the rows to merge; ``run`` runs a query over tables and versions, by their names."""
    query = merge_source_sql(table_name, rows).replace(MODIFIED_AT_SQL, _MODIFIED_AT)
    versions = {table_name: (table_name, current_version)}
    for name, version in _AT_VERSION.findall(query):
        versions[f"{name}_at_{version}"] = name, int(version)
    found = run("SELECT * FROM " + _AT_VERSION.sub(r"\1_at_\2", query), versions)
    made = found.select(MERGE_SOURCE.names).cast(MERGE_SOURCE)
    times = [
        at or (None if cas is None else micros_of(int(cas)))
        for at, cas in zip(made["modified_at"].to_pylist(), made["cas"].to_pylist(), strict=True)
    ]
    at = MERGE_SOURCE.get_field_index("modified_at")
    return made.set_column(at, MERGE_SOURCE.field(at), pa.array(times, MERGE_SOURCE.field(at).type))


def with_made(rows: pa.Table, made: MadeColumns | None) -> pa.Table:
    """Return rows with the columns that are made of them."""
    return rows if made is None else made.added_to_table(rows)

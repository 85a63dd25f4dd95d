"""Provides the rows of a merge to Spark, with the columns that are made from them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dcp.lake.adapters.apply_sql import merge_source_sql, rewritten_sql
from dcp.lake.adapters.transaction import memory_view, session_settings_for_a_while
from dcp.lake.config.memory import arrow_settings
from dcp.lake.store.merge import LogRows, MadeColumns, Merge
from dcp.lake.store.sql import at_version
from dcp.lake.tables.schema import spark_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS: Final = "dcplake_merged_rows"
_FUNCTION: Final = "dcplake_made"
_MADE: Final = "_dcplake_made"


@contextmanager
def merged_rows(spark: "SparkSession", table_sql: str, merge: Merge) -> Iterator[str]:
    with ExitStack() as stack:
        arrow = arrow_settings(merge.largest_bytes)
        stack.enter_context(session_settings_for_a_while(spark, arrow))
        if isinstance(merge.rows, LogRows):
            merge_source = merge_source_sql(table_sql, merge.rows)
            yield merge_source if merge.made is None else _made_sql(spark, merge_source, merge.made)
            return
        rows = merge.rows
        if merge.made is not None:
            rows = merge.made.added_to_table(rows)
        yield stack.enter_context(memory_view(spark, _ROWS, rows))


@contextmanager
def written_rows(spark: "SparkSession", table_sql: str, merge: Merge) -> Iterator[str]:
    """Yield SQL for the rows that a merge writes: all rows of the table if it rewrites."""
    if not merge.rewrites:
        with merged_rows(spark, table_sql, merge) as merge_source:
            yield f"(SELECT * EXCEPT (deleted) FROM {merge_source} WHERE NOT deleted)"
        return
    with merged_rows(spark, table_sql, replace(merge, made=None)) as merge_source:
        rows = rewritten_sql(at_version(table_sql, merge.current_version), merge_source)
        yield rows if merge.made is None else _made_sql(spark, rows, merge.made)


def _made_sql(spark: "SparkSession", merge_source: str, made: MadeColumns) -> str:
    """Return the query for the rows of ``merge_source`` with made columns.

    Spark skips unneeded columns, so a MERGE reads no document while it looks for matching rows.
    """
    from pyspark.sql.pandas.functions import arrow_udf  # an apply of few rows does not need it

    make, kind = made.make, pa.struct(list(made.schema))

    def of_rows(datatypes: pa.Array, values: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays(make(datatypes, values), fields=list(kind))

    # Its stub demands a third argument, but its code warns about that: type hints suffice.
    function = arrow_udf(of_rows, spark_type(kind))  # type: ignore[call-overload]
    spark.udf.register(_FUNCTION, function)
    columns = ", ".join(f"{_MADE}.{name} AS {name}" for name in made.schema.names)
    return f"""(
SELECT * EXCEPT ({_MADE}), {columns}
FROM (SELECT *, {_FUNCTION}(datatype, value) AS {_MADE} FROM {merge_source}))"""

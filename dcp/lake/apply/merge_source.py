"""Gives Spark the rows that a plan merges."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dcp.lake.apply.apply_plan import ApplyPlan
from dcp.lake.apply.apply_sql import source_sql
from dcp.lake.apply.typed_rows import typed_sql, typed_table
from dcp.lake.config.memory import arrow_settings
from dcp.lake.tables.tables import LakeTables
from dcp.lake.tables.transaction import memory_view, session_settings_for_a_while


@contextmanager
def plan_source(lake: LakeTables, plan: ApplyPlan) -> Iterator[str]:
    """Give SQL for the rows that a plan merges (`SOURCE`): the name of a view, or a query."""
    if plan.rows is None:
        yield source_sql(lake.table_sql(plan.held.table), lake.changes_sql, plan)
        return
    with memory_view(lake.spark, f"dcplake_rows_of_{plan.held.table}", plan.rows) as view:
        yield view


@contextmanager
def typed_source(lake: LakeTables, plan: ApplyPlan) -> Iterator[str]:
    columns, arrow = plan.typed.columns, arrow_settings(plan.largest_bytes)
    if columns is not None and plan.rows is not None:
        plan, columns = replace(plan, rows=typed_table(plan.rows, columns)), None
    with session_settings_for_a_while(lake.spark, arrow), plan_source(lake, plan) as source:
        yield source if columns is None else typed_sql(lake.spark, source, columns)

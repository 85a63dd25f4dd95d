"""Decides which typed columns an apply writes, and what that asks of the table.

By its contract and the columns that the table has; with the mode ``evolve`` also by a look at the
documents that the apply brings.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from dcp.lake.apply.evolution import grown
from dcp.lake.apply.seen_values import Seen
from dcp.lake.config.contracts import Contract
from dcp.lake.store.table import Table
from dcp.lake.tables.schema import spark_type
from dcp.lake.tables.typed_columns import (
    DOC,
    TypedColumns,
    has_names_twice,
    paths_of,
    typed_columns,
)


class ColumnChange(StrEnum):
    NONE = "none"
    ADD = "add"
    """The table has no rows yet: the columns are added before the first ones."""
    EXTEND = "extend"
    """The MERGE adds fields."""
    REWRITE = "rewrite"
    """All rows are written anew: the contract is another one, or a column widens."""


@dataclass(frozen=True, slots=True)
class TypedPlan:
    """The typed columns that an apply writes, and the resulting change of the table's columns."""

    columns: TypedColumns | None = None
    """None: no typed columns. With a change, the table loses its own."""
    change: ColumnChange = ColumnChange.NONE
    is_typed: bool = False
    """The table has some."""

    @property
    def rewrites(self) -> bool:
        return self.change is ColumnChange.REWRITE


UNTYPED: Final = TypedPlan()


def typed_plan(table: Table, contract: Contract | None, *, is_applied: bool) -> TypedPlan:
    """Return a contract's demand on a table, before any document was looked at.

    ``is_applied``: the table has had an apply.
    """
    columns = table.columns()
    found = columns.field(DOC) if DOC in columns.names else None
    if contract is None:
        return TypedPlan(None, ColumnChange.REWRITE, is_typed=True) if found else UNTYPED
    wanted = typed_columns(contract)
    if found is None:
        change = ColumnChange.REWRITE if is_applied else ColumnChange.ADD
        return TypedPlan(wanted, change)
    comment = (found.metadata or {}).get(b"comment", b"").decode()
    if comment != wanted.fingerprint or has_names_twice(found.type):
        return TypedPlan(wanted, ColumnChange.REWRITE, is_typed=True)
    return TypedPlan(replace(wanted, document=found.type), is_typed=True)


def with_documents(plan: TypedPlan, columns: TypedColumns, seen: Seen) -> TypedPlan:
    document = grown(columns.document, seen)
    if not document.num_fields:  # no document has a field: there is no column to write
        return replace(plan, columns=None) if plan.is_typed else UNTYPED
    made = replace(columns, document=document)
    change = plan.change
    if change is ColumnChange.NONE and document != columns.document:
        is_wider = not _values(columns) <= _values(made)
        change = ColumnChange.REWRITE if is_wider else ColumnChange.EXTEND
    return replace(plan, columns=made, change=change)


def _values(columns: TypedColumns) -> set[tuple[str, str]]:
    return {(str(path), spark_type(path.kind)) for path in paths_of(columns.document)}

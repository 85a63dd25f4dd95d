"""Decides which typed columns an apply writes, and how the table must change for them.

The contract and the table's columns decide; in mode ``evolve`` also the documents of the apply.
"""

import logging
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import pyarrow as pa

from dcp.errors import ConfigError
from dcp.lake.apply.column_growth import grown
from dcp.lake.apply.seen_values import Seen
from dcp.lake.config.contracts import Contract, load_contracts
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, replicas_in
from dcp.lake.tables.schema import spark_type
from dcp.lake.tables.typed_columns import (
    DOC,
    TypedColumns,
    changed_arrays,
    document_type_of,
    has_names_twice,
    refuse_own_columns,
    scalars_of,
    typed_columns,
)
from dcp.suggestions import did_you_mean

_LOGGER: Final = logging.getLogger(__name__)


class ColumnChange(StrEnum):
    NONE = "none"
    ADD = "add"
    """The table has no rows, so that the columns are added before the first ones."""
    EXTEND = "extend"
    """The MERGE adds fields."""
    REWRITE = "rewrite"
    """All rows are rewritten: the contract has changed, or a column widens."""


@dataclass(frozen=True, slots=True)
class TypedPlan:
    """The typed columns that an apply writes, and how the table's columns change."""

    columns: TypedColumns | None = None
    """None: no typed columns. If ``change`` is `REWRITE`, the table loses its typed columns."""
    change: ColumnChange = ColumnChange.NONE
    is_typed: bool = False
    """The table has typed columns."""

    @property
    def rewrites(self) -> bool:
        return self.change is ColumnChange.REWRITE

    def __str__(self) -> str:
        if self.columns is None:
            return "the typed columns go" if self.rewrites else "no typed columns"
        return f"{self.columns.document.num_fields} typed fields, {_CHANGES[self.change]}"


_CHANGES: Final = {
    ColumnChange.NONE: "as the table has them",
    ColumnChange.ADD: "added before the first rows",
    ColumnChange.EXTEND: "some new",
    ColumnChange.REWRITE: "all rows rewritten",
}

UNTYPED: Final = TypedPlan()


def typed_plan(columns: pa.Schema, contract: Contract | None, *, is_applied: bool) -> TypedPlan:
    """Return the plan by the contract alone, without documents.

    ``columns`` are the table's; ``is_applied``: it has had an apply.
    """
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
    document = document_type_of(found.type, contract.document)
    return TypedPlan(replace(wanted, document=document), is_typed=True)


def with_documents(plan: TypedPlan, columns: TypedColumns, seen: Seen) -> TypedPlan:
    document = grown(columns.document, seen)
    if not document.num_fields:  # no document has a field that can become a column
        return replace(plan, columns=None) if plan.is_typed else UNTYPED
    made = replace(columns, document=document)
    change = plan.change
    if change is ColumnChange.NONE and document != columns.document:
        is_wider = not _values(columns) <= _values(made)
        change = ColumnChange.REWRITE if is_wider else ColumnChange.EXTEND
    return replace(plan, columns=made, change=change)


def _values(columns: TypedColumns) -> set[tuple[str, str]]:
    return {(path, spark_type(kind)) for path, kind in scalars_of(columns.document).items()}


class ContractBook:
    """The contracts of ``apply.contracts_folder``, and the names of the lake's collections."""

    def __init__(self, folder: str) -> None:
        """Raise ConfigError if the folder is missing, or a file in it is no valid contract."""
        self._contracts = load_contracts(folder) if folder else None
        for contract in (self._contracts or {}).values():
            refuse_own_columns(contract)
        self._known: set[str] = set()
        self._without_columns: set[str] = set()
        """Contracts whose documents had no field for a column; a warning has been logged."""

    def contract_of(self, lake: LakeTables, replica: ReplicaTable) -> Contract | None:
        if not self._contracts:
            return None
        if replica.collection not in self._known:
            self._known |= {each.collection for each in (*replicas_in(lake), replica)}
            self._warn_of_unknown()
        return self._contracts.get(replica.collection)

    def name_arrays(self, lake: LakeTables, replica: ReplicaTable) -> None:
        """Store in the table's properties which arrays get views: readers have no contracts."""
        contract = self.contract_of(lake, replica)
        if contract is None:
            return
        table = lake.table(replica.name)
        if changed := changed_arrays(table.properties(), contract):
            table.set_properties(changed)

    def refuse_loss(self, table: str, typed: TypedPlan) -> None:
        """Raise ConfigError if a plan takes typed columns away because no folder is configured."""
        if self._contracts is None and typed.rewrites:
            raise ConfigError(
                f"apply.contracts_folder: found no folder, but the table {table} has typed "
                "columns; expected the folder with its contract, or a folder without it, which "
                "removes the columns (docs/howto/typed-columns.md)"
            )

    def tell_without_columns(self, contract: Contract | None, typed: TypedPlan) -> None:
        if contract is None or typed.columns or contract.where in self._without_columns:
            return
        self._without_columns.add(contract.where)
        _LOGGER.warning(
            "%s: found no field in the documents of %r that can be a column, expected one or more: "
            "there are no typed columns yet",
            contract.where,
            contract.collection,
        )

    def _warn_of_unknown(self) -> None:
        for name, contract in (self._contracts or {}).items():
            if name not in self._known:
                _LOGGER.warning(
                    "%s: found no collection %r yet%s; the contract holds once there is one",
                    contract.where,
                    name,
                    did_you_mean(name, self._known),
                )

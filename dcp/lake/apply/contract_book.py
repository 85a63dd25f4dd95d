"""Finds the contract of each replica table, by the name of its collection."""

import logging
from typing import Final

from dcp.errors import ConfigError
from dcp.lake.apply.typed_plan import TypedPlan
from dcp.lake.config.contracts import Contract, load_contracts
from dcp.lake.tables.tables import LakeTables, ReplicaTable, replicas_in
from dcp.suggestions import did_you_mean

_LOG: Final = logging.getLogger(__name__)


class ContractBook:
    """The contracts of ``apply.contracts_folder``, and the names of the lake's collections."""

    def __init__(self, folder: str) -> None:
        """Read the contracts.

        Raises:
            ConfigError: the folder is missing, or a file in it is no contract.
        """
        self._contracts = load_contracts(folder) if folder else None
        self._known: set[str] = set()
        self._without_columns: set[str] = set()
        """Contracts with a warning that their documents have no field for a column."""

    def contract_of(self, lake: LakeTables, replica: ReplicaTable) -> Contract | None:
        if not self._contracts:
            return None
        if replica.collection not in self._known:
            self._known |= {each.collection for each in (*replicas_in(lake), replica)}
            self._warn_of_unknown()
        return self._contracts.get(replica.collection)

    def refuse_loss(self, table: str, typed: TypedPlan) -> None:
        """Refuse a plan that takes typed columns from a table because no folder is named.

        Raises:
            ConfigError: it is such a plan.
        """
        if self._contracts is None and typed.rewrites:
            raise ConfigError(
                f"apply.contracts_folder: found no folder, but the table {table} has typed "
                "columns; expected the folder of its contract, or one without it, which takes "
                "them away (docs/typed-columns.md)"
            )

    def tell_without_columns(self, contract: Contract | None, typed: TypedPlan) -> None:
        if contract is None or typed.columns or contract.where in self._without_columns:
            return
        self._without_columns.add(contract.where)
        _LOG.warning(
            "%s: found no field in the documents of %r that can be a column, expected one or more: "
            "there are no typed columns yet",
            contract.where,
            contract.collection,
        )

    def _warn_of_unknown(self) -> None:
        for name, contract in (self._contracts or {}).items():
            if name not in self._known:
                _LOG.warning(
                    "%s: found no collection %r yet%s; it is followed when there is one",
                    contract.where,
                    name,
                    did_you_mean(name, self._known),
                )

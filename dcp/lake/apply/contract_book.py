"""Finds the contract of each replica table, by the name of its collection in the log.

The name of a table does not tell (`dcp.lake.log.logged_collections`).
"""

import logging
from typing import Final

from dcp.errors import ConfigError
from dcp.lake.apply.typed_plan import TypedPlan
from dcp.lake.config.contracts import DEFAULT_COLLECTION, Contract, load_contracts
from dcp.lake.log.logged_collections import logged_collections
from dcp.lake.tables.tables import DOCS, LakeTables, ReplicaTable
from dcp.suggestions import did_you_mean

_LOG: Final = logging.getLogger(__name__)


class ContractBook:
    """The contracts of ``apply.contracts_folder``, and the names of the lake's collections."""

    def __init__(self, folder: str) -> None:
        """Read the contracts.

        Raises:
            ConfigError: there is no such folder, or a file in it is no contract.

        """
        self._contracts = load_contracts(folder) if folder else None
        self._names: dict[int, str] = {}
        self._without_columns: set[str] = set()
        """Contracts of which it was told that their documents have no field for a column."""

    def contract_of(self, lake: LakeTables, replica: ReplicaTable) -> Contract | None:
        """Return the contract of a replica's collection, if there is one."""
        if not self._contracts:
            return None
        if replica.collection_id not in self._names:
            self._names |= collection_names(lake)
            self._warn_of_unknown()
        return self._contracts.get(self._names.get(replica.collection_id, ""))

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
        """Tell, once, that the documents of an apply have nothing to make columns of."""
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
        known = set(self._names.values())
        for name, contract in (self._contracts or {}).items():
            if name not in known:
                _LOG.warning(
                    "%s: found no collection %r yet%s; it is followed when there is one",
                    contract.where,
                    name,
                    did_you_mean(name, known),
                )


def collection_names(lake: LakeTables) -> dict[int, str]:
    """Return the name of every collection that the lake has heard of, by its id."""
    found = {each.collection_id: each.names[-1] for each in logged_collections(lake).all}
    return found | {DOCS.collection_id: DEFAULT_COLLECTION}

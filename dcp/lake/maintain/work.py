"""The input and the reports that the steps of maintenance share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.store.table import CommitConflictError
from dcp.lake.tables.history import LAKE, MAINTENANCE, WHOLE, TableCommit, history
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.lake_tables import LEDGERS, LakeTables, ReplicaTable
from dcp.records import SPREAD, UNSTORED, Record


@dataclass(frozen=True, slots=True)
class MaintenanceWork:
    lake: LakeTables
    replicas: tuple[ReplicaTable, ...]
    horizon: Horizon
    kept: Horizon
    """The horizon or more."""
    now: datetime
    """The horizon and `kept` count back from it."""
    dry_run: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        """``changes`` and the replicas: the horizon holds for their versions."""
        return (CHANGES_TABLE, *(replica.name for replica in self.replicas))

    @property
    def ledgers(self) -> tuple[str, ...]:
        """The other existing tables; nobody reads old versions of them."""
        return tuple(name for name in LEDGERS if self.lake.table(name).exists())

    def commits(self, replica: ReplicaTable) -> list[TableCommit]:
        return history(self.lake.table(replica.name), WHOLE)


def maintenance_metadata(lake: LakeTables, step: str) -> dict[str, Any]:
    """Return the metadata of a maintenance commit. Only commits of rounds and applies name their
    writer.
    """
    return {LAKE: lake.identity.lake_id, MAINTENANCE: step}


@dataclass(frozen=True, slots=True)
class StepReport(Record):
    step: str
    table: str
    summary: Annotated[str, "told"]
    done: bool = False
    is_left: Annotated[bool, UNSTORED] = False
    """True: the step was not done, because a driver committed in the same moment."""
    figures: Annotated[Mapping[str, int], SPREAD] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.step} {self.table}: {self.summary}"


def unless_driver_writes(step: str, table: str, statement: Callable[[], StepReport]) -> StepReport:
    """Return a statement's report, or the report that a driver wrote in the same moment.

    This happens only to lakes without a lock file. Then nothing was written.
    """
    try:
        return statement()
    except CommitConflictError:
        told = "skipped: a driver wrote in the same moment"
        return StepReport(step, table, told, is_left=True)

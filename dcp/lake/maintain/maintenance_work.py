"""The input and the reports that the steps of maintenance share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dcp.lake.tables.history import WHOLE, TableCommit, history
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.tables import LEDGERS, LakeTables, ReplicaTable
from dcp.lake.tables.transaction import is_conflict


@dataclass(frozen=True, slots=True)
class MaintenanceWork:
    """The input of one maintenance: the lake's tables, its horizon, and how long to keep things.

    ``kept`` is the horizon or more, and ``now`` the moment from which both count back. With
    ``dry_run`` nothing is written.
    """

    lake: LakeTables
    replicas: tuple[ReplicaTable, ...]
    horizon: Horizon
    kept: Horizon
    now: datetime
    dry_run: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of ``changes`` and the replicas: of their versions the horizon is kept."""
        return ("changes", *(replica.name for replica in self.replicas))

    @property
    def ledgers(self) -> tuple[str, ...]:
        """The names of the other tables that there are; nobody goes back in them."""
        return tuple(name for name in LEDGERS if self.lake.table(name).exists())

    def commits(self, replica: ReplicaTable) -> list[TableCommit]:
        """Return all that the history of a replica knows, newest first."""
        return history(self.lake.table(replica.name), WHOLE)

    def metadata(self, step: str) -> dict[str, Any]:
        """Return what a step's commit says of itself."""
        return maintenance_metadata(self.lake, step)


def maintenance_metadata(lake: LakeTables, step: str) -> dict[str, Any]:
    """Return what a commit of maintenance says of itself; no writer, for it changes no row."""
    return {"lake": lake.identity.lake_id, "maintenance": step}


@dataclass(frozen=True, slots=True)
class StepReport:
    """The report of one step on one table: done, would be done, or why nothing was done."""

    step: str
    table: str
    summary: str
    done: bool = False
    figures: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""
        named = {"step": self.step, "table": self.table, "done": self.done, "told": self.summary}
        return named | dict(self.figures)

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.step} {self.table}: {self.summary}"


def unless_driver_writes(step: str, table: str, statement: Callable[[], StepReport]) -> StepReport:
    """Return what a statement reports; where a driver wrote in the same moment, say just that.

    Only lakes without a lock file can come to this; nothing was written then.
    """
    try:
        return statement()
    except Exception as error:  # Spark's own class, or the bridge's
        if not is_conflict(error):
            raise
        return StepReport(step, table, "left for next time: a driver wrote in the same moment")

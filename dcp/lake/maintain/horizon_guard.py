"""Keeps the rollback horizon during a run: properties, heartbeats, and a tampering check.

A heartbeat is a new version of a quiet table with the same rows. Delta's log cleanup removes
versions by the age of their commit (`dcp.lake.tables.horizon`). Before an apply changes a table
whose newest version is old, a heartbeat gives the present rows a young version, which stays
readable for the whole horizon. It is an append without rows; its Delta transaction id keeps Delta
from dropping it. Two drivers may make one at once.

The driver checks ``changes`` before it plans a round, and a replica before it applies to it. The
first check reads the properties and histories of all tables. Later checks read nothing until a
heartbeat may be due.
"""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from dcp.lake.change_log.applied import heartbeat_content, replica_status
from dcp.lake.change_log.changes import newest_round, refuse_tampered_log
from dcp.lake.change_log.tampering import refuse_log_behind, short_vacuums
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.store.table import CommitConflictError, heartbeat_fence
from dcp.lake.tables.history import FEW, HEARTBEAT, LAKE, READ_VERSION, history
from dcp.lake.tables.horizon import RECORDED, Horizon
from dcp.lake.tables.lake_tables import DEFAULT_HORIZON_HOURS, LakeTables, ReplicaTable, replicas_in

_LOGGER = logging.getLogger(__name__)


def keep_retention(
    lake: LakeTables, replicas: Iterable[ReplicaTable], horizon: Horizon
) -> dict[str, str]:
    """Make Delta keep ``changes`` and the replicas for the horizon; log and return the changes by
    table.

    Somebody may have changed the properties or the setting since the last run.
    """
    told = {}
    for table, wrong in wrong_properties(lake, replicas, horizon).items():
        wanted = horizon.properties() | {RECORDED: horizon.recorded}
        # Both retentions at once: Delta refuses to keep its log shorter than the files.
        names = (*horizon.properties(), *((RECORDED,) if RECORDED in wrong else ()))
        lake.table(table).set_properties({name: wanted[name] for name in names})
        found = ", ".join(f"{name} {value or 'not set'}" for name, value in wrong.items())
        told[table] = f"found {found}; set to the horizon of {horizon}"
        _LOGGER.warning("%s: table %s: %s", lake.location, table, told[table])
    return told


def wrong_properties(
    lake: LakeTables, replicas: Iterable[ReplicaTable], horizon: Horizon
) -> dict[str, dict[str, str]]:
    found = {}
    for table in (CHANGES_TABLE, *(replica.name for replica in replicas)):
        properties = lake.table(table).properties()
        wrong = {name: properties.get(name, "") for name in horizon.differing(properties)}
        if table == CHANGES_TABLE and properties.get(RECORDED) != horizon.recorded:
            wrong[RECORDED] = properties.get(RECORDED, "")
        if wrong:
            found[table] = wrong
    return found


def recorded_horizon(lake: LakeTables) -> Horizon:
    """Return the horizon that the newest run kept, whatever the table properties say."""
    recorded = lake.changes.properties().get(RECORDED)
    return Horizon.of_hours(DEFAULT_HORIZON_HOURS) if recorded is None else Horizon(float(recorded))


_LOOK_BACK: Final = 500
"""The number of a replica's commits to search for a VACUUM that kept too little.

Nobody needs old versions of ``changes``, so its VACUUMs do no harm.
"""


def look_back(lake: LakeTables) -> int:
    """Return how many commits of a replica to search; in an object store each costs a request."""
    return FEW if lake.store.is_remote else _LOOK_BACK


class HorizonGuard:
    def __init__(self, lake: LakeTables, horizon: Horizon) -> None:
        self._lake = lake
        self._horizon = horizon
        self._newest: dict[str, datetime] = {}
        self._has_looked = False

    def check(self) -> None:
        """Keep the horizon of ``changes``, the first time of all tables.

        Raises:
            LakeError: somebody changed rows of ``changes``, or restored an older state.
        """
        if not self._has_looked:
            self._first_look()
            self._has_looked = True
        self.look_at(None, self._lake)

    def _first_look(self) -> None:
        lake, now, replicas = self._lake, datetime.now(UTC), replicas_in(self._lake)
        commits = history(lake.changes)
        refuse_tampered_log(lake, commits)
        statuses = {each.name: replica_status(lake, each, look_back(lake)) for each in replicas}
        refuse_log_behind(str(lake.location), newest_round(lake, commits), statuses)
        self._newest[CHANGES_TABLE] = commits[0].horizon_time
        for table, status in statuses.items():
            self._newest[table] = status.commit_history.commits[0].horizon_time
            for vacuum in short_vacuums(table, status.commit_history.commits, self._horizon, now):
                _LOGGER.warning("%s: %s", lake.location, vacuum)
        keep_retention(lake, replicas, self._horizon)

    def look_at(self, replica: ReplicaTable | None, lake: LakeTables) -> None:
        """Keep the horizon of a replica, or of ``changes`` for None.

        The thread that applies to a replica calls this in its own session. It reads the newest
        version's age only if that version may be old.
        """
        table = CHANGES_TABLE if replica is None else replica.name
        begin = datetime.now(UTC) - timedelta(seconds=self._horizon.heartbeat_seconds)
        if table in self._newest and self._newest[table] > begin:
            return
        self._newest[table] = newest_commit_time(lake, table)
        if self._newest[table] <= begin:
            beat(lake, replica)
            self._newest[table] = newest_commit_time(lake, table)


def newest_commit_time(lake: LakeTables, table: str) -> datetime:
    """Return the time from which the horizon counts the age of a table's newest version."""
    return history(lake.table(table), 1)[0].horizon_time


def beat(lake: LakeTables, replica: ReplicaTable | None) -> bool:
    """Give a replica, or ``changes`` for None, a new version with the same rows; return success.

    It makes none if another commit came at the same moment, which serves as well. It makes none
    after a foreign change of rows: a heartbeat would hide that commit.

    Raises:
        LakeError: somebody else changed rows of ``changes``.
    """
    told: dict[str, Any] = {}
    if replica is None:
        table, commits = CHANGES_TABLE, history(lake.changes)
        refuse_tampered_log(lake, commits)
        version = commits[0].version
    else:
        status = replica_status(lake, replica)
        if status.commit_history.defect(status.version) is not None:
            return False
        table, version, told = replica.name, status.version, heartbeat_content(status)
    metadata = {LAKE: lake.identity.lake_id, READ_VERSION: version, HEARTBEAT: told}
    try:
        lake.table(table).renew(heartbeat_fence(lake.identity.lake_id, version), metadata)
    except CommitConflictError:
        return False
    return True

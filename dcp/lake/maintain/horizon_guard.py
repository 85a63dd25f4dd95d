"""Keeps the rollback horizon during a run: properties, heartbeats, and a tampering check.

The driver looks at ``changes`` before it plans a round, and at the replicas before it applies to
them. The first look reads the properties and histories of all tables; later ones read nothing until
a heartbeat may be due.
"""

import logging
from datetime import UTC, datetime, timedelta
from typing import Final

from dcp.lake.log.applied import replica_status
from dcp.lake.log.changes import newest_round, refuse_tampered_log
from dcp.lake.log.tampering import refuse_log_behind, short_vacuums
from dcp.lake.maintain.heartbeat import beat, newest_commit_time
from dcp.lake.maintain.retention import keep_retention
from dcp.lake.tables.history import FEW, history
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.tables import LakeTables, ReplicaTable, replicas_in

_LOOK_BACK: Final = 500
"""So many commits of a replica are searched for a VACUUM that kept too little.

Nobody needs old versions of ``changes``: its VACUUMs do no harm.
"""

_LOG = logging.getLogger(__name__)


def look_back(lake: LakeTables) -> int:
    """Return how many commits of a replica to search for a VACUUM that kept too little.

    In an object store each costs a request.
    """
    return FEW if lake.store.is_remote else _LOOK_BACK


class HorizonGuard:
    def __init__(self, lake: LakeTables, horizon: Horizon) -> None:
        self._lake = lake
        self._horizon = horizon
        self._newest: dict[str, datetime] = {}
        self._has_looked = False

    def check(self) -> bool:
        """Keep the horizon of ``changes``, and at first of all tables; return if it got a beat.

        Raises:
            LakeError: somebody changed rows of ``changes``, or restored an older state.
        """
        if not self._has_looked:
            self._first_look()
            self._has_looked = True
        return self.look_at(None, self._lake)

    def _first_look(self) -> None:
        lake, now, replicas = self._lake, datetime.now(UTC), replicas_in(self._lake)
        commits = history(lake.changes)
        refuse_tampered_log(lake, commits)
        statuses = {each.name: replica_status(lake, each, look_back(lake)) for each in replicas}
        refuse_log_behind(str(lake.location), newest_round(lake, commits), statuses)
        self._newest["changes"] = commits[0].horizon_time
        for table, status in statuses.items():
            self._newest[table] = status.lineage.commits[0].horizon_time
            for vacuum in short_vacuums(table, status.lineage.commits, self._horizon, now):
                _LOG.warning("%s: %s", lake.location, vacuum)
        keep_retention(lake, replicas, self._horizon)

    def look_at(self, replica: ReplicaTable | None, lake: LakeTables) -> bool:
        """Keep the horizon of a replica, or of ``changes`` for None; return whether it got a beat.

        The thread that applies to a replica calls this in its session: a beat names the rows'
        apply. The newest version's age is asked for only if it may be old.
        """
        table = "changes" if replica is None else replica.name
        begin = datetime.now(UTC) - timedelta(seconds=self._horizon.heartbeat_seconds)
        if table in self._newest and self._newest[table] > begin:
            return False
        self._newest[table] = newest_commit_time(lake, table)
        if self._newest[table] > begin:
            return False
        is_ours = beat(lake, replica)
        self._newest[table] = newest_commit_time(lake, table)
        return is_ours

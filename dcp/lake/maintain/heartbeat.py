"""Makes a new version of a quiet table with the same rows: a heartbeat.

Delta's log cleanup takes versions by the age of their commit (`dcp.lake.tables.horizon`). Before an
apply changes a table whose newest version is old, a heartbeat gives the rows that it replaces a
version of their own, which is then young enough to be read for the whole horizon. It is an append
without rows, kept from being dropped by its Delta transaction id; two drivers may make one at once.
"""

from datetime import datetime
from typing import Any

from dcp.lake.log.applied import heartbeat_content, replica_status
from dcp.lake.log.changes import refuse_tampered_log
from dcp.lake.store.table import CommitConflictError
from dcp.lake.tables.history import HEARTBEAT, history
from dcp.lake.tables.tables import LakeTables, ReplicaTable


def newest_commit_time(lake: LakeTables, table: str) -> datetime:
    """Return the time from which the horizon counts the age of a table's newest version."""
    return history(lake.table(table), 1)[0].horizon_time


def beat(lake: LakeTables, replica: ReplicaTable | None) -> bool:
    """Give a replica, or ``changes`` for None, a new version with the same rows; return if it did.

    It makes none if another commit came at the same moment: that serves as well. Nor does it after
    a foreign change of rows, since a heartbeat would hide that commit.

    Raises:
        LakeError: somebody else changed rows of ``changes``.
    """
    told: dict[str, Any] = {}
    if replica is None:
        table, commits = "changes", history(lake.changes)
        refuse_tampered_log(lake, commits)
        version = commits[0].version
    else:
        status = replica_status(lake, replica)
        if status.lineage.defect(status.version) is not None:
            return False
        table, version, told = replica.name, status.version, heartbeat_content(status)
    metadata = {"lake": lake.identity.lake_id, "base": version, HEARTBEAT: told}
    # Versions grow, so the next one is a transaction number that nobody used before.
    transaction = f"{lake.identity.lake_id}:{HEARTBEAT}", version + 1
    try:
        lake.table(table).renew(transaction, metadata)
    except CommitConflictError:
        return False
    return True

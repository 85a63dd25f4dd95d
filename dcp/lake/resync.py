"""``dcplake resync``: let vbuckets be streamed again from their beginning, whatever happened.

It commits a round in which those vbuckets begin a new epoch at 0; nothing is streamed and no row of
a replica is touched. The old rows stay, marked stale, until the new history of a vbucket is whole;
then it is replaced. All vbuckets at once is the way out of a damaged lake, too: of what its log and
its tables say, nothing is needed then but how high rounds and epochs have counted.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dcp.errors import ConfigError, LakeError
from dcp.lake.applied import replica_status
from dcp.lake.changes import append_round, newest_round
from dcp.lake.history import WHOLE, history
from dcp.lake.lock import local_root, locked
from dcp.lake.round_record import positions_at
from dcp.lake.run import lake_location, session
from dcp.lake.schema import CHANGES
from dcp.lake.settings import Settings
from dcp.lake.tables import LakeTables, ReplicaTable, open_lake, replicas_in
from dcp.lake.vbucket_state import FIRST_EPOCH, VbucketState, states_to_batch


@dataclass(frozen=True, slots=True)
class Resync:
    """What was committed: the round, and the vbuckets that begin anew in it."""

    round: int
    version: int
    vbuckets: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""
        return {"round": self.round, "version": self.version, "vbuckets": list(self.vbuckets)}


def resync(settings: Settings, vbuckets: Collection[int] | None = None) -> Resync:
    """Let some vbuckets, or all, be streamed again by the next run.

    Raises:
        ConfigError: a vbucket that the bucket does not have.
        LakeError: there is no lake; or its log is damaged, and not all vbuckets are to begin anew.
        FencedError: another driver works on the lake.

    """
    location = lake_location(settings)
    root = local_root(settings.lake.root) if location.root is not None else None
    with locked(root if settings.lake.lock else None, "dcplake resync"):
        lake = open_lake(session(settings), location)
        return commit_resync(lake, vbuckets)


def commit_resync(lake: LakeTables, vbuckets: Collection[int] | None = None) -> Resync:
    """Commit the round; see `resync`."""
    every = range(lake.identity.vbucket_count)
    chosen = tuple(sorted(set(every if vbuckets is None else vbuckets)))
    if unknown := [vbucket for vbucket in chosen if vbucket not in every]:
        raise ConfigError(f"vbuckets: found {unknown}, expected 0 to {every[-1]}")
    replicas = replicas_in(lake)
    commits = history(lake.spark, lake.changes_sql, WHOLE)
    newest = newest_round(lake, commits)
    is_whole_lake = len(chosen) == len(every)
    if not is_whole_lake:
        for replica in replicas:
            lineage = replica_status(lake, replica).lineage
            lineage.refuse_defect(replica.name, lake.table_sql(replica.name))
    states = _states(lake, replicas, newest, is_needed=not is_whole_lake)
    number = 1 + max([newest, *(replica_status(lake, each).round for each in replicas)])
    after = {vb: states.get(vb) or VbucketState.beginning(vb) for vb in every}
    after |= {vb: after[vb].beginning_epoch(0, 0) for vb in chosen}
    commit = append_round(
        lake,
        lake.spark.createDataFrame(_rows(after, chosen, number)),
        number,
        secrets.token_hex(8),
        verify=not is_whole_lake,  # else whatever is there does not matter
    )
    return Resync(number, commit.version, chosen)


def _states(
    lake: LakeTables, replicas: Collection[ReplicaTable], newest: int, *, is_needed: bool
) -> Mapping[int, VbucketState]:
    """Return the newest states; of a log that lost them, only that no epoch is used twice."""
    try:
        return positions_at(lake, newest)
    except LakeError:
        if is_needed:
            raise
    tables = [lake.changes_sql, *(lake.table_sql(replica.name) for replica in replicas)]
    epochs = " UNION ALL ".join(f"SELECT max(epoch) AS epoch FROM {table}" for table in tables)
    row = lake.spark.sql(f"SELECT coalesce(max(epoch), {FIRST_EPOCH}) FROM ({epochs})").collect()[0]
    every = range(lake.identity.vbucket_count)
    return {vb: replace(VbucketState.beginning(vb), epoch=int(row[0])) for vb in every}


def _rows(after: Mapping[int, VbucketState], chosen: Collection[int], number: int) -> pa.Table:
    forks = [
        {
            "round": number,
            "epoch": after[vbucket].epoch,
            "vbucket": vbucket,
            "kind": "rollback",
            "seqno": 0,
            "detail": "resync",
        }
        for vbucket in chosen
    ]
    states = [after[vbucket] for vbucket in sorted(after)]
    return pa.Table.from_batches(
        [pa.RecordBatch.from_pylist(forks, schema=CHANGES), states_to_batch(states, number)]
    )

"""Repairs a damaged lake: all vbuckets stream again from their beginning.

It commits a round in which every vbucket begins a new epoch at seqno 0. The round has no documents,
and no row of a replica changes. The old rows stay, marked stale; they are replaced once the new
history of their vbucket is whole.

If the log has lost the states of the vbuckets, the repair makes new ones. It takes files that
cannot be read out of the log. All vbuckets begin at once, also those without a node: a table with
foreign changes gets applies again only if none of its rows stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dcp.errors import LakeError
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import (
    append_states,
    commits_of_driver,
    newest_round,
    refuse_tampered_log,
)
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.change_log.tampering import refuse_log_behind
from dcp.lake.config.settings import Settings
from dcp.lake.spark.failures import spark_errors
from dcp.lake.tables.history import CLEANING, LAKE, READ_VERSION, WRITER, history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, record_cleaned_round, replicas_in
from dcp.lake.tables.vbucket_state import FIRST_EPOCH, LakeVbucketState, Restart, RestartReason


def only_in_log(settings: Settings) -> tuple[str, ...]:
    """Name the settings whose effect only the log holds, each with the way to do without it."""
    told = []
    if settings.policy.keeps_dropped:
        told.append(
            "which collections were dropped and keep their rows (policy.dropped, "
            "policy.dropped_collections): copy those tables, and take both out of the "
            "configuration, after which they are emptied"
        )
    if settings.filter.starts_now:
        told.append(
            "where vbuckets started (filter.since is now): take that out of the configuration, "
            "after which they are read from seqno 0; or set lake.root to a new location"
        )
    return tuple(told)


def refuse_damage(lake: LakeTables) -> None:
    """Raise LakeError if no round can follow on the log, or somebody changed a table's rows."""
    commits = history(lake.changes)
    refuse_tampered_log(lake, commits)
    newest = newest_round(lake, commits)
    statuses = {each.name: replica_status(lake, each) for each in replicas_in(lake)}
    refuse_log_behind(str(lake.location), newest, statuses)
    with spark_errors("the newest states of vbuckets cannot be read"):
        states_at(lake, newest)
    for name, status in statuses.items():
        status.commit_history.refuse_defect(name, lake.table_sql(name))


def is_damaged(lake: LakeTables) -> bool:
    """Return whether `refuse_damage` raises, or a file of the log cannot be read."""
    try:
        refuse_damage(lake)
    except LakeError:
        return True
    return not lake.changes.can_read_all()


def repair(lake: LakeTables, writer_id: str, *, only_in_log: Sequence[str] = ()) -> None:
    """Commit the round, by the driver ``writer_id``, with which all vbuckets begin anew.

    ``only_in_log``: see the function of that name.

    Raises:
        LakeError: the log cannot be read, and ``only_in_log`` is not empty.
        FencedError: another driver committed a round.
    """
    replicas = replicas_in(lake)
    newest = newest_round(lake, commits_of_driver(lake, writer_id))
    number = 1 + max([newest, *(replica_status(lake, each).round for each in replicas)])
    states = _states(lake, newest, number)
    if not lake.changes.can_read_all():
        if only_in_log:
            raise LakeError(
                f"{lake.changes.where}: cannot be read, so that nothing tells any more "
                f"{'; or '.join(only_in_log)}. Expected a change log that can be read: put its "
                "files back from a copy, or do that"
            )
        _empty(lake, replicas, newest, writer_id)
    restarts = [Restart(vbucket, RestartReason.RESYNC) for vbucket in states]
    begun = [states[each.vbucket].restarted(each) for each in restarts]
    # Rows with events of collections may be gone, so whoever remembers them reads them again.
    begun = [replace(state, last_collection_round=number) for state in begun]
    append_states(lake, begun, number, writer_id, restarts=restarts, verify=False)


def _states(lake: LakeTables, newest: int, number: int) -> Mapping[int, LakeVbucketState]:
    """Return all vbuckets' newest states. If the log has lost them, their epochs are unused ones.

    A vbucket begins at most one epoch in a round, so no epoch is higher than the number of rounds.
    """
    unread = {vb: LakeVbucketState.beginning(vb) for vb in range(lake.identity.vbucket_count)}
    try:
        with spark_errors("the newest states of vbuckets cannot be read"):
            return {**unread, **states_at(lake, newest)}
    except LakeError:
        return {vb: replace(state, epoch=FIRST_EPOCH + number) for vb, state in unread.items()}


def _empty(lake: LakeTables, replicas: Sequence[ReplicaTable], newest: int, writer_id: str) -> None:
    """Take all files out of ``changes``.

    A DELETE without a condition reads no file; Delta cannot take out a single unreadable one. The
    files stay on the disk, and in older versions, for the horizon.
    """
    record_cleaned_round(lake, replicas, newest)
    read_version = history(lake.changes, 1)[0].version
    ours = {
        LAKE: lake.identity.lake_id,
        WRITER: writer_id,
        CLEANING: newest,
        READ_VERSION: read_version,
    }
    lake.changes.delete(None, ours)

"""Makes vbuckets stream again from their beginning, as the driver of a lake is asked to.

It commits a round in which those vbuckets begin a new epoch at 0; nothing is streamed and no row of
a replica is touched. The old rows stay, marked stale, until the new history of a vbucket is whole;
then it is replaced. With all vbuckets at once it repairs a damaged lake, too: it needs nothing of
the lake then but the newest round's number, and takes files of the log that cannot be read out of
the table.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from dcp.errors import LakeError
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import REQUEST, append_round, newest_round
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.settings import Settings
from dcp.lake.spark.failures import spark_errors
from dcp.lake.tables.history import CLEANING, WHOLE, history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, record_cleaned_round, replicas_in
from dcp.lake.tables.round_record import states_to_batch
from dcp.lake.tables.schema import CHANGES, RowKind
from dcp.lake.tables.vbucket_state import (
    FIRST_EPOCH,
    Restart,
    RestartReason,
    VbucketProgress,
)


def only_in_log(settings: Settings) -> tuple[str, ...]:
    """Name the settings that only the log can serve, each with the way to do without."""
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
            "after which they are read from seqno 0; or set lake.root to a new place"
        )
    return tuple(told)


def commit_resync(
    lake: LakeTables,
    vbuckets: Collection[int],
    writer_id: str,
    *,
    request: str | None = None,
    only_in_log: Sequence[str] = (),
) -> int:
    """Commit the round of the driver ``writer_id``; return its number.

    A round that carried out the ``request`` of this id is not committed again. ``only_in_log``
    names the losses of a damaged log, and the way to do without.

    Raises:
        LakeError: the log is damaged, and not all vbuckets are to begin anew, or something is
            ``only_in_log``.
        FencedError: another driver committed a round.
    """
    every = range(lake.identity.vbucket_count)
    chosen = sorted(vbuckets)
    replicas = replicas_in(lake)
    commits = history(lake.changes, WHOLE)
    done = (each.round for each in commits if request and each.ours.get(REQUEST) == request)
    if (number := next(filter(None, done), None)) is not None:
        return number  # what failed came after the commit
    newest = newest_round(lake, commits)
    is_whole_lake = len(chosen) == len(every)
    if not is_whole_lake:
        for replica in replicas:
            commit_history = replica_status(lake, replica).commit_history
            commit_history.refuse_defect(replica.name, lake.table_sql(replica.name))
    number = 1 + max([newest, *(replica_status(lake, each).round for each in replicas)])
    states = _states(lake, newest, number, is_needed=not is_whole_lake)
    if is_whole_lake and not lake.changes.can_read_all():
        if only_in_log:
            raise LakeError(
                f"{lake.changes.where}: cannot be read, so that nothing tells any more "
                f"{'; or '.join(only_in_log)}. Expected a log that can be read: put its files back "
                "from a copy, or do that"
            )
        _empty(lake, replicas, newest, writer_id)
    after = {vb: states.get(vb) or VbucketProgress.beginning(vb) for vb in every}
    after |= {vb: after[vb].restarted(Restart(RestartReason.RESYNC)) for vb in chosen}
    rows = _rows(after, chosen, number)
    append_round(
        lake,
        lake.store.new_changes(1, lambda _: iter(rows), are_few=True),
        number,
        writer_id,
        verify=not is_whole_lake,  # else whatever is there does not matter
        request=request,
    )
    return number


def _states(
    lake: LakeTables, newest: int, number: int, *, is_needed: bool
) -> Mapping[int, VbucketProgress]:
    """Return the newest states; for a log that lost them, states that use no epoch twice.

    A vbucket begins at most one epoch in a round, so none is higher than the number of rounds.
    """
    try:
        with spark_errors("the newest positions cannot be read"):
            return states_at(lake, newest)
    except LakeError:
        if is_needed:
            raise
    every = range(lake.identity.vbucket_count)
    # Events of collections may be anywhere in such a log: one that was dropped keeps its rows yet.
    lost = {vb: VbucketProgress.beginning(vb) for vb in every}
    return {
        vb: replace(state, epoch=FIRST_EPOCH + number, last_collection_round=newest or None)
        for vb, state in lost.items()
    }


def _empty(lake: LakeTables, replicas: Sequence[ReplicaTable], newest: int, writer_id: str) -> None:
    """Take all files out of ``changes``.

    A DELETE without a condition reads no file; Delta cannot take out a single unreadable one. The
    files stay on the disk, and in the older versions, as long as the horizon keeps those.
    """
    record_cleaned_round(lake, replicas, newest)
    read_version = history(lake.changes, 1)[0].version
    ours = {
        "lake": lake.identity.lake_id,
        "writer": writer_id,
        CLEANING: newest,
        "base": read_version,
    }
    lake.changes.delete(None, ours)


def _rows(
    after: Mapping[int, VbucketProgress], chosen: Collection[int], number: int
) -> list[pa.RecordBatch]:
    forks = [
        {
            "round": number,
            "epoch": after[vbucket].epoch,
            "vbucket": vbucket,
            "kind": RowKind.ROLLBACK,
            "seqno": after[vbucket].position.seqno,
            "detail": RestartReason.RESYNC,
        }
        for vbucket in chosen
    ]
    states = [after[vbucket] for vbucket in sorted(after)]
    return [pa.RecordBatch.from_pylist(forks, schema=CHANGES), states_to_batch(states, number)]

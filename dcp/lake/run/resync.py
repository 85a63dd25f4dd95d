"""Makes vbuckets stream again: from their beginning (``dcplake resync``), or a seqno (``seek``).

It commits a round in which those vbuckets begin a new epoch at 0; nothing is streamed and no row of
a replica is touched. The old rows stay, marked stale, until the new history of a vbucket is whole;
then it is replaced. With all vbuckets at once it repairs a damaged lake, too: it needs nothing of
the lake then but the newest round's number, and takes files of the log that cannot be read out of
the table.

A seek goes back to a complete snapshot's end of the vbucket's history, at or below a seqno: what
was received above it is dead then, as after a rollback, and received again. It never goes forward,
which would leave rows out.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from dcp.errors import ConfigError, LakeError
from dcp.lake.config.settings import Settings
from dcp.lake.log.applied import replica_status
from dcp.lake.log.changes import append_round, newest_round
from dcp.lake.log.collection_log import kept_drops
from dcp.lake.log.epoch_log import live_complete_seqnos
from dcp.lake.log.round_records import positions_at
from dcp.lake.spark.failures import spark_errors
from dcp.lake.store.lake_store import BatchFunction
from dcp.lake.tables.history import CLEANING, WHOLE, history
from dcp.lake.tables.opening import lake_locked, spark_of
from dcp.lake.tables.schema import CHANGES, RowKind
from dcp.lake.tables.tables import (
    LakeTables,
    ReplicaTable,
    open_lake,
    record_cleaned_round,
    replicas_in,
)
from dcp.lake.tables.vbucket_state import FIRST_EPOCH, VbucketProgress, states_to_batch
from dcp.printable import number_ranges


@dataclass(frozen=True, slots=True)
class Resync:
    """The result of a resync: the committed round, and the vbuckets that begin an epoch in it."""

    round: int
    version: int
    vbuckets: tuple[int, ...]
    fork_seqnos: Mapping[int, int] = field(default_factory=dict)
    """From which seqno they go on; 0 where none is listed."""

    @property
    def forks_text(self) -> str:
        """Text that tells from where they go on; empty for a resync, which goes back to 0."""
        by_seqno: dict[int, list[int]] = {}
        for vbucket, seqno in self.fork_seqnos.items():
            by_seqno.setdefault(seqno, []).append(vbucket)
        told = [
            f"vbuckets {number_ranges(vbuckets)} from seqno {seqno}"
            for seqno, vbuckets in sorted(by_seqno.items())
        ]
        return f": {'; '.join(told)}" if told else ""

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""
        told = {"round": self.round, "version": self.version, "vbuckets": list(self.vbuckets)}
        forks = {str(vbucket): seqno for vbucket, seqno in self.fork_seqnos.items()}
        return told | ({"seqnos": forks} if forks else {})


def resync(settings: Settings, vbuckets: Collection[int] | None = None) -> Resync:
    """Let some vbuckets, or all, be streamed again by the next run.

    Raises:
        ConfigError: a vbucket that the bucket does not have.
        LakeError: there is no lake; or its log is damaged, and not all vbuckets are to begin anew,
            or rows of dropped collections are kept: only the log tells which those are.
        FencedError: another driver works on the lake.

    """
    with lake_locked(settings, "dcplake resync") as location:
        lake = open_lake(spark_of(settings), location)
        return commit_resync(lake, vbuckets, only_in_log=only_in_log(settings))


def only_in_log(settings: Settings) -> tuple[str, ...]:
    """Return what only the log of a lake with these settings tells, and what to do without."""
    told = []
    if settings.policy.keeps_dropped:
        told.append(
            "which collections were dropped and keep their rows (policy.dropped, "
            "policy.dropped_collections): copy those tables, and run resync with --set "
            "policy.dropped=delete --set policy.dropped_collections=, after which they are emptied"
        )
    if settings.filter.starts_now:
        told.append(
            "where vbuckets started (filter.since is now): take that out of the configuration, "
            "after which they are read from seqno 0; or set lake.root to a new place"
        )
    return tuple(told)


def seek(settings: Settings, vbuckets: Collection[int] | None, seqno: int) -> Resync:
    """Let vbuckets go on from their newest complete snapshot's end at or below ``seqno``.

    Raises:
        ConfigError: a vbucket that the bucket does not have, or that has not come so far.
        LakeError: there is no lake, or its log is damaged.
        FencedError: another driver works on the lake.

    """
    with lake_locked(settings, "dcplake seek") as location:
        return commit_resync(open_lake(spark_of(settings), location), vbuckets, seqno=seqno)


def commit_resync(
    lake: LakeTables,
    vbuckets: Collection[int] | None = None,
    *,
    seqno: int = 0,
    only_in_log: Sequence[str] = (),
    writer_id: str | None = None,
) -> Resync:
    """Commit the round; see `resync`, and `seek` for a ``seqno``.

    ``only_in_log``: see there. ``writer_id``: the driver's that does it; None:
    nobody's else.
    """
    every = range(lake.identity.vbucket_count)
    chosen = tuple(sorted(set(every if vbuckets is None else vbuckets)))
    if unknown := [vbucket for vbucket in chosen if vbucket not in every]:
        raise ConfigError(f"vbuckets: found {unknown}, expected 0 to {every[-1]}")
    replicas = replicas_in(lake)
    commits = history(lake.changes, WHOLE)
    newest = newest_round(lake, commits)
    is_whole_lake = len(chosen) == len(every) and not seqno
    if not is_whole_lake:
        for replica in replicas:
            lineage = replica_status(lake, replica).lineage
            lineage.refuse_defect(replica.name, lake.table_sql(replica.name))
    number = 1 + max([newest, *(replica_status(lake, each).round for each in replicas)])
    states = _states(lake, newest, number, is_needed=not is_whole_lake)
    writer_id = writer_id or secrets.token_hex(8)
    if is_whole_lake and not lake.changes.is_readable():
        if only_in_log:
            raise LakeError(
                f"{lake.changes.where}: cannot be read, so that nothing tells any more "
                f"{'; or '.join(only_in_log)}. Expected a log that can be read: put its files back "
                "from a copy, or do that"
            )
        _empty(lake, replicas, newest, writer_id)
    after = {vb: states.get(vb) or VbucketProgress.beginning(vb) for vb in every}
    forks = _seek_seqnos(lake, [after[vb] for vb in chosen], seqno, newest) if seqno else {}
    after |= {vb: _begun(after[vb], forks.get(vb, 0)) for vb in chosen}
    reason = "seek" if seqno else "resync"
    commit = append_round(
        lake,
        lake.store.new_changes(1, _of_one_task(after, chosen, number, reason), are_few=True),
        number,
        writer_id,
        verify=not is_whole_lake,  # else whatever is there does not matter
    )
    return Resync(number, commit.version, chosen, forks)


def _seek_seqnos(
    lake: LakeTables, states: Collection[VbucketProgress], seqno: int, newest: int
) -> Mapping[int, int]:
    """Return for each vbucket its newest complete snapshot's end up to ``seqno``.

    Raises:
        ConfigError: a vbucket has not come so far, or no snapshot of it ended so early; or it would
            lose rows of a dropped collection that are kept.

    """
    if short := {
        each.vbucket: each.complete_seqno for each in states if each.complete_seqno < seqno
    }:
        vbucket, complete = min(short.items())
        raise ConfigError(
            f"seqno: found {seqno}, and vbucket {vbucket} is complete up to {complete}: expected "
            "a seqno that each of the vbuckets has come to; a seek only goes back"
        )
    bounds = dict.fromkeys((each.vbucket for each in states), seqno)
    ends = live_complete_seqnos(lake, states, bounds, newest)
    found = {
        each.vbucket: max(ends.get(each.vbucket, 0), _start_up_to(each, seqno)) for each in states
    }
    if early := sorted(vbucket for vbucket, fork in found.items() if not fork):
        raise ConfigError(
            f"seqno: found {seqno}, and the first snapshot of vbuckets {number_ranges(early)} that "
            "was complete ended above it: expected a higher one, or dcplake resync --vbuckets "
            f"{number_ranges(early)}, which reads them whole"
        )
    _refuse_kept_drops(lake, found)
    return found


def _start_up_to(state: VbucketProgress, seqno: int) -> int:
    start_seqno = state.start_seqno or 0
    return start_seqno if start_seqno <= seqno else 0


def _refuse_kept_drops(lake: LakeTables, found: Mapping[int, int]) -> None:
    """Refuse to go back below a drop whose rows are kept: the source sends them no more."""
    for drop in kept_drops(lake, found):
        if drop.seqno > found[drop.vbucket]:
            raise ConfigError(
                f"seqno: vbucket {drop.vbucket} would go back to {found[drop.vbucket]}, and keeps "
                f"rows of a collection (id {drop.collection_id}) that was dropped at seqno "
                f"{drop.seqno}: expected that or more, since the bucket has them no more"
            )


def _begun(state: VbucketProgress, seqno: int) -> VbucketProgress:
    if not seqno:
        return state.beginning_epoch(0, 0)
    log = state.failover_log
    assert log is not None, "what was read has the log that it was accepted with"
    return state.beginning_epoch(seqno, log.uuid_at(seqno))


def _states(
    lake: LakeTables, newest: int, number: int, *, is_needed: bool
) -> Mapping[int, VbucketProgress]:
    """Return the newest states; of a log that lost them, only that no epoch is used twice.

    A vbucket begins two epochs in a round at most (a backfill of collections that fails), so none
    is higher than twice what rounds have counted.
    """
    try:
        with spark_errors("the newest positions cannot be read"):
            return positions_at(lake, newest)
    except LakeError:
        if is_needed:
            raise
    every = range(lake.identity.vbucket_count)
    # Events of collections may be anywhere in such a log: one that was dropped keeps its rows yet.
    lost = {vb: VbucketProgress.beginning(vb) for vb in every}
    return {
        vb: replace(state, epoch=FIRST_EPOCH + 2 * number, last_collection_round=newest or None)
        for vb, state in lost.items()
    }


def _empty(lake: LakeTables, replicas: Sequence[ReplicaTable], newest: int, writer_id: str) -> None:
    """Take all files out of ``changes``.

    A DELETE without a condition reads no file. Delta cannot take out one alone that is unreadable.
    The files stay on the disk, and in the older versions, for as long as the horizon keeps those.
    """
    record_cleaned_round(lake, replicas, newest)
    base = history(lake.changes, 1)[0].version
    ours = {"lake": lake.identity.lake_id, "writer": writer_id, CLEANING: newest, "base": base}
    lake.changes.delete(None, ours)


def _of_one_task(
    after: Mapping[int, VbucketProgress], chosen: Collection[int], number: int, reason: str
) -> BatchFunction:
    rows = _rows(after, chosen, number, reason)
    return lambda _: iter(rows)


def _rows(
    after: Mapping[int, VbucketProgress], chosen: Collection[int], number: int, reason: str
) -> list[pa.RecordBatch]:
    forks = [
        {
            "round": number,
            "epoch": after[vbucket].epoch,
            "vbucket": vbucket,
            "kind": RowKind.ROLLBACK,
            "seqno": after[vbucket].position.seqno,
            "detail": reason,
        }
        for vbucket in chosen
    ]
    states = [after[vbucket] for vbucket in sorted(after)]
    return [pa.RecordBatch.from_pylist(forks, schema=CHANGES), states_to_batch(states, number)]

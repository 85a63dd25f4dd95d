"""Bring a replica table from the round it stands at to a later one, in one MERGE commit.

The fence is a Delta transaction id, (lake and table, the round it starts *from* + 1): a driver with
a stale plan can never publish it. Delta skips a stale MERGE silently, so the commit is read back.
An apply is a deterministic function of ``changes``: repeating it after a crash is harmless.
"""

from collections.abc import Iterable, Mapping

from pyspark.errors import PySparkException

from dcp.errors import FencedError, LakeError
from dcp.lake.applied import AppliedVersion, applied_of, replica_status
from dcp.lake.apply_plan import (
    KEY_LITERALS,
    ApplyPlan,
    Fork,
    PublishedRange,
    first_round_to_read,
    published_ranges,
)
from dcp.lake.apply_sql import merge_sql, winners_sql
from dcp.lake.changes import positions_at
from dcp.lake.history import history, refuse_foreign_changes
from dcp.lake.memory import DOCUMENT_BYTES, reader_settings
from dcp.lake.sql import integer_list
from dcp.lake.stop_points import reached
from dcp.lake.tables import LakeTables, ReplicaTable
from dcp.lake.transaction import transaction
from dcp.lake.vbucket_state import FIRST_EPOCH, VbucketState


def plan_apply(
    lake: LakeTables, replica: ReplicaTable, to_round: int, *, key_literals: int = KEY_LITERALS
) -> ApplyPlan | None:
    """Return what brings ``replica`` to ``to_round``; None if it is there already.

    It is there, too, when no round since its last apply brought it a row to publish: no commit is
    made for that.

    Raises:
        ForeignWriteError: somebody else changed the table's rows since our last apply.
        LakeError: the log asks for what is not possible (see `published_ranges`).

    """
    status = replica_status(lake, replica)
    refuse_foreign_changes(replica.name, status.commits, status.applied_version)
    if status.round >= to_round:
        return None
    before = positions_at(lake, status.round)
    after = positions_at(lake, to_round)
    ranges = published_ranges(before, after, _forks(lake, after, to_round), status.round)
    if not ranges:
        return None
    first_round = first_round_to_read(before, ranges, status.round)
    keys = _changed_keys(lake, replica, ranges, (first_round, to_round), key_literals + 1)
    if not keys:
        return None
    is_many = len(keys) > key_literals
    return ApplyPlan(
        table=replica.name,
        collection_id=replica.collection_id,
        from_round=status.round,
        to_round=to_round,
        first_round=first_round,
        ranges=ranges,
        keys=None if is_many else tuple(keys),
        base_version=status.version,
        largest_bytes=_largest_document_bytes(lake, first_round, to_round),
        each_key_once=is_many and _is_each_key_once(lake, replica, ranges, (first_round, to_round)),
    )


def run_apply(lake: LakeTables, plan: ApplyPlan, writer_id: str) -> AppliedVersion:
    """Commit a plan and return the version it became.

    Raises:
        FencedError: another driver applied to the table since the plan was made.
        ForeignWriteError: somebody else changed the table since; found before anything is written,
            or, if that came in the very moment of the MERGE, right after it.
        LakeError: the table was maintained in the moment of the MERGE; nothing was written.

    """
    table_sql = lake.table_sql(plan.table)
    refuse_foreign_changes(plan.table, history(lake.spark, table_sql), plan.base_version)
    metadata = {
        "lake": lake.identity.lake_id,
        "table": plan.table,
        "from": plan.from_round,
        "to": plan.to_round,
        "writer": writer_id,
    }
    app_id = f"{lake.identity.lake_id}:{plan.table}"
    failure: PySparkException | None = None
    reader = reader_settings(plan.largest_bytes)
    with transaction(lake.spark, app_id, plan.from_round + 1, metadata, reader):
        try:
            lake.spark.sql(merge_sql(table_sql, lake.changes_sql, plan)).collect()
            reached("apply.committed")
        except PySparkException as error:
            failure = error  # it may have committed all the same: the history decides
    return _committed(lake, plan, writer_id, failure)


def apply_pending(
    lake: LakeTables,
    replicas: Iterable[ReplicaTable],
    to_round: int,
    writer_id: str,
    *,
    key_literals: int = KEY_LITERALS,
) -> list[AppliedVersion]:
    """Bring every replica table to ``to_round``; return the versions that this made."""
    made = []
    for replica in replicas:
        plan = plan_apply(lake, replica, to_round, key_literals=key_literals)
        if plan is not None:
            made.append(run_apply(lake, plan, writer_id))
    return made


def _forks(lake: LakeTables, states: Mapping[int, VbucketState], to_round: int) -> list[Fork]:
    """Return the recorded forks of vbuckets that were ever rolled back; usually none are.

    A ``rollback`` row that starts an epoch carries that epoch and, as ``seqno``, its fork seqno;
    one that only records the producer's order carries no seqno.
    """
    rolled_back = sorted(v for v, state in states.items() if state.epoch > FIRST_EPOCH)
    if not rolled_back:
        return []
    rows = lake.spark.sql(
        f"SELECT DISTINCT vbucket, epoch, seqno FROM {lake.changes_sql} "
        f"WHERE kind = 'rollback' AND seqno IS NOT NULL AND epoch > {FIRST_EPOCH} "
        f"AND round <= {int(to_round)} AND vbucket IN ({integer_list(rolled_back)})"
    ).collect()
    return [Fork(row["vbucket"], row["epoch"], int(row["seqno"])) for row in rows]


def _changed_keys(
    lake: LakeTables,
    replica: ReplicaTable,
    ranges: tuple[PublishedRange, ...],
    rounds: tuple[int, int],
    most: int,
) -> list[str]:
    winners = winners_sql(lake.changes_sql, replica.collection_id, ranges, *rounds)
    table = lake.spark.sql(f"SELECT key FROM ({winners}) LIMIT {most}").toArrow()
    keys: list[str] = table.column("key").to_pylist()
    return sorted(keys)


def _is_each_key_once(
    lake: LakeTables,
    replica: ReplicaTable,
    ranges: tuple[PublishedRange, ...],
    rounds: tuple[int, int],
) -> bool:
    """Whether no key has two rows to publish; reads narrow columns only."""
    winners = winners_sql(lake.changes_sql, replica.collection_id, ranges, *rounds)
    return not lake.spark.sql(f"SELECT 1 FROM ({winners}) WHERE rows > 1 LIMIT 1").collect()


def _largest_document_bytes(lake: LakeTables, first_round: int, to_round: int) -> int:
    """Return what the rounds' status rows tell; the largest there can be where one does not."""
    row = lake.spark.sql(
        "SELECT max(coalesce(CAST(get_json_object(detail, '$.largest_bytes') AS BIGINT), "
        f"{DOCUMENT_BYTES})) FROM {lake.changes_sql} "
        f"WHERE kind = 'status' AND round BETWEEN {int(first_round)} AND {int(to_round)}"
    ).collect()[0]
    return DOCUMENT_BYTES if row[0] is None else int(row[0])


def _committed(
    lake: LakeTables, plan: ApplyPlan, writer_id: str, failure: PySparkException | None
) -> AppliedVersion:
    commits = history(lake.spark, lake.table_sql(plan.table))
    last = next((commit for commit in commits if commit.is_apply), None)
    if (
        last is not None
        and last.writer == writer_id
        and (last.ours["from"], last.ours["to"]) == (plan.from_round, plan.to_round)
    ):
        between = [commit for commit in commits if commit.version < last.version]
        refuse_foreign_changes(plan.table, between, plan.base_version)
        return applied_of(plan.table, last)
    if last is not None and last.ours["to"] > plan.from_round:
        raise FencedError(
            f"another driver applied to {plan.table}: found {last}, round {last.ours['from']} -> "
            f"{last.ours['to']} by writer {last.writer}; expected it at round {plan.from_round} "
            f"(our writer {writer_id}); this driver stops"
        ) from failure
    if failure is None:
        raise LakeError(
            f"{plan}: Delta skipped the MERGE, but the history shows no later apply than "
            f"{last or 'none'}; a transaction id of this table was used by somebody else"
        )
    refuse_foreign_changes(plan.table, commits, plan.base_version)
    raise _translated(plan, failure)


def _translated(plan: ApplyPlan, failure: PySparkException) -> Exception:
    from delta.exceptions import DeltaConcurrentModificationException

    if isinstance(failure, DeltaConcurrentModificationException):
        return LakeError(
            f"{plan}: the table was rewritten in the same moment (maintenance?), nothing was "
            "applied; run it again"
        )
    return failure

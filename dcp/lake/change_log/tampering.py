"""Detects changes that others made to a lake's tables, from their histories. No Spark.

Only cleaning and erasures remove rows of ``changes``: any other change of its rows stops every run.
A VACUUM that kept less than the horizon only causes a warning: a rollback may need a deleted file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from dcp.errors import REREAD_COMMAND, LakeError
from dcp.lake.change_log.applied import ReplicaStatus
from dcp.lake.change_log.control import RequestAction
from dcp.lake.store.sql import restore_sql
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import MAINTENANCE, TableCommit
from dcp.lake.tables.horizon import Horizon, duration


def refuse_tampering(where: str, changes_sql: str, commits: Sequence[TableCommit]) -> None:
    """Raise LakeError if somebody else changed rows of ``changes``.

    The rows must be those of our newest round or cleaning, which must build on the rows of the
    version that it read. A RESTORE that undoes a foreign change repairs the table; one that undoes
    rounds damages it.

    ``commits`` come newest first. They must reach back to the ``read_version`` of the newest round,
    or be all commits.
    """
    if not commits:
        return
    commit_history, restore = CommitHistory(tuple(commits)), ""
    ours = next((commit for commit in commits if commit.is_log_write), None)
    # Every round checks this before it commits, so that all rows before our newest write are ours.
    left_at = -1 if ours is None else ours.version
    culprit = _culprit(commit_history, left_at, commit_history.newest)
    if ours is not None:
        if culprit is not None:
            restore = f"take it back with {restore_sql(changes_sql, left_at)}, or "
        else:
            culprit = _culprit(commit_history, ours.read_version, ours.version - 1)
    if culprit is None:
        return
    raise LakeError(
        f"{where}: found a change by somebody else: table changes: {culprit} {_harm(culprit)}; "
        f"expected no change of its rows other than dcplake's; {restore}read the bucket again with "
        f"{REREAD_COMMAND}"
    )


def is_conclusive(commits: Sequence[TableCommit]) -> bool:
    ours = next((commit for commit in commits if commit.is_log_write), None)
    reaches = ours is not None and ours.read_version >= commits[-1].version
    return reaches or (bool(commits) and commits[-1].version == 0)


def refuse_log_behind(where: str, newest_round: int, replicas: Mapping[str, ReplicaStatus]) -> None:
    """Raise LakeError if ``changes`` ends before the round that a replica holds.

    This happens if somebody puts back a copy of ``changes`` alone; its own history shows nothing.
    """
    for table, status in replicas.items():
        if status.round > newest_round:
            raise LakeError(
                f"{where}: found round {newest_round} as the newest of changes, but table {table} "
                f"at round {status.round} (version {status.version}); expected no replica table "
                "ahead of changes, which was restored to an older state: restore the newer one, or "
                f"read the bucket again with {REREAD_COMMAND}"
            )


def short_vacuums(
    table: str, commits: Iterable[TableCommit], horizon: Horizon, now: datetime
) -> Iterator[str]:
    """Yield a warning for each VACUUM that deleted files within the horizon, newest first.

    A VACUUM in a session of dcplake always makes a commit. Elsewhere on S3, Delta makes none unless
    ``spark.databricks.delta.vacuum.logging.enabled`` is set, so this cannot see it.
    """
    for commit in commits:
        if commit.retention_seconds is None or commit.ours.get(MAINTENANCE) == RequestAction.ERASE:
            continue  # what an erasure took is noted (`record_cleaned_round`)
        gone_before = commit.time - timedelta(seconds=commit.retention_seconds)
        if gone_before > horizon.start(now) and commit.retention_seconds < horizon.seconds:
            yield (
                f"table {table}: {commit} kept {duration(commit.retention_seconds)} of the "
                f"horizon's {horizon}: files that were replaced before "
                f"{gone_before:%Y-%m-%d %H:%M:%S} UTC may be gone; a rollback to an older state "
                "uses changes instead, or streams its vbuckets again"
            )


def _culprit(commit_history: CommitHistory, older: int, newer: int) -> TableCommit | None:
    """Return the commit that changed the rows between two versions; None if they have the same."""
    if commit_history.have_same_rows(newer, older):
        return None
    newest = (commit_history.commit(version) for version in range(newer, older, -1))
    changes = [each for each in newest if each is not None and not each.keeps_rows]
    # A RESTORE, or a write of ours, is named only if no other commit explains the change.
    foreign = [each for each in changes if each.restored is None and not each.is_log_write]
    return (foreign or changes)[0]


def _harm(commit: TableCommit) -> str:
    if commit.restored is not None:
        return f"took it back to version {commit.restored}"
    return "changed its rows"

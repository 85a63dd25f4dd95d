"""Detects changes that others made to a lake's tables, from their histories. No Spark.

Only cleaning and erasures remove rows of ``changes``: any other change of its rows stops every run.
A VACUUM that kept less than the horizon only causes a warning: a rollback may need a deleted file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dcp.errors import REREAD_COMMAND, LakeError
from dcp.lake.change_log.applied import ReplicaStatus
from dcp.lake.change_log.control import ERASE
from dcp.lake.store.sql import restore_sql
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import TableCommit
from dcp.lake.tables.horizon import Horizon, duration


@dataclass(frozen=True, slots=True)
class Tampering:
    table: str
    commit: TableCommit
    harm: str
    sound_version: int | None = None
    """The version to restore the table to, if that helps."""

    def __str__(self) -> str:
        return f"table {self.table}: {self.commit} {self.harm}"


def log_tampering(commits: Sequence[TableCommit]) -> Tampering | None:
    """Return the foreign change of the rows of ``changes``; None if all rows are ours.

    The rows must be those of our newest round or cleaning, which must build on the rows of its base
    version. A RESTORE that undoes a foreign change repairs the table; one that undoes rounds
    damages it.

    ``commits`` come newest first. They must reach back to the ``read_version`` of the newest round,
    or be all commits.
    """
    if not commits:
        return None
    commit_history = CommitHistory(tuple(commits))
    ours = next((commit for commit in commits if commit.is_log_write), None)
    # Every round checks this before it commits, so that all rows before our newest write are ours.
    left_at = -1 if ours is None else ours.version
    if not commit_history.have_same_rows(commit_history.newest, left_at):
        culprit = _culprit(commit_history, left_at, commit_history.newest + 1)
        return Tampering("changes", culprit, _harm(culprit), left_at if left_at >= 0 else None)
    if ours is not None and not commit_history.have_same_rows(ours.version - 1, ours.read_version):
        culprit = _culprit(commit_history, ours.read_version, ours.version)
        return Tampering("changes", culprit, _harm(culprit))
    return None


def is_conclusive(commits: Sequence[TableCommit]) -> bool:
    ours = next((commit for commit in commits if commit.is_log_write), None)
    reaches = ours is not None and ours.read_version >= commits[-1].version
    return reaches or (bool(commits) and commits[-1].version == 0)


def refuse_tampering(place: str, changes_sql: str, found: Tampering | None) -> None:
    if found is None:
        return
    restore = (
        f"take it back with {restore_sql(changes_sql, found.sound_version)}, or "
        if found.sound_version is not None
        else ""
    )
    raise LakeError(
        f"{place}: found a change by somebody else: {found}; expected no change of its rows other "
        f"than dcplake's; {restore}read the bucket again with {REREAD_COMMAND}"
    )


def refuse_log_behind(place: str, newest_round: int, replicas: Mapping[str, ReplicaStatus]) -> None:
    """Raise LakeError if ``changes`` ends before the round that a replica holds.

    This happens if somebody puts back a copy of ``changes`` alone; its own history shows nothing.
    """
    for table, status in replicas.items():
        if status.round > newest_round:
            raise LakeError(
                f"{place}: found round {newest_round} as the newest of changes, but table {table} "
                f"at round {status.round} (version {status.version}); expected no replica ahead of "
                "the log, which was restored to an older state: restore the newer one, or read the "
                f"bucket again with {REREAD_COMMAND}"
            )


def short_vacuums(
    table: str, commits: Iterable[TableCommit], horizon: Horizon, now: datetime
) -> tuple[Tampering, ...]:
    """Return the VACUUMs that deleted files of versions within the horizon, newest first.

    A VACUUM in a session of dcplake always makes a commit. Elsewhere on S3, Delta makes none unless
    ``spark.databricks.delta.vacuum.logging.enabled`` is set, so this cannot see it.
    """
    found = []
    for commit in commits:
        if commit.retention_seconds is None or commit.ours.get("maintenance") == ERASE:
            continue  # what an erasure took is noted (`record_cleaned_round`)
        gone_before = commit.time - timedelta(seconds=commit.retention_seconds)
        if gone_before > horizon.start(now) and commit.retention_seconds < horizon.seconds:
            harm = (
                f"kept {duration(commit.retention_seconds)} of the horizon's {horizon}: files that "
                f"were replaced before {gone_before:%Y-%m-%d %H:%M:%S} UTC may be gone; a rollback "
                "to an older state uses changes instead, or streams its vbuckets again"
            )
            found.append(Tampering(table, commit, harm))
    return tuple(found)


def _culprit(commit_history: CommitHistory, after: int, before: int) -> TableCommit:
    newest = (commit_history.commit(version) for version in range(before - 1, after, -1))
    changes = [each for each in newest if each is not None and not each.keeps_rows]
    # A RESTORE, or a write of ours, is named only if no other commit explains the change.
    foreign = [each for each in changes if each.restored is None and not each.is_log_write]
    return (foreign or changes)[0]


def _harm(commit: TableCommit) -> str:
    if commit.restored is not None:
        return f"took it back to version {commit.restored}"
    return "changed its rows"

"""What a decision about an apply asks of a real lake: `dcp.lake.stretch.ReplicaFacts` on Spark."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pyspark.errors import PySparkException

from dcp.lake.applied import AppliedVersion, ReplicaStatus, applied_of, told_applied
from dcp.lake.epoch_log import forks_between
from dcp.lake.epochs import Fork
from dcp.lake.history import WHOLE, history
from dcp.lake.lineage import Lineage
from dcp.lake.round_record import round_records
from dcp.lake.sql import integer_list
from dcp.lake.stretch import HeldVersion
from dcp.lake.tables import LakeTables, ReplicaTable, cleaned_round
from dcp.lake.vbucket_state import VbucketState


class LakeFacts:
    """The facts of one replica, read as they are asked for."""

    def __init__(self, lake: LakeTables, replica: ReplicaTable, status: ReplicaStatus) -> None:
        self._lake = lake
        self._replica = replica
        self._status = status

    @property
    def cleaned_round(self) -> int:
        """Up to this round the log may lack rows that were published; 0 where it is whole."""
        return cleaned_round(self._lake, self._replica)

    def states(self, rounds: Collection[int]) -> Mapping[int, Mapping[int, VbucketState]]:
        """Return every vbucket's state after some rounds."""
        records = round_records(self._lake, rounds)
        return {number: record.states for number, record in records.items()}

    def forks(self, after_round: int, to_round: int, vbuckets: Collection[int]) -> Sequence[Fork]:
        """Return the forks of some vbuckets in rounds after one, up to another."""
        return forks_between(self._lake, after_round, to_round, vbuckets)

    def older_versions(self) -> Sequence[HeldVersion]:
        """Return the newest version of each older state of the table, newest first.

        Time travel needs the history, so what that does not tell any more is left out.
        """
        table, version = self._replica.name, self._status.version
        commits = history(self._lake.spark, self._lake.table_sql(table), WHOLE)
        lineage = Lineage(tuple(commits))
        seen = {lineage.origin(version)}
        found = []
        for commit in lineage.commits:
            origin = lineage.origin(commit.version)
            if origin in seen:
                continue
            seen.add(origin)
            applied = _applied_at(table, lineage, commit.version)
            if applied is not None:
                found.append(replace(applied.held, version=commit.version))
        return found

    def is_readable(self, version: int, vbuckets: Collection[int]) -> bool:
        """Whether the rows of some vbuckets in an old version can still be read.

        Reads a column of them: what VACUUM has deleted is missed by no cheaper look.
        """
        table_sql = self._lake.table_sql(self._replica.name)
        try:
            self._lake.spark.sql(
                f"SELECT max(seqno), max(key) FROM {table_sql} VERSION AS OF {version} "
                f"WHERE vbucket IN ({integer_list(vbuckets)})"
            ).collect()
        except Exception as error:
            if is_missing_version(error):
                return False
            raise
        return True


def _applied_at(table: str, lineage: Lineage, version: int) -> AppliedVersion | None:
    """Return the apply whose rows a version has; None where they are not ours, or nobody tells."""
    origin = lineage.commit(lineage.origin(version))
    if origin is not None:
        is_sound = origin.is_apply and lineage.defect(version) is None
        return applied_of(table, origin) if is_sound else None
    told = lineage.told(version)
    return None if told is None else told_applied(table, told)


_MISSING: tuple[str, ...] = (
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "FAILED_READ_FILE",
    "FileNotFoundException",
    "does not exist",
)


def is_missing_version(error: Exception) -> bool:
    """Whether reading an old version failed because its log or its files are gone.

    In tasks, and under Spark Connect, only the text tells.
    """
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    text = f"{condition or ''} {error}"
    return any(mark in text for mark in _MISSING)

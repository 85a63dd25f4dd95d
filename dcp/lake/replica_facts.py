"""What a decision about an apply asks of a real lake: `dcp.lake.stretch.ReplicaFacts` on Spark."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pyspark.errors import PySparkException

from dcp.lake.applied import ReplicaStatus, applied_at
from dcp.lake.epoch_log import forks_between
from dcp.lake.epochs import Fork
from dcp.lake.history import WHOLE, history
from dcp.lake.lineage import Lineage
from dcp.lake.round_record import round_records
from dcp.lake.sql import integer_list, string_list
from dcp.lake.stretch import EMPTY_TABLE, HeldVersion
from dcp.lake.tables import LakeTables, ReplicaTable, cleaned_round
from dcp.lake.vbucket_state import VbucketState


class LakeFacts:
    """The facts of one replica, read as they are asked for.

    Whether an old version can be read shows when the keys are known that must be read from it: it
    counts as readable until it is found in ``unreadable``.
    """

    def __init__(self, lake: LakeTables, replica: ReplicaTable, status: ReplicaStatus) -> None:
        self._lake = lake
        self._replica = replica
        self._status = status
        self.unreadable: set[tuple[int, int]] = set()
        """(version, vbucket)"""

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
            applied = applied_at(table, lineage, commit.version)
            if applied is not None and lineage.defect(commit.version) is None:
                found.append(replace(applied.held, version=commit.version))
        return self._with_positions(found)

    def _with_positions(self, versions: Sequence[HeldVersion]) -> Sequence[HeldVersion]:
        """Return those of which the log still has the positions; cleaning takes the oldest."""
        rounds = {number for each in versions for number in (each.round, *each.stale.values())}
        if not rounds:
            return versions
        rows = self._lake.spark.sql(
            f"SELECT DISTINCT round FROM {self._lake.changes_sql} "
            f"WHERE kind = 'position' AND round IN ({integer_list(sorted(rounds))})"
        ).collect()
        known = {row["round"] for row in rows}
        return [each for each in versions if known.issuperset((each.round, *each.stale.values()))]

    def is_readable(self, version: int, vbucket: int) -> bool:
        """Whether the rows of a vbucket in an old version can be read, as far as is known."""
        return (version, vbucket) not in self.unreadable

    def try_to_read(self, restored: Mapping[int, int], keys: Collection[str] | None) -> bool:
        """Read the key column of what is to be restored; note the versions where that fails.

        What VACUUM has deleted is missed by no cheaper look. ``restored`` are versions by vbucket,
        ``keys`` those that need them (None: too many to be named).
        """
        if keys is not None and not keys:
            return True
        before = len(self.unreadable)
        for version in sorted(set(restored.values()) - {EMPTY_TABLE}):
            vbuckets = sorted(vb for vb, found in restored.items() if found == version)
            if not self._can_read(version, vbuckets, keys):
                self.unreadable |= {
                    (version, vbucket)
                    for vbucket in vbuckets
                    if len(vbuckets) == 1 or not self._can_read(version, [vbucket], keys)
                }
        return len(self.unreadable) == before

    def _can_read(
        self, version: int, vbuckets: Sequence[int], keys: Collection[str] | None
    ) -> bool:
        named = "" if keys is None else f"AND key IN ({string_list(keys)})"
        try:
            self._lake.spark.sql(
                f"SELECT max(key) FROM {self._lake.table_sql(self._replica.name)} "
                f"VERSION AS OF {version} WHERE vbucket IN ({integer_list(vbuckets)}) {named}"
            ).collect()
        except Exception as error:  # Spark's own class, or the bridge's: the text tells
            if is_missing_version(error):
                return False
            raise
        return True


_MISSING: tuple[str, ...] = (
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "FileNotFoundException",
    "NoSuchKey",
)


def is_missing_version(error: Exception) -> bool:
    """Whether reading an old version failed because its log or its files are gone.

    In tasks, and under Spark Connect, only the text tells.
    """
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    text = f"{condition or ''} {error}"
    return any(mark in text for mark in _MISSING)

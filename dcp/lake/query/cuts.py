"""Finds consistent cuts of a lake: versions of all its tables that hold the same round.

Each replica is applied in its own commit. So the newest versions of two replicas may hold different
rounds, and a join may show two states of one vbucket. A version holds the round of its apply. It
also holds later rounds in which nothing of its collection was completed, taken back or cleared; the
rules of the next apply decide that (`dcp.lake.apply.slice_rules`).

The search tries the newest round, then the rounds of all applies, newest first. That is enough:
versions that hold any other round in common also hold one of these. A version with stale vbuckets
holds no round, since these vbuckets show an older one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

import pyarrow as pa

from dcp.errors import ConfigError, LakeError
from dcp.lake.apply.slice_reader import SliceReader
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import newest_round, refuse_tampered_log
from dcp.lake.change_log.round_queries import oldest_round_left
from dcp.lake.change_log.touched_keys import Touched, few_touched
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.store.sql import quoted
from dcp.lake.store.table import MissingVersionError
from dcp.lake.tables.applied_version import BEGINNING, AppliedVersion
from dcp.lake.tables.history import WHOLE, TableCommit, history, reaches_creation
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, refuse_lost_replica, replicas_in
from dcp.lake.tables.schema import CHANGES
from dcp.printable import Shown, number_ranges
from dcp.records import Record

_CURE: Final = "`dcplake run --once` brings every table to the newest round"
_READ: Final = pa.schema([CHANGES.field("vbucket")])


@dataclass(frozen=True, slots=True)
class Cut(Record, Shown):
    """Versions of all tables in which every vbucket shows its complete seqno of one round."""

    round: int
    time: datetime | None
    """When the round was committed; None if Delta's log has forgotten it."""
    versions: Mapping[str, int]
    """By table: the replicas, and the version of ``changes`` that ends with the round."""

    def views_sql(self, lake: LakeTables) -> list[str]:
        return [
            f"CREATE OR REPLACE TEMPORARY VIEW {quoted(f'cut_{table}')} AS "
            f"SELECT * FROM {lake.table_sql(table, version)}"
            for table, version in self.versions.items()
        ]

    def __str__(self) -> str:
        time = "" if self.time is None else f" ({self.time:%Y-%m-%d %H:%M:%S} UTC)"
        return f"round {self.round}{time}"


def find_cut(
    lake: LakeTables, round_number: int | None = None, as_of: datetime | None = None
) -> Cut:
    """Return the cut at a round. Without a round: the newest cut, or the newest one at ``as_of``.

    Raises:
        ConfigError: there is no such round, or no round at that moment.
        LakeError: the tables have no such round in common, or its files are gone; or others changed
            the log or a replica; or a replica is missing.
    """
    commits = history(lake.changes, WHOLE)
    refuse_tampered_log(lake, commits)
    last = _last_round(lake, commits, round_number, as_of)
    refuse_lost_replica(lake)
    replicas = [_Replica(lake, each, commits[0].version) for each in replicas_in(lake)]
    rounds = _rounds(replicas, last) if round_number is None else iter([last])
    for number in rounds:
        versions = _versions_holding(replicas, number)
        if versions is not None:
            versions[CHANGES_TABLE] = _log_version(lake, commits, number)
            time = next((each.time for each in commits if each.round == number), None)
            _require_readable(lake, number, versions)
            return Cut(number, time, versions)
    for replica in replicas:
        replica.status.commit_history.refuse_defect(replica.name, lake.table_sql(replica.name))
    wanted = f"a round up to {last}" if round_number is None else f"round {last}"
    raise LakeError(
        f"{lake.location}: found {'; '.join(map(str, replicas))}; expected {wanted} that a version "
        f"of every table holds; {_CURE}"
    )


class _Replica:
    def __init__(self, lake: LakeTables, replica: ReplicaTable, log_version: int) -> None:
        self.name = replica.name
        self.status = replica_status(lake, replica)
        self._lake = lake
        self._collection_id = replica.collection_id
        self._log_version = log_version  # read before the slices, as in `plan_merge`
        self._slices = SliceReader(lake, replica, self.status)

    @cached_property
    def older(self) -> Sequence[AppliedVersion]:
        """The newest version of each older state, and the empty table of the beginning."""
        commits = history(self._lake.table(self.name), WHOLE)
        beginning = [BEGINNING] if reaches_creation(commits) else []
        return [*self._slices.older_versions(), *beginning]

    def version_holding(self, number: int) -> int | None:
        """Return a version that holds a round, preferably the newest one; None if no version
        does.
        """
        newest = self.status.current
        if self.status.commit_history.defect(newest.version) is None and self._holds(
            newest, number
        ):
            return newest.version
        older = (each for each in self.older if each.to_round <= number)
        best = max(older, key=lambda each: (each.to_round, each.version), default=None)
        return best.version if best is not None and self._holds(best, number) else None

    def _holds(self, current: AppliedVersion, number: int) -> bool:
        if current.to_round >= number:
            return current.to_round == number and not current.stale
        missing = self._slices.slice_between(current, number)
        if missing.undone or missing.stale:
            return False
        log = self._lake.changes
        touched = few_touched(log, self._log_version, self._collection_id, missing, 0)
        return touched == Touched()

    def __str__(self) -> str:
        current = self.status.current
        stale = f" with stale vbuckets {number_ranges(current.stale)}" if current.stale else ""
        return f"{self.name} at round {current.to_round}{stale}"


def _last_round(
    lake: LakeTables,
    commits: Sequence[TableCommit],
    round_number: int | None,
    as_of: datetime | None,
) -> int:
    """Return the wanted round, or the newest one at ``as_of``, if its positions are left."""
    newest = newest_round(lake, commits)
    if not newest:
        raise LakeError(f"{lake.location}: found no round, expected one; {_CURE}")
    last: int | None = newest
    if round_number is not None:
        last = round_number
    elif as_of is not None:
        by_then = (each.round for each in commits if each.time <= as_of)
        last = next((number for number in by_then if number is not None), None)
    kept = oldest_round_left(lake)
    if last is None or not kept <= last <= newest:
        found = f"round {last}" if as_of is None else f"no round at {as_of:%Y-%m-%d %H:%M:%S} UTC"
        raise ConfigError(
            f"{lake.location}: found {found}, expected one from {kept} to {newest}: older ones are "
            "cleaned, newer ones not made yet"
        )
    return last


def _rounds(replicas: Sequence[_Replica], last: int) -> Iterator[int]:
    """Yield the candidate rounds, newest first. Older versions are read only if the first fails."""
    yield last
    rounds = {replica.status.round for replica in replicas}
    rounds |= {each.to_round for replica in replicas for each in replica.older}
    yield from sorted((number for number in rounds if 0 < number < last), reverse=True)


def _versions_holding(replicas: Sequence[_Replica], number: int) -> dict[str, int] | None:
    versions: dict[str, int] = {}
    # Whoever is behind fails first; and the positions of a round are read once.
    for replica in sorted(replicas, key=lambda each: each.status.round):
        version = replica.version_holding(number)
        if version is None:
            return None
        versions[replica.name] = version
    return {replica.name: versions[replica.name] for replica in replicas}


def _log_version(lake: LakeTables, commits: Sequence[TableCommit], number: int) -> int:
    later = [each.version for each in commits if each.round is not None and each.round > number]
    version = min(later) - 1 if later else commits[0].version
    if version < commits[-1].version:
        raise LakeError(
            f"{lake.changes.where}: found no version of round {number} in Delta's log any more; "
            f"{_CURE}"
        )
    return version


def _require_readable(lake: LakeTables, number: int, versions: Mapping[str, int]) -> None:
    """Raise LakeError if VACUUM has deleted files of an older version, or its commit is gone."""
    for name, version in versions.items():
        table = lake.table(name)
        if version == history(table, 1)[0].version:
            continue
        try:
            table.query(lambda read, _: f"SELECT DISTINCT vbucket FROM {read}", _READ, version)
        except MissingVersionError as error:
            raise LakeError(
                f"{table.where}: found version {version} (round {number}) vacuumed or out of "
                "Delta's log, expected one that can be read; lake.horizon_hours says how long they "
                f"are kept; {_CURE}"
            ) from error

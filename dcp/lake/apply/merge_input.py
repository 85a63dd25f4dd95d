"""Selects the log rows that an apply publishes, and the older versions that give lost rows back.

`dcp.lake.apply.slice_rules` has the rules; this module reads the facts from the lake.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa

from dcp.lake.apply.merge_plan import RowBudget
from dcp.lake.apply.slice_rules import slice_between
from dcp.lake.change_log.applied import ReplicaStatus, applied_at
from dcp.lake.change_log.collection_events import CollectionEvent, collection_events
from dcp.lake.change_log.epochs import Fork, forks_between
from dcp.lake.change_log.round_queries import round_records, rounds_left
from dcp.lake.change_log.touched_keys import MERGE_SOURCE, Touched, few_touched
from dcp.lake.config.memory import MEBIBYTE
from dcp.lake.store.log_slice import EMPTY_TABLE, LogSlice
from dcp.lake.store.sql import one_of, quoted
from dcp.lake.store.table import MissingVersionError, Table
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, cleaned_round
from dcp.lake.tables.schema import REPLICA
from dcp.lake.tables.vbucket_state import VbucketProgress

LARGE_DOCUMENT_BYTES: Final = MEBIBYTE
"""Spark reads rounds with a larger document: this process would decode thousands at once."""


class LakeReplicaFacts:
    """The facts about one replica, read from its lake on demand.

    Only a read of the needed keys shows whether an old version is readable. A version counts as
    readable until such a read fails and puts it into ``unreadable``.
    """

    def __init__(self, lake: LakeTables, replica: ReplicaTable, status: ReplicaStatus) -> None:
        self._lake = lake
        self._replica = replica
        self._status = status
        self.unreadable: set[tuple[int, int]] = set()
        """(version, vbucket)"""

    @property
    def cleaned_round(self) -> int:
        return cleaned_round(self._lake, self._replica)

    def states(self, rounds: Collection[int]) -> Mapping[int, Mapping[int, VbucketProgress]]:
        records = round_records(self._lake, rounds)
        return {number: record.states for number, record in records.items()}

    def forks(self, after_round: int, to_round: int, vbuckets: Collection[int]) -> Sequence[Fork]:
        return forks_between(self._lake, after_round, to_round, vbuckets)

    def collection_events(
        self, from_round: int, to_round: int, vbuckets: Collection[int]
    ) -> Sequence[CollectionEvent]:
        own = [self._replica.collection_id]
        return collection_events(self._lake, own, from_round, to_round, vbuckets)

    def older_versions(self) -> Sequence[AppliedVersion]:
        """Return the newest version of each older state of the table, newest first.

        Time travel needs Delta's history, so versions that it has forgotten are missing.
        """
        table, version = self._replica.name, self._status.version
        commits = history(self._lake.table(table), WHOLE)
        commit_history = CommitHistory(tuple(commits))
        seen = {commit_history.origin(version)}
        found = []
        for commit in commit_history.commits:
            origin = commit_history.origin(commit.version)
            if origin in seen:
                continue
            # Maintenance commits share the rows of an older commit, their origin.
            seen.add(origin)
            applied = applied_at(table, commit_history, commit.version)
            if applied is not None and commit_history.defect(commit.version) is None:
                found.append(replace(applied, version=commit.version))
        rounds = {number for each in found for number in (each.to_round, *each.stale.values())}
        # A version is of use only if the log still has the positions of its rounds.
        known = rounds_left(self._lake, rounds) if rounds else frozenset()
        return [each for each in found if known.issuperset((each.to_round, *each.stale.values()))]

    def may_be_readable(self, version: int, vbucket: int) -> bool:
        return (version, vbucket) not in self.unreadable

    def try_to_read(
        self, restored: Mapping[int, int], read: Callable[[int, Sequence[int]], object]
    ) -> bool:
        """Read vbuckets of the versions that restore them; return whether every read succeeded.

        ``restored`` maps vbuckets to versions. If VACUUM has deleted a version's files, it notes
        the vbuckets as unreadable. No cheaper check finds that.
        """
        before = len(self.unreadable)
        for version in sorted(set(restored.values()) - {EMPTY_TABLE}):
            vbuckets = sorted(vb for vb, found in restored.items() if found == version)
            if not _can(read, version, vbuckets):
                # One by one: the missing file may belong to a single vbucket.
                self.unreadable |= {
                    (version, vbucket)
                    for vbucket in vbuckets
                    if len(vbuckets) == 1 or not _can(read, version, [vbucket])
                }
        return len(self.unreadable) == before

    def read_keys(self, version: int, vbuckets: Sequence[int]) -> None:
        self._lake.table(self._replica.name).query(
            lambda name, _: (
                f"SELECT max(key) AS key FROM {name} WHERE {one_of('vbucket', vbuckets)}"
            ),
            pa.schema([REPLICA.field("key")]),
            version,
        )


def _can(
    read: Callable[[int, Sequence[int]], object], version: int, vbuckets: Sequence[int]
) -> bool:
    try:
        read(version, vbuckets)
    except MissingVersionError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class MergeInput:
    """A log slice for an apply. Each version that it goes back to is readable."""

    log_slice: LogSlice
    touched: Touched | None
    """None if the keys are too many for this process, or only the table has them."""
    olds: Sequence[pa.Table | None] = field(repr=False)
    """Rows of lost keys, one table for each read old version; None if they have too many bytes."""


def merge_input(
    lake: LakeTables,
    replica: ReplicaTable,
    status: ReplicaStatus,
    to_round: int,
    log_version: int,
    budget: RowBudget,
) -> MergeInput | None:
    """Return the slice that brings a replica to a round through readable old versions.

    Which old rows it needs depends on the keys. Each failed read rules a version out, and the
    function decides again.
    """
    facts, table = LakeReplicaFacts(lake, replica, status), lake.table(replica.name)
    # The loop ends: each turn without a result marks at least one version as unreadable.
    while True:
        log_slice = slice_to_publish(lake, replica, status, to_round, facts)
        if log_slice is None:
            return None
        touched = few_touched(
            lake.changes, log_version, replica.collection_id, log_slice, budget.rows
        )
        if touched is None:
            if facts.try_to_read(log_slice.restored, facts.read_keys):
                return MergeInput(log_slice, None, ())
            continue
        olds: list[pa.Table | None] = []
        needed = {vbucket for vbucket, _ in touched.lost}
        restored = {vb: version for vb, version in log_slice.restored.items() if vb in needed}
        read = partial(_read_old_rows, table, touched.lost, olds, budget.bytes)
        if facts.try_to_read(restored, read):
            return MergeInput(log_slice, touched, olds)


def _read_old_rows(
    table: Table,
    lost: Sequence[tuple[int, str]],
    olds: list[pa.Table | None],
    most_bytes: int,
    version: int,
    vbuckets: Sequence[int],
) -> None:
    keys = [key for vbucket, key in lost if vbucket in vbuckets]
    found = table.bounded_query(
        lambda name, text: (
            f"SELECT {', '.join(map(quoted, REPLICA.names))} FROM {name} "
            f"WHERE {one_of('vbucket', vbuckets)} AND key IN ({', '.join(map(text, keys))})"
        ),
        REPLICA,
        version,
        most_bytes,
    )
    if found is not None:
        found = found.append_column(MERGE_SOURCE.field("deleted"), pa.repeat(False, found.num_rows))
    olds.append(found)


def slice_to_publish(
    lake: LakeTables,
    replica: ReplicaTable,
    status: ReplicaStatus,
    to_round: int,
    facts: LakeReplicaFacts | None = None,
) -> LogSlice | None:
    """Return the slice that brings a replica to ``to_round``; None if it has nothing to do.

    Rows whose snapshot was incomplete at the last apply count: the snapshot may be complete.
    """
    if status.round >= to_round:
        return None
    facts = facts or LakeReplicaFacts(lake, replica, status)
    log_slice = slice_between(status.held, to_round, facts)
    return log_slice if log_slice.has_work or log_slice.stale != status.held.stale else None

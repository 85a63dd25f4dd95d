"""Reads the facts that an apply's decision needs (`dcp.lake.apply.slice_rules.ReplicaFacts`)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from dcp.lake.log.applied import ReplicaStatus, applied_at
from dcp.lake.log.collection_log import collection_events
from dcp.lake.log.epoch_log import forks_between
from dcp.lake.log.epochs import CollectionEvent, Fork
from dcp.lake.log.round_records import round_records, rounds_left
from dcp.lake.store.log_slice import EMPTY_TABLE
from dcp.lake.store.sql import one_of
from dcp.lake.store.table import MissingVersionError
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lineage import Lineage
from dcp.lake.tables.schema import REPLICA
from dcp.lake.tables.tables import LakeTables, ReplicaTable, cleaned_round
from dcp.lake.tables.vbucket_state import VbucketProgress


class LakeFacts:
    """The facts of one replica, read from its lake on demand.

    Only the keys to read from an old version show whether it can be read. It counts as readable
    until a read puts it into ``unreadable``.
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
        own = self._replica.collection_id
        return collection_events(self._lake, own, from_round, to_round, vbuckets)

    def older_versions(self) -> Sequence[AppliedVersion]:
        """Return the newest version of each older state of the table, newest first.

        Time travel needs the history, so versions that it forgot are missing.
        """
        table, version = self._replica.name, self._status.version
        commits = history(self._lake.table(table), WHOLE)
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
                found.append(replace(applied, version=commit.version))
        return self._with_positions(found)

    def _with_positions(self, versions: Sequence[AppliedVersion]) -> Sequence[AppliedVersion]:
        rounds = {number for each in versions for number in (each.to_round, *each.stale.values())}
        if not rounds:
            return versions
        known = rounds_left(self._lake, rounds)
        return [
            each for each in versions if known.issuperset((each.to_round, *each.stale.values()))
        ]

    def is_readable(self, version: int, vbucket: int) -> bool:
        return (version, vbucket) not in self.unreadable

    def try_to_read(
        self, restored: Mapping[int, int], read: Callable[[int, Sequence[int]], object]
    ) -> bool:
        """Read some vbuckets of the versions that restore them; return whether all could be read.

        No cheaper look finds the files that VACUUM has deleted. ``restored`` are versions by
        vbucket. If ``read`` fails for that reason, they are noted as unreadable.
        """
        before = len(self.unreadable)
        for version in sorted(set(restored.values()) - {EMPTY_TABLE}):
            vbuckets = sorted(vb for vb, found in restored.items() if found == version)
            if not _can(read, version, vbuckets):
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

"""Reads the facts that decide which rows an apply publishes, and the rows of older versions.

`dcp.lake.apply.slice_rules` decides.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from dcp.errors import LakeError
from dcp.lake.adapters.apply_sql import lost_rows_sql
from dcp.lake.apply.slice_rules import (
    LogFacts,
    begins_anew,
    decide_slice,
    no_slice,
    restored_versions_among,
    rounds_before_forks,
    rounds_of_events,
    vbuckets_to_take_back,
    vbuckets_with_kept_rows,
)
from dcp.lake.change_log.applied import ReplicaStatus, applied_of_version
from dcp.lake.change_log.collection_events import collection_events
from dcp.lake.change_log.epochs import forks_between
from dcp.lake.change_log.round_queries import round_records, rounds_left
from dcp.lake.change_log.touched_keys import MERGE_SOURCE, Touched
from dcp.lake.store.log_slice import EMPTY_TABLE, LogSlice
from dcp.lake.store.sql import one_of, quoted
from dcp.lake.store.table import MissingVersionError
from dcp.lake.tables.applied_version import BEGINNING, AppliedVersion
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, cleaned_round
from dcp.lake.tables.schema import REPLICA
from dcp.lake.tables.vbucket_state import LakeVbucketState

_VERSIONS_AT_ONCE: Final = 16


class SliceReader:
    """Reads the slices of one replica.

    Only a read of the needed keys shows whether an old version is readable. A version counts as
    readable until such a read fails and puts it into ``unreadable``.
    """

    def __init__(self, lake: LakeTables, replica: ReplicaTable, status: ReplicaStatus) -> None:
        self._lake = lake
        self._replica = replica
        self._status = status
        self.unreadable: frozenset[tuple[int, int]] = frozenset()
        """(version, vbucket)"""
        self._decided: Mapping[int, int] = {}
        """By vbucket, the version that `slice_again` goes back to."""

    def slice_to_publish(self, to_round: int) -> LogSlice:
        """Return the slice that brings the replica to ``to_round``; `no_slice` without work.

        Rows whose snapshot was incomplete at the last apply count: the snapshot may be complete.
        """
        current = self._status.current
        if current.to_round >= to_round:
            return no_slice(current)
        found = self.slice_between(current, to_round)
        return found if found.has_work or found.stale != current.stale else no_slice(current)

    def slice_between(self, current: AppliedVersion, to_round: int) -> LogSlice:
        """Return the slice that brings the replica from a version to a later round.

        It raises LakeError if the log contradicts itself.
        """
        facts = self._with_ends(
            LogFacts(current, to_round, cleaned_round(self._lake, self._replica))
        )
        facts = self._with_events(facts, dict.fromkeys(facts.after, current))
        if taken_back := vbuckets_to_take_back(facts):
            facts = self._with_restored_versions(facts, taken_back)
            facts = self._with_events(facts, facts.restored_versions)
        if kept := vbuckets_with_kept_rows(facts):
            facts = facts.with_forks(forks_between(self._lake, 0, to_round, kept))
        return decide_slice(facts)

    def slice_again(self, applied: AppliedVersion) -> tuple[AppliedVersion, LogSlice]:
        """Return the slice of the newest apply, and the version that it was made on.

        The apply's record names the versions that it went back to. Its driver may have found newer
        ones unreadable.

        Raises:
            MissingVersionError: log or history have lost what decides the slice.
        """
        versions = (*self.older_versions(), BEGINNING)
        current = next((each for each in versions if each.to_round == applied.from_round), None)
        where = f"{self._lake.changes.where}: round {applied.from_round}"
        if current is None:
            raise MissingVersionError(where)
        # Version 0 is the empty table. In a log that is not whole, 0 only means that a flush or
        # drop made the version's rows needless, so the rules search for the version again.
        is_whole = not cleaned_round(self._lake, self._replica)
        self._decided = {
            undo.vbucket: undo.version for undo in applied.undone if undo.version or is_whole
        }
        try:
            log_slice = self.slice_between(current, applied.to_round)
        except LakeError as error:  # a damaged log: its repair begins with reading the audits
            raise MissingVersionError(f"{where}: {error}") from error
        if log_slice.undone != applied.undone:
            raise MissingVersionError(where)
        return current, log_slice

    def _with_ends(self, facts: LogFacts) -> LogFacts:
        """Read the states at both ends of the slice, and the forks between them.

        A damaged log may lack the replica's states. If every vbucket begins anew, no rule needs
        them; if not, it raises LakeError.
        """
        current_rounds = {facts.current.to_round, *facts.current.stale.values()}
        lost: LakeError | None = None
        try:
            states = self._states({facts.to_round, *current_rounds})
        except LakeError as error:
            lost = error
            states = {number: {} for number in current_rounds} | self._states({facts.to_round})
        facts = replace(facts, states=states)
        if before := rounds_before_forks(facts):
            facts = self._with_forks(facts, min(before.values()), sorted(before))
        if lost is not None and not begins_anew(facts):
            raise lost
        return facts

    def _with_events(self, facts: LogFacts, versions: Mapping[int, AppliedVersion]) -> LogFacts:
        if not (rounds := rounds_of_events(facts, versions)):
            return facts
        own = [self._replica.collection_id]
        return facts.with_collection_events(
            collection_events(self._lake, own, min(rounds.values()), facts.to_round, sorted(rounds))
        )

    def _with_restored_versions(self, facts: LogFacts, vbuckets: Sequence[int]) -> LogFacts:
        """Read the states at older versions until each vbucket has its restored version."""
        facts = replace(facts, unreadable=self.unreadable, decided=self._decided)
        older, waiting = self.older_versions(), vbuckets
        versions = (*older, BEGINNING)
        restored: dict[int, AppliedVersion] = {}
        for start in range(0, len(versions), _VERSIONS_AT_ONCE):
            end = start + _VERSIONS_AT_ONCE
            facts = self._with_states(facts, older[start:end], waiting)
            restored |= restored_versions_among(facts, waiting, versions[:end])
            waiting = [vbucket for vbucket in waiting if vbucket not in restored]
            if not waiting:
                break
        # If the log is whole, the empty table is restored; if not, the vbuckets become stale.
        if from_empty := sorted(vb for vb, version in restored.items() if version is BEGINNING):
            facts = self._with_states(facts, [BEGINNING], from_empty)
        return replace(facts, restored_versions=restored)

    def _with_states(
        self, facts: LogFacts, versions: Iterable[AppliedVersion], vbuckets: Sequence[int]
    ) -> LogFacts:
        rounds = {version.round_of(vbucket) for version in versions for vbucket in vbuckets}
        states = self._states(rounds - facts.states.keys())
        facts = replace(facts, states={**facts.states, **states})
        return self._with_forks(facts, min(rounds, default=facts.to_round), vbuckets)

    def _with_forks(self, facts: LogFacts, after_round: int, vbuckets: Sequence[int]) -> LogFacts:
        return facts.with_forks(forks_between(self._lake, after_round, facts.to_round, vbuckets))

    def _states(self, rounds: Collection[int]) -> dict[int, Mapping[int, LakeVbucketState]]:
        records = round_records(self._lake, rounds)
        return {number: record.states for number, record in records.items()}

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
            applied = applied_of_version(table, commit_history, commit.version)
            if applied is not None and commit_history.defect(commit.version) is None:
                found.append(replace(applied, version=commit.version))
        rounds = {number for each in found for number in (each.to_round, *each.stale.values())}
        # A version is of use only if the log still has the states after its rounds.
        known = rounds_left(self._lake, rounds) if rounds else frozenset()
        return [each for each in found if known.issuperset((each.to_round, *each.stale.values()))]

    def old_rows(
        self, log_slice: LogSlice, touched: Touched | None, most_bytes: int
    ) -> Sequence[pa.Table | None] | None:
        """Return the rows of lost keys (`lost_rows_sql`), as `MERGE_SOURCE`.

        Each restored version has a table, or None above ``most_bytes``. Without ``touched``
        there are no tables: the method only tries to read the versions. If one is unreadable, the
        result is None, and the caller decides a new slice.
        """
        if touched is None:
            return () if self.try_to_read(log_slice.restored_versions, self._read_keys) else None
        restored = {
            vbucket: log_slice.restored_versions.get(vbucket, EMPTY_TABLE)
            for vbucket, _ in touched.lost
        }
        # The empty table has no row of any key, which takes no query.
        gone = [
            {"vbucket": vbucket, "key": key, "deleted": True}
            for vbucket, key in touched.lost
            if restored[vbucket] == EMPTY_TABLE
        ]
        olds: list[pa.Table | None] = [pa.Table.from_pylist(gone, MERGE_SOURCE)] if gone else []

        def read(version: int, vbuckets: Sequence[int]) -> None:
            olds.append(self._read_rows(touched.lost, version, vbuckets, most_bytes))

        return olds if self.try_to_read(restored, read) else None

    def try_to_read(
        self, restored: Mapping[int, int], read: Callable[[int, Sequence[int]], object]
    ) -> bool:
        """Return whether ``read`` succeeds for each version and its vbuckets in ``restored``.

        ``restored`` maps vbuckets to versions. If VACUUM has deleted a version's files, the method
        adds its vbuckets to `unreadable`. No cheaper check finds such a version.
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

    def _read_keys(self, version: int, vbuckets: Sequence[int]) -> None:
        self._lake.table(self._replica.name).query(
            lambda name, _: (
                f"SELECT max(key) AS key FROM {name} WHERE {one_of('vbucket', vbuckets)}"
            ),
            pa.schema([REPLICA.field("key")]),
            version,
        )

    def _read_rows(
        self,
        lost: Iterable[tuple[int, str]],
        version: int,
        vbuckets: Sequence[int],
        most_bytes: int,
    ) -> pa.Table | None:
        needed = [(vbucket, key) for vbucket, key in lost if vbucket in vbuckets]

        def statement(name: str, text: Callable[[str], str]) -> str:
            values = ", ".join(f"({vbucket}, {text(key)})" for vbucket, key in needed)
            return lost_rows_sql(
                f"(VALUES {values}) AS w(vbucket, key)",
                f"SELECT {', '.join(map(quoted, REPLICA.names))} FROM {name} "
                f"WHERE {one_of('vbucket', vbuckets)} "
                f"AND key IN ({', '.join(text(key) for _, key in needed)})",
            )

        table = self._lake.table(self._replica.name)
        return table.bounded_query(statement, MERGE_SOURCE, version, most_bytes)


def _can(
    read: Callable[[int, Sequence[int]], object], version: int, vbuckets: Sequence[int]
) -> bool:
    try:
        read(version, vbuckets)
    except MissingVersionError:
        return False
    return True

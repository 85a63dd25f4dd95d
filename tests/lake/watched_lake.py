"""A lake in memory as those see it who check it: what each commit of its tables brought."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa

from dcp.lake.change_log.applied import applied_of
from dcp.lake.config.table_names import AUDIT_TABLE, CHANGES_TABLE, CONTROL_TABLE
from dcp.lake.store.log_slice import Undo
from dcp.lake.tables.applied_version import BEGINNING, AppliedVersion
from dcp.lake.tables.history import TableCommit, history
from dcp.lake.tables.lake_tables import DOCS, LakeTables
from dcp.lake.tables.round_record import states_from_rows
from dcp.lake.tables.vbucket_state import LakeVbucketState
from tests.lake.memory_store import MemoryStore, lake_in_memory
from tests.lake.memory_table import MemoryTable, MemoryVersion

Row = dict[str, Any]
Place = tuple[int, str]
"""A vbucket and a key."""


def _now() -> datetime:
    return datetime.now(UTC)


class WrongCommitError(BaseException):
    """A commit is not as it should be; the product, which outlives errors of commits, must not
    outlive this.
    """


@dataclass(frozen=True)
class Version:
    """A version of the replica of the default collection: what it holds, and its rows."""

    current: AppliedVersion
    commit: TableCommit
    made: MemoryVersion
    undone: tuple[Undo, ...] = ()
    revived: tuple[int, ...] = ()
    cleared: tuple[int, ...] = ()

    @cached_property
    def rows(self) -> Mapping[Place, Row]:
        """Its rows by vbucket and key."""
        return {(row["vbucket"], row["key"]): row for row in self.made.rows.to_pylist()}


class WatchedLake:
    """A lake in memory; ``now`` is its clock."""

    def __init__(self, vbuckets: int, now: Callable[[], datetime] = _now) -> None:
        self.vbuckets = vbuckets
        self.now = now
        self.store = MemoryStore(now)
        self.store.on_commit = self._committed
        self.on_round: Callable[[list[Row]], None] = lambda _: None
        self.on_answer: Callable[[], None] = lambda: None
        """Called after each commit of the table ``control``."""
        self.on_version: Callable[[Version], None] = lambda _: None
        self.states_at: dict[int, Mapping[int, LakeVbucketState]] = {0: {}}
        self.writers: list[str | None] = []
        """The writer of each round."""
        self.versions: list[Version] = []

    def open(self, bucket_uuid: str = "bucket-uuid") -> LakeTables:
        """Make the lake or open it, as a process does that knows nothing of it."""
        return lake_in_memory(self.vbuckets, self.store.opened(), bucket_uuid)

    @property
    def docs(self) -> MemoryTable:
        """The replica of the default collection."""
        return self.store.table(DOCS.name)

    @property
    def changes(self) -> MemoryTable:
        """The change log."""
        return self.store.table(CHANGES_TABLE)

    @property
    def undone(self) -> MemoryTable:
        """The audit of rollbacks."""
        return self.store.table(AUDIT_TABLE)

    @property
    def rows(self) -> list[Row]:
        """All rows of the change log."""
        rows: list[Row] = self.changes.kept.newest.rows.to_pylist()
        return rows

    @property
    def unreadable(self) -> set[int]:
        """Versions of ``docs`` whose files are gone."""
        return self.docs.kept.unreadable

    @property
    def round(self) -> int:
        """The newest round."""
        return max(self.states_at)

    @property
    def states(self) -> Mapping[int, LakeVbucketState]:
        """The states of the vbuckets after the newest round."""
        return self.states_at[self.round]

    def _committed(self, table: str, made: MemoryVersion) -> None:
        try:
            if table == CHANGES_TABLE:
                self._log_committed(made)
            elif table == DOCS.name:
                self._docs_committed(made)
            elif table == CONTROL_TABLE:
                self.on_answer()
        except AssertionError as error:
            raise WrongCommitError(error) from error

    def _log_committed(self, made: MemoryVersion) -> None:
        [commit] = history(self.changes, 1)
        if commit.round is None:
            return
        before = self.changes.kept.versions[-2].chunks
        rows = pa.Table.from_batches(made.chunks[len(before) :], made.columns).to_pylist()
        self.states_at[commit.round] = states_from_rows(
            row for row in rows if row["kind"] == "position"
        )
        self.writers.append(commit.writer)
        self.on_round(rows)

    def _docs_committed(self, made: MemoryVersion) -> None:
        [commit] = history(self.docs, 1)
        if made.number == 0:
            self.versions = []
        before = self.versions[-1].current if self.versions else BEGINNING
        current, undone = before, tuple[Undo, ...]()
        revived = cleared = tuple[int, ...]()
        if commit.is_apply:
            applied = applied_of(DOCS.name, commit)
            current, undone = applied, applied.undone
            revived, cleared = applied.revived, applied.cleared
        elif commit.restored is not None:
            current = self.versions[commit.restored].current
        current = replace(current, version=made.number)
        self.versions.append(Version(current, commit, made, undone, revived, cleared))
        if commit.is_apply or commit.restored is not None:
            self.on_version(self.versions[-1])

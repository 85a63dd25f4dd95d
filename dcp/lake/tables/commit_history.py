"""Traces the rows of a table's versions to the commits that wrote them. No Spark.

A version has the rows of its *origin*: the newest commit up to it that changed rows. Maintenance
and heartbeats change none. A RESTORE takes the origin of the version that it names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dcp.errors import REREAD_COMMAND, ForeignWriteError
from dcp.lake.store.sql import restore_sql
from dcp.lake.tables.history import HEARTBEAT, TableCommit


@dataclass(frozen=True, slots=True)
class CommitHistory:
    """The newest commits of a table, newest first."""

    commits: tuple[TableCommit, ...]
    _by_version: dict[int, TableCommit] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_version = {commit.version: commit for commit in self.commits}
        object.__setattr__(self, "_by_version", by_version)

    @property
    def newest(self) -> int:
        return self.commits[0].version

    @property
    def is_whole(self) -> bool:
        return self.commits[-1].version == 0

    @property
    def is_conclusive(self) -> bool:
        """True if older commits cannot change the result for the newest version."""
        commit = self.commit(self.origin(self.newest))
        if commit is None:
            return self.is_whole
        return (
            not commit.is_apply or self.is_whole or commit.read_version >= self.commits[-1].version
        )

    def commit(self, version: int) -> TableCommit | None:
        return self._by_version.get(version)

    def origin(self, version: int) -> int:
        """Return the version whose rows ``version`` has.

        If the commits do not reach back to it, the result is below the oldest one. -1 means a new
        table without rows.
        """
        for commit in self._path(version):
            version = commit.rows_of
        return version

    def _path(self, version: int) -> Iterator[TableCommit]:
        while (commit := self.commit(version)) is not None:
            yield commit
            if commit.rows_of == version:
                return
            version = commit.rows_of

    def heartbeat_of(self, version: int) -> Mapping[str, Any] | None:
        """Return the record of an apply that a heartbeat repeats for ``version``, or None.

        Delta's log cleanup may have removed the apply's commit. The record is what
        `dcp.lake.change_log.applied.heartbeat_content` makes.
        """
        for commit in self._path(version):
            # A foreign change between the heartbeat and the version that its driver had read would
            # make the record untrue.
            between = (self.commit(each) for each in range(commit.read_version + 1, commit.version))
            if commit.is_heartbeat and all(each and each.keeps_rows for each in between):
                told: Mapping[str, Any] = commit.ours[HEARTBEAT]
                return told
        return None

    def since(self) -> int | None:
        """Return the version of the newest apply or RESTORE; -1 before the first.

        None if the commits do not reach back to it. Every change of rows raises it; maintenance
        keeps it. It therefore fences an apply (`dcp.lake.apply.commit`), even after a RESTORE.
        """
        for commit in self.commits:
            if not commit.keeps_rows:
                return commit.version
        return -1 if self.is_whole else None

    def applied(self) -> TableCommit | None:
        """Return the newest apply below the newest version, whatever came after it."""
        commit = self.commit(self.origin(self.newest))
        while commit is not None and not commit.is_apply:
            commit = self.commit(self.origin(commit.version - 1))
        return commit

    def have_same_rows(self, version: int, other: int) -> bool:
        """Return whether two versions have the same rows; all versions before the history do."""
        found, expected, oldest = self.origin(version), self.origin(other), self.commits[-1].version
        return found == expected or max(found, expected) < oldest

    def defect(self, version: int) -> TableCommit | None:
        """Return the foreign commit that spoils the rows of ``version``; None if there is none.

        If the newest change of the rows is not our apply, it is that change. Else it is a foreign
        change after the version that the plan read, before the apply.
        """
        origin = self.commit(self.origin(version))
        if origin is None:
            return None
        if not origin.is_apply:
            return origin
        if self.have_same_rows(origin.version - 1, origin.read_version):
            return None
        between = (self.commit(each) for each in range(origin.version - 1, origin.read_version, -1))
        changes = (each for each in between if each and not each.keeps_rows and not each.is_apply)
        return next(changes, origin)

    def refuse_defect(self, table: str, table_sql: str) -> None:
        if (commit := self.defect(self.newest)) is None:
            return
        sound = next((c.version for c in self.commits if self.defect(c.version) is None), None)
        restore = (
            f"take it back with {restore_sql(table_sql, sound)}, or " if sound is not None else ""
        )
        raise ForeignWriteError(
            f"table {table}: found {commit} by somebody else, expected no change of its rows "
            f"other than dcplake's; {restore}drop the table (delete its folder): the next run makes"
            f" it again from changes; or read every vbucket again with {REREAD_COMMAND}"
        )

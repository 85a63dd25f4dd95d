"""The two tables of a lake, in memory, behind the product's own fences.

``append_round`` and ``run_apply`` are the product's: they look at the history, write with a
transaction id, and read back who won. Here is what Delta does in between: it skips a transaction
that it had before without a word, and refuses one that lost a race.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

import dcp.lake.apply.apply
import dcp.lake.log.applied
import dcp.lake.log.changes
from dcp.lake.apply.apply_plan import ApplyPlan
from dcp.lake.log.applied import commit_content
from dcp.lake.log.log_slice import HeldVersion
from dcp.lake.tables.history import CLEANING, WINDOW, TableCommit, parse_metadata
from dcp.lake.tables.lake_identity import LakeIdentity
from dcp.lake.tables.lineage import Lineage
from dcp.lake.tables.tables import LakeTables
from tests.lake.memory_lake import MemoryLake, Row, Version

LAKE_ID: Final = "0123456789abcdef"
CHANGES, DOCS = "changes", "docs"
_BEGUN = datetime(2024, 1, 1, tzinfo=UTC)
Reached = Callable[[str], None]


class CommitLog:
    """The history of one table."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.commits: list[TableCommit] = []
        self._transactions: dict[str, int] = {}
        self.commit("CREATE TABLE", {})

    def commit(
        self, operation: str, ours: Mapping[str, Any], restored: int | None = None
    ) -> TableCommit:
        """Add a version."""
        time = _BEGUN + timedelta(seconds=self._now())
        made = TableCommit(len(self.commits), time, operation, ours, restored=restored)
        self.commits.append(made)
        return made

    def had(self, app_id: str, version: int) -> bool:
        """Whether a transaction was committed, or a later one of the same application."""
        return self._transactions.get(app_id, -1) >= version

    def commit_once(
        self, app_id: str, version: int, operation: str, ours: Mapping[str, Any]
    ) -> None:
        """Add the version of a transaction."""
        self._transactions[app_id] = version
        self.commit(operation, ours)

    def newest(self, limit: int) -> list[TableCommit]:
        """Return commits as DESCRIBE HISTORY does."""
        return self.commits[: -limit - 1 : -1]


class TablesInMemory(MemoryLake):
    """``changes`` and ``docs`` with their histories."""

    def __init__(self, vbuckets: int, now: Callable[[], float]) -> None:
        super().__init__()
        self.logs = {CHANGES: CommitLog(now), DOCS: CommitLog(now)}
        self.reached: Reached = lambda _: None
        self.on_round: Callable[[list[Row]], None] = lambda _: None
        self.on_version: Callable[[Version], None] = lambda _: None
        self.handle = cast(
            LakeTables,
            SimpleNamespace(
                spark=self,
                identity=LakeIdentity(LAKE_ID, "default", "", vbuckets),
                changes=(self, CHANGES),
                table=lambda name: (self, name),
                changes_sql=CHANGES,
                table_sql=str,
                location=SimpleNamespace(schema=None, path=str, spark_path=str),
            ),
        )

    # --- changes

    def save_round(self, options: Mapping[str, str], received: Callable[[], list[Row]]) -> None:
        """Append a round as Delta does."""
        log = self.logs[CHANGES]
        app_id, version = options["txnAppId"], int(options["txnVersion"])
        if log.had(app_id, version):
            return
        rows = received()
        if log.had(app_id, version):
            raise RuntimeError("[DELTA_CONCURRENT_TRANSACTION] another one had this id first")
        log.commit_once(app_id, version, "WRITE", parse_metadata(options["userMetadata"]))
        self.append(rows)
        self.on_round(rows)

    def clean(self, version: int) -> None:
        """Remove what the horizon does not need, and say so in the history."""
        before = len(self.rows)
        super().clean(version)
        if len(self.rows) != before:
            self.logs[CHANGES].commit("DELETE", {CLEANING: self.cleaned_round})

    # --- docs

    @property
    def lineage(self) -> Lineage:
        """The history of ``docs``."""
        return Lineage(tuple(self.logs[DOCS].newest(10**6)))

    def restore(self, version: int) -> None:
        """Take the table back, as RESTORE does."""
        super().restore(version)
        self.logs[DOCS].commit("RESTORE", {}, restored=version)

    def planned_apply(self, to_round: int) -> ApplyPlan | None:
        """Return what brings ``docs`` to a round; None where there is nothing to do."""
        held = self.versions[-1].held
        if held.round >= to_round:
            return None
        log_slice = self.log_slice(to_round)
        if not log_slice.has_work and log_slice.stale == held.stale:
            return None
        since = self.lineage.since()
        return ApplyPlan(
            table=DOCS,
            collection_id=0,
            from_round=held.round,
            log_slice=log_slice,
            keys=None,
            base_version=held.version,
            since_version=-1 if since is None else since,
            log_version=self.logs["changes"].commits[-1].version,
            is_first=since == -1,
            largest_bytes=0,
        )

    def merge(self, plan: ApplyPlan, base_version: int, writer_id: str) -> Exception | None:
        """Do what the product's MERGE does, under its transaction id."""
        log, app_id = self.logs[DOCS], f"{LAKE_ID}:{DOCS}"
        if log.had(app_id, plan.since_version + 1):
            return None
        ours = {"lake": LAKE_ID, "table": DOCS, "base": base_version, "writer": writer_id}
        ours |= json.loads(json.dumps(commit_content(plan.from_round, plan.log_slice)))
        rows = self._merged(plan.log_slice)
        log.commit_once(app_id, plan.since_version + 1, "MERGE", ours)
        held = HeldVersion(len(self.versions), plan.log_slice.to_round, dict(plan.log_slice.stale))
        self.versions.append(Version(held, rows, plan.log_slice.undone))
        self.on_version(self.versions[-1])
        self.reached("apply.committed")
        return None


class RowsToWrite:
    """The data frame of a round, as far as ``append_round`` uses one: evaluated by its append."""

    def __init__(self, tables: TablesInMemory, received: Callable[[], list[Row]]) -> None:
        self._tables, self._received = tables, received
        self._options: dict[str, str] = {}

    @property
    def write(self) -> "RowsToWrite":
        """Return what writes it."""
        return self

    def format(self, _: str) -> "RowsToWrite":
        """Write Delta."""
        return self

    def mode(self, _: str) -> "RowsToWrite":
        """Append."""
        return self

    def option(self, name: str, value: str) -> "RowsToWrite":
        """Note an option."""
        self._options[name] = value
        return self

    def save(self, _: str) -> None:
        """Append, or not."""
        self._tables.save_round(self._options, self._received)


@contextmanager
def tables_behind(tables: Callable[[], TablesInMemory]) -> Iterator[None]:
    """Let the product's fences look at tables in memory."""

    def history(table: tuple[TablesInMemory, str], limit: int = WINDOW) -> list[TableCommit]:
        owner, name = table
        return owner.logs[name].newest(limit)

    def commit(lake: Any, plan: ApplyPlan, writer_id: str, _: None) -> Exception | None:
        return cast(TablesInMemory, lake.spark).merge(plan, plan.base_version, writer_id)

    def reached(step: str) -> None:
        tables().reached(step)

    with ExitStack() as stack:
        for module, name, stand_in in (
            (dcp.lake.log.changes, "history", history),
            (dcp.lake.log.changes, "reached", reached),
            (dcp.lake.log.changes, "session_settings_for_a_while", lambda *_: nullcontext()),
            (dcp.lake.log.changes, "_committed_writers", set()),
            (dcp.lake.log.applied, "history", history),
            (dcp.lake.apply.apply, "first_files", lambda *_: None),
            (dcp.lake.apply.apply, "_commit", commit),
            (dcp.lake.apply.apply, "reached", reached),
        ):
            stack.enter_context(patch.object(module, name, stand_in))
        yield

"""Reads the Delta history of a lake's tables: commits of dcplake and of others.

Every commit of dcplake has JSON in its user metadata:
``{"dcplake": {"lake": …, "writer": …, …}}``.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from dcp.errors import FencedError
from dcp.lake.store.table import Operation, Table
from dcp.wire.json_tree import json_tree

METADATA_KEY: Final = "dcplake"

LAKE: Final = "lake"
WRITER: Final = "writer"
ROUND: Final = "round"
MAINTENANCE: Final = "maintenance"
"""Metadata keys: the lake's id, the random id of the driver, its round, and a maintenance step."""

READ_VERSION: Final = "read_version"
"""The metadata key of the version that the writer had read."""

HEARTBEAT: Final = "heartbeat"
CLEANING: Final = "cleaned"
"""Metadata keys of commits of `maintain.horizon_guard` and `maintain.cleaning`."""

FEW: Final = 3
"""A reader first reads so few commits: each is a request to an object store."""

WINDOW: Final = 50
"""The next number of commits to read, before reading all."""

WHOLE: Final = 1_000_000
"""More commits than any Delta log keeps."""

DATA_PRESERVING: Final = frozenset(
    {
        "CREATE TABLE",
        "OPTIMIZE",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "CLUSTER BY",
        "ADD COLUMNS",
        "COMPUTE STATS",
        "UPGRADE PROTOCOL",
        "ADD FEATURE",
        "DROP FEATURE",
        "SET TABLE COMMENT",
        "CHANGE COLUMN",
    }
)
"""Operations that change no row of a table, whoever runs them."""

APPLYING: Final = frozenset({Operation.MERGE, "CREATE OR REPLACE TABLE AS SELECT"})
"""The operations of an apply. The second rewrites a table with other typed columns."""


@dataclass(frozen=True, slots=True)
class TableCommit:
    version: int
    time: datetime
    operation: str
    ours: Mapping[str, Any] = field(default_factory=dict)
    """Our metadata; empty in a commit of somebody else."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    restored: int | None = None
    """The version that a RESTORE took the table back to, if it names one."""
    retention_seconds: float | None = None
    """How long a VACUUM kept removed files: its argument, or the table's property."""
    file_time: datetime | None = None
    """The modification time of the commit's file, by which Delta's log cleanup decides."""

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation}, {self.time:%Y-%m-%d %H:%M:%S} UTC)"

    @property
    def horizon_time(self) -> datetime:
        """The time from which the horizon counts a commit's age: the earlier of its two times."""
        return self.time if self.file_time is None else min(self.time, self.file_time)

    @property
    def writer(self) -> str | None:
        """The random id of the driver; None if the commit is not ours."""
        return self.ours.get(WRITER)

    @property
    def round(self) -> int | None:
        return self.ours.get(ROUND) if self.operation == Operation.WRITE else None

    @property
    def is_apply(self) -> bool:
        """True for our applies. OPTIMIZE may copy an apply's metadata, so the operation counts."""
        return self.operation in APPLYING and "to_round" in self.ours

    @property
    def is_optimize(self) -> bool:
        return self.operation == "OPTIMIZE"

    @property
    def is_heartbeat(self) -> bool:
        """True for our append without rows, which makes a new version with the same rows."""
        rows = int(self.metrics.get("numOutputRows", "0") or 0)
        return self.operation == Operation.WRITE and HEARTBEAT in self.ours and rows == 0

    @property
    def is_cleaning(self) -> bool:
        """True for our removal of unneeded or erased rows from ``changes``, or of their values."""
        return self.operation in ("DELETE", "UPDATE") and CLEANING in self.ours

    @property
    def is_log_write(self) -> bool:
        """True for our commits that change rows of ``changes``."""
        return self.round is not None or self.is_cleaning

    @property
    def read_version(self) -> int:
        """The version that the driver had read when it made the commit."""
        return int(self.ours.get(READ_VERSION, self.version - 1))

    @property
    def keeps_rows(self) -> bool:
        return self.operation in DATA_PRESERVING or self.is_heartbeat

    @property
    def rows_of(self) -> int:
        if self.restored is not None:
            return self.restored
        return self.version - 1 if self.keeps_rows else self.version


def metadata_json(content: Mapping[str, Any]) -> str:
    return json.dumps({METADATA_KEY: dict(content)}, separators=(",", ":"), sort_keys=True)


def parse_metadata(text: str | None) -> dict[str, Any]:
    """Return the content of `metadata_json`; empty for other texts, as others may write some."""
    if not text:
        return {}
    try:
        content = json_tree(text)
    except ValueError:
        return {}
    ours = content.get(METADATA_KEY) if isinstance(content, dict) else None
    return ours if isinstance(ours, dict) else {}


def history(table: Table, limit: int = FEW) -> list[TableCommit]:
    return [_commit(told) for told in table.commits(limit)]


def history_until(
    table: Table,
    is_enough: Callable[[Sequence[TableCommit]], bool],
    found: Sequence[TableCommit] | None = None,
) -> Sequence[TableCommit]:
    """Return the newest commits until ``is_enough``, or all; the search starts with ``found``."""
    commits = history(table) if found is None else found
    for limit in (WINDOW, WHOLE):
        if is_enough(commits) or reaches_creation(commits):
            break
        commits = history(table, limit)
    return commits


def _commit(told: Mapping[str, Any]) -> TableCommit:
    operation = told.get("operation") or ""
    parameters = told.get("operationParameters") or {}
    metrics = told.get("operationMetrics") or {}
    restored = parameters.get("version") if operation == "RESTORE" else None
    kept = parameters.get("specifiedRetentionMillis")
    kept = parameters.get("defaultRetentionMillis") if kept is None else kept
    return TableCommit(
        told["version"],
        told["time"],
        operation,
        parse_metadata(told.get("userMetadata")),
        {name: str(value) for name, value in metrics.items()},
        None if restored is None else int(restored),
        int(kept) / 1000 if kept is not None and operation == "VACUUM START" else None,
        told["file_time"],
    )


def reaches_creation(commits: Sequence[TableCommit]) -> bool:
    return bool(commits) and commits[-1].version == 0


def refuse_other_writer(
    commits: Sequence[TableCommit], writer_id: str, *, has_committed: bool = False
) -> None:
    """Raise FencedError if another driver committed after this one.

    ``has_committed``: this driver has committed. If ``commits`` lack that, it is older.
    """
    newer: list[TableCommit] = []
    for commit in commits:
        if commit.writer == writer_id:
            break
        if commit.writer is not None:
            newer.append(commit)
    else:
        if not has_committed:
            return  # we have not committed, and earlier writers may have ended
    if newer:
        raise FencedError(
            f"another driver writes to this lake: found {newer[-1]} by writer {newer[-1].writer} "
            f"after our own commits (writer {writer_id}), expected none; this driver stops"
        )

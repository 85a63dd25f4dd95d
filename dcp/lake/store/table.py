"""The interface of one table of a lake. All readers and writers use only this."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from dcp.lake.store.merge import Merge

Transaction = tuple[str, int]
"""Application id and version of a Delta transaction identifier: the fence of a commit.

Delta skips a commit, without an error, unless its version is above the application's last one. The
caller must therefore read the commit back. `dcp.lake.store.file_commit` does the same for commits
without Spark.
"""


class Operation(StrEnum):
    """The operations that a table's history shows for a commit that adds rows."""

    WRITE = "WRITE"
    MERGE = "MERGE"


def round_fence(lake_id: str, round_number: int) -> Transaction:
    """Return the fence of a round. Rounds are consecutive, so its append is a compare-and-set."""
    return lake_id, round_number


def apply_fence(lake_id: str, table: str, since_version: int) -> Transaction:
    """Return the fence of an apply that was planned after ``since_version``.

    That is the version of the newest apply or RESTORE. So Delta skips the MERGE of a driver whose
    plan is outdated, and a table restored to an older apply goes on from there.
    """
    return f"{lake_id}:{table}", since_version + 1


def audit_fence(lake_id: str, audit_table: str, table_id: str, version: int) -> Transaction:
    """Return the fence of the audit of a table's apply, which made ``version``.

    A table that is dropped and created again gets a new id and version 0. With the id in the
    fence, Delta skips only audits that exist.
    """
    return f"{lake_id}:{audit_table}:{table_id}", version


def heartbeat_fence(lake_id: str, version: int) -> Transaction:
    """Return the fence of a heartbeat after ``version``. Versions grow, so nobody had it before."""
    return f"{lake_id}:heartbeat", version + 1


class CommitConflictError(Exception):
    """Another commit came first; this one wrote nothing."""


class MissingVersionError(Exception):
    """A commit, or a data file, of an older version is gone."""


Statement = Callable[[str, Callable[[str], str]], str]
"""Returns a query, given the table's name and a function that quotes a text."""

_Found = TypeVar("_Found")


def sized_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that `Table.bounded_query` counts the bytes of."""
    kinds = (pa.types.is_string, pa.types.is_binary)
    return [each.name for each in schema if any(is_kind(each.type) for is_kind in kinds)]


@dataclass(frozen=True, slots=True)
class TableSize:
    files: int
    bytes: int


class Table(Protocol):
    """A table of a lake, which need not exist.

    The first call that only Spark can answer starts Spark.

    More than 20 public methods: one for each way to read or change a table.

    Raises:
        LakeError: the table is missing; from every method that reads, except `exists`.
        MissingVersionError: an older version is gone.
        CommitConflictError: another commit came before a change of rows.
    """

    @property
    def sql(self) -> str: ...

    @property
    def where(self) -> str:
        """The lake and the table, for messages."""

    def table_id(self) -> str:
        """Return Delta's id. A table that is dropped and created again gets another."""

    def size(self) -> TableSize: ...

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest version that an application's transactions committed.

        None if there is none, or if only Spark can read the table, since Spark does not return it.
        """

    def columns(self, version: int | None = None) -> pa.Schema:
        """Return the columns of a version, or of the newest one, in the table's order.

        A field's metadata contains the column's comment.
        """

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:
        """Pass rows of the newest version to ``take``, and return its result.

        Rows are read while ``take`` consumes them. ``columns`` and ``condition`` must be valid for
        both Spark and DataFusion. ``take`` may be called twice.
        """

    def bounded_query(
        self,
        statement: Statement,
        schema: pa.Schema,
        version: int | None,
        most_bytes: int,
    ) -> pa.Table | None:
        """Return a query's rows; None if their texts and binaries exceed ``most_bytes``."""

    def exists(self) -> bool: ...

    def properties(self) -> dict[str, str]: ...

    def commits(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest commits, newest first, as Delta describes them.

        Each has ``version``, ``time``, ``file_time``, ``operation``, ``operationParameters``,
        ``operationMetrics`` and ``userMetadata``.
        """

    def rows(self, columns: str, condition: str) -> list[dict[str, Any]]:
        """Return rows of the newest version; see `take_rows`."""

    def query(
        self, statement: Statement, schema: pa.Schema, version: int | None = None
    ) -> pa.Table:
        """Return a query's rows in a version (default: the newest), as columns of ``schema``."""

    def create(
        self, columns: pa.Schema, cluster_by: Collection[str], properties: Mapping[str, str]
    ) -> None:
        """Make the table unless it exists. Two processes may call this at once."""

    def add_columns(self, columns: pa.Schema, comments: Mapping[str, str]) -> None:
        """Add missing columns at the end; ``comments`` are by column.

        Two processes may call this at once.
        """

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Set properties, or remove those without a value; it ignores missing ones."""

    def append(self, rows: pa.Table, metadata: Mapping[str, Any]) -> None:
        """Append few rows. Concurrent writers get separate versions.

        ``metadata`` is the commit's metadata (`dcp.lake.tables.history`).

        Raises:
            LakeError, StoreUnavailableError: the append failed, perhaps after the commit. A second
                attempt may write the rows twice.
        """

    def append_found(
        self,
        query: str,
        views: Mapping[str, pa.Table],
        transaction: Transaction,
        metadata: Mapping[str, Any],
    ) -> None:
        """Append a query's rows; ``views`` are tables by their names in the query.

        The other arguments are those of `merge`.
        """

    def renew(self, transaction: Transaction, metadata: Mapping[str, Any]) -> None:
        """Commit a version with the same rows. The arguments are those of `merge`."""

    def delete(self, condition: str | None, metadata: Mapping[str, Any]) -> int:
        """Delete rows and return their number. None deletes all rows, and reads no file."""

    def update(self, values: Mapping[str, str], condition: str, metadata: Mapping[str, Any]) -> int:
        """Set columns of some rows to expressions of Spark's SQL; return the number of rows."""

    def found_by_spark(self, columns: pa.Schema, condition: str) -> pa.Table:
        """Return columns of some rows; the condition may use all of Spark's SQL."""

    def search_files(self, columns: pa.Schema, condition: str) -> tuple[int, list[str]]:
        """Search every data file in the table's folder, whatever version it belongs to.

        Rows that a deletion vector hides are found, too. Returns the number of files, and the names
        of those in which a row is found.
        """

    def purge(self, metadata: Mapping[str, Any]) -> int:
        """Let no file hold a row that the newest version lacks; return how many files are deleted.

        Older versions cannot be read afterwards. Files that a writer has not committed stay.
        """

    def can_read_all(self) -> bool:
        """Read all rows, and return whether that succeeded."""

    def merge(self, merge: Merge, transaction: Transaction, metadata: Mapping[str, Any]) -> None:
        """Merge rows into a replica.

        ``transaction`` fences the commit; ``metadata`` is its metadata (`dcp.lake.tables.history`).
        """

    def optimize(self, metadata: Mapping[str, Any], largest_bytes: int) -> Mapping[str, int]:
        """Compact small files, with rows sorted for the table's queries.

        It reserves memory for documents of ``largest_bytes``. It returns Delta's metrics
        ``numFilesAdded`` and ``numFilesRemoved``.
        """

    def vacuum(
        self, metadata: Mapping[str, Any], hours: int | None, *, dry_run: bool = False
    ) -> int:
        """Delete the files that no kept version needs; return their number.

        A version is kept for ``hours`` after the next one came; None: the table's property decides.
        ``dry_run`` deletes nothing.
        """

    def register(self, name: str) -> None:
        """Give the table a name in the session catalog, unless the name is taken."""

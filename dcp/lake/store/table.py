"""The port of one table of a lake: whoever reads or changes a table knows nothing else of it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from dcp.lake.store.merge import Merge

Transaction = tuple[str, int]
"""Application id and version of Delta's transaction identifiers.

Delta skips a commit silently if its version is not above the last one of its application. So read
the commit back.
"""


class CommitConflictError(Exception):
    """Another commit came first; this one wrote nothing."""


class MissingVersionError(Exception):
    """The log or a file of an older version is gone."""


Statement = Callable[[str, Callable[[str], str]], str]
"""Makes a query from the table's name and from a function that quotes a text."""

_Found = TypeVar("_Found")


def sized_columns(schema: pa.Schema) -> list[str]:
    """Return the columns whose bytes `Table.bounded_query` counts."""
    kinds = (pa.types.is_string, pa.types.is_binary)
    return [each.name for each in schema if any(is_kind(each.type) for is_kind in kinds)]


@dataclass(frozen=True, slots=True)
class TableSize:
    files: int
    bytes: int


class Table(Protocol):
    """A table of a lake, which need not exist.

    The first call that only Spark can answer starts it.

    Raises:
        LakeError: the table is missing; of all that reads, but `exists`.
        MissingVersionError: an older version is gone.
        CommitConflictError: another commit came before this change of rows.
    """

    @property
    def sql(self) -> str: ...

    @property
    def where(self) -> str:
        """The lake and the table, for messages."""

    def table_id(self) -> str:
        """Return Delta's own id; a table that was dropped and made again has another."""

    def size(self) -> TableSize: ...

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest version that an application's transactions committed.

        None if there is none, or if only Spark can read the table: Spark does not tell.
        """

    def columns(self, version: int | None = None) -> pa.Schema:
        """Return the columns of a version, or of the newest one, in the table's order.

        A column's comment is its field's metadata.
        """

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:
        """Give ``take`` rows of the newest version, and return its result.

        Rows are read as ``take`` asks for them. ``columns`` and ``condition`` are SQL for both
        Spark and DataFusion. ``take`` may be called twice.
        """

    def bounded_query(
        self,
        statement: Statement,
        schema: pa.Schema,
        version: int | None,
        most_bytes: int,
    ) -> pa.Table | None:
        """Return a query's rows; None if their texts and bytes are more than ``most_bytes``."""

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
        """Return a query's rows in a version, or the newest one, as columns of ``schema``."""

    def create(
        self, columns: pa.Schema, cluster_by: Collection[str], properties: Mapping[str, str]
    ) -> None:
        """Make the table unless it exists. Two processes may do this at once."""

    def add_columns(self, columns: pa.Schema, comments: Mapping[str, str]) -> None:
        """Add missing columns behind the others; ``comments`` are by column.

        Two processes may do this at once.
        """

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Set properties, or remove those without a value; missing ones are ignored."""

    def append(self, rows: pa.Table, metadata: Mapping[str, Any]) -> None:
        """Append few rows. Each of several concurrent writers gets its own version.

        ``metadata`` is the commit's own words (`dcp.lake.tables.history`).

        Raises:
            LakeError, StoreUnavailableError: the append failed, perhaps after the commit; a second
                try may write twice.
        """

    def append_found(
        self,
        query: str,
        views: Mapping[str, pa.Table],
        transaction: Transaction,
        metadata: Mapping[str, Any],
    ) -> None:
        """Append a query's rows; ``views`` are tables by their names in the query.

        The other arguments are as for `merge`.
        """

    def renew(self, transaction: Transaction, metadata: Mapping[str, Any]) -> None:
        """Commit a version with the same rows. The arguments are as for `merge`."""

    def delete(self, condition: str | None, metadata: Mapping[str, Any]) -> int:
        """Delete rows; return their number. Without a condition all go, and no file is read."""

    def can_read_all(self) -> bool:
        """Return whether all rows can be read, by reading them."""

    def merge(self, merge: Merge, transaction: Transaction, metadata: Mapping[str, Any]) -> None:
        """Merge rows into a replica.

        ``transaction`` fences the commit; ``metadata`` is its own words
        (`dcp.lake.tables.history`).
        """

    def optimize(self, metadata: Mapping[str, Any], largest_bytes: int) -> Mapping[str, int]:
        """Put the rows of small files into larger ones, sorted for the table's queries.

        Memory is kept for documents of ``largest_bytes``. Returns Delta's metrics,
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
        """Give the table a name in a schema of the session's own catalog, unless the name
        is taken.
        """

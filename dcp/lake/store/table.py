"""The port of one table of a lake: whoever reads or changes a table knows nothing else of it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from dcp.lake.store.place import TablePlace

Transaction = tuple[str, int]
"""Application id and version of Delta's transaction identifiers.

Delta skips a commit silently if its version is not above the last one of its application. So read
the commit back.
"""

Statement = Callable[[str, Callable[[str], str]], str]
"""Makes a query from the table's name and from a function that quotes a text."""

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class TableSize:
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Column:
    kind: pa.DataType
    comment: str


class Table(Protocol):
    """A table of a lake, which need not exist.

    The first call that only Spark can answer starts it. More than 20 public methods: one for each
    thing that anybody asks of a table or does to it.
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

    def require_columns(self, expected: pa.Schema, also: Collection[str] = ()) -> None:
        """Raise LakeError unless the table has exactly these columns, in any order.

        It may also have those of ``also``.
        """

    def columns(self, version: int | None = None) -> pa.Schema:
        """Return the columns of a version, or of the newest one, in the table's order."""

    def column(self, name: str) -> Column | None:
        """Return a column of the newest version; None if it has none of that name."""

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:
        """Return ``take``'s result on rows of the newest version; ``take`` decides how many are
        read.

        ``columns`` and ``condition`` are SQL for both Spark and DataFusion. ``take`` may be called
        twice.
        """

    def bounded_query(
        self,
        statement: Statement,
        schema: pa.Schema,
        version: int | None,
        most_bytes: int | None,
    ) -> pa.Table | None:
        """Return a query's rows in a version, or the newest one, as columns of ``schema``.

        None if their ``value`` columns have more than ``most_bytes``.
        """

    @property
    def place(self) -> TablePlace | None:
        """The place of its files; None if delta-rs cannot open it."""

    def exists(self) -> bool: ...

    def properties(self) -> dict[str, str]: ...

    def commits(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest commits, newest first, as Delta describes them.

        Each has ``version``, ``time``, ``operation``, ``operationParameters``, ``operationMetrics``
        and ``userMetadata``.
        """

    def rows(self, columns: str, condition: str) -> list[dict[str, Any]]:
        """Return rows of the newest version; see `take_rows`."""

    def query(
        self, statement: Statement, schema: pa.Schema, version: int | None = None
    ) -> pa.Table:
        """Return a query's rows; see `bounded_query`."""

    def create(
        self, columns: pa.Schema, cluster_by: Collection[str], properties: Mapping[str, str]
    ) -> None:
        """Make the table unless it exists. Two processes may do this at once."""

    def add_columns(self, columns: pa.Schema, comments: Mapping[str, str]) -> None:
        """Add missing columns behind the others; ``comments`` are by column.

        Two processes may do this at once.
        """

    def set_properties(self, properties: Mapping[str, str]) -> None: ...

    def unset_properties(self, names: Collection[str]) -> None:
        """Remove properties; missing ones are ignored."""

    def append(self, rows: pa.Table, metadata: Mapping[str, Any]) -> None:
        """Append few rows. Each of several concurrent writers gets its own version.

        ``metadata`` is the commit's own words (`dcp.lake.tables.history`).

        Raises:
            LakeError: the append failed, perhaps after the commit: a second try may write twice.
        """

    def append_found(
        self,
        query: str,
        views: Mapping[str, pa.Table],
        transaction: Transaction,
        metadata: Mapping[str, Any],
        settings: Mapping[str, str],
    ) -> None:
        """Append a query's rows; ``views`` are tables by their names in the query.

        The other arguments are as for `merge`.
        """

    def renew(self, transaction: Transaction, metadata: Mapping[str, Any]) -> None:
        """Commit a version with the same rows. The arguments are as for `merge`."""

    def delete(self, condition: str | None, metadata: Mapping[str, Any]) -> int:
        """Delete rows; return their number. Without a condition all go, and no file is read."""

    def is_readable(self) -> bool:
        """Return whether all rows can be read, by reading them."""

    def merge(
        self,
        rows: "pa.Table | str",
        statement: Callable[[str], str],
        transaction: Transaction,
        metadata: Mapping[str, Any],
        settings: Mapping[str, str],
    ) -> None:
        """Merge rows into the table by ``vbucket`` and ``key``; rows marked ``deleted`` go.

        Args:
            rows: the table's columns, and ``deleted``; each key once. Or SQL for them, of views and
                tables of `LakeStore.spark`.
            statement: makes Spark's MERGE from the rows' SQL.
            transaction: fences the commit.
            metadata: the commit's own words (`dcp.lake.tables.history`).
            settings: of the session, for this statement.
        """

    def rewrite(
        self,
        query: str,
        comments: Mapping[str, str],
        cluster_by: Collection[str],
        properties: Mapping[str, str],
        transaction: Transaction,
        metadata: Mapping[str, Any],
        settings: Mapping[str, str],
    ) -> None:
        """Commit a version with exactly a query's rows and columns.

        The table keeps its properties, except those in ``properties``. ``comments`` are by column.
        The other arguments are as for `merge`.
        """

    def optimize(
        self, metadata: Mapping[str, Any], settings: Mapping[str, str], *, whole: bool
    ) -> Mapping[str, int]:
        """Put the rows of small files into larger ones, sorted for the table's queries.

        ``settings`` apply to the session for this statement. ``whole`` writes all files anew.
        Returns Delta's metrics, ``numFilesAdded`` and ``numFilesRemoved``.
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

"""The port of one table of a lake: whoever reads or changes a table knows nothing else of it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from dcp.lake.store.place import TablePlace

Transaction = tuple[str, int]
"""Application id and version of Delta's transaction identifiers: a commit with one that is not
above the last of its application is skipped without a word, so it must be read back."""

Statement = Callable[[str, Callable[[str], str]], str]
"""Makes a query from how the table is called and from what makes a literal of a text."""

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class TableSize:
    """The data files of one version of a table: how many, and their bytes together."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Column:
    """The type of a column, and its comment."""

    kind: pa.DataType
    comment: str


class Table(Protocol):
    """A table of a lake, which need not be there.

    Where only Spark can do what is asked, the first such call starts it.

    More than 20 public methods: one for each thing that anybody asks of a table or does to it.
    """

    @property
    def sql(self) -> str:
        """The table's name in Spark's SQL."""

    @property
    def where(self) -> str:
        """The lake and the table, for messages."""

    def table_id(self) -> str:
        """Return Delta's own id of the table: one that is dropped and made again has another."""

    def size(self) -> TableSize:
        """Return the size of the newest version."""

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest version that an application's transactions committed.

        None where there is none, and where only Spark can read the table, which does not tell.
        """

    def require_columns(self, expected: pa.Schema, also: Collection[str] = ()) -> None:
        """Raise LakeError unless the table has these columns, in any order, and no others.

        Columns that ``also`` names may be there.
        """

    def columns(self, version: int | None = None) -> pa.Schema:
        """Return the columns of a version, or of the newest one, in the order of the table."""

    def column(self, name: str) -> Column | None:
        """Return a column of the newest version; None where there is none of that name."""

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:
        """Return what ``take`` makes of rows of the newest version, which are read as it asks.

        ``columns`` and ``condition`` are SQL that Spark and DataFusion understand. ``take`` may be
        called twice.
        """

    def bounded_query(
        self,
        statement: Statement,
        schema: pa.Schema,
        version: int | None,
        most_bytes: int | None,
    ) -> pa.Table | None:
        """Return what a query finds in a version, or the newest one, as columns of ``schema``.

        None where it is more than ``most_bytes``, of rows with a ``value``.
        """

    @property
    def place(self) -> TablePlace | None:
        """The place of its files; None where delta-rs cannot open it."""

    def exists(self) -> bool:
        """Return whether there is a Delta table."""

    def properties(self) -> dict[str, str]:
        """Return the table's properties.

        Raises:
            LakeError: there is no Delta table, or it cannot be read.

        """

    def commits(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest commits, newest first, as Delta describes them.

        Of each ``version``, ``time``, ``operation``, ``operationParameters``, ``operationMetrics``
        and ``userMetadata``.
        """

    def rows(self, columns: str, condition: str) -> list[dict[str, Any]]:
        """Return rows of the newest version; see `take_rows`."""

    def query(
        self, statement: Statement, schema: pa.Schema, version: int | None = None
    ) -> pa.Table:
        """Return what a query finds; see `bounded_query`."""

    def create(
        self, columns: pa.Schema, cluster_by: Collection[str], properties: Mapping[str, str]
    ) -> None:
        """Make the table unless it is there. Two processes may do this at once."""

    def add_columns(self, columns: pa.Schema, comments: Mapping[str, str]) -> None:
        """Add columns behind the others, unless they are there.

        Two processes may do this at once. ``comments`` are by the columns' names.
        """

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set some properties; others stay."""

    def unset_properties(self, names: Collection[str]) -> None:
        """Remove properties, as far as they are there."""

    def append(self, rows: pa.Table, metadata: Mapping[str, Any]) -> None:
        """Append few rows. Of writers that come at once each gets a version of its own.

        ``metadata`` is what the commit says of itself (`dcp.lake.tables.history`).

        Raises:
            LakeError: it failed, perhaps behind the commit: to write again may write twice.

        """

    def append_found(
        self,
        query: str,
        views: Mapping[str, pa.Table],
        transaction: Transaction,
        metadata: Mapping[str, Any],
        settings: Mapping[str, str],
    ) -> None:
        """Append what a query finds; ``views`` are tables by the names that it has for them.

        The other arguments are as for `merge`.
        """

    def renew(self, transaction: Transaction, metadata: Mapping[str, Any]) -> None:
        """Commit a version with the rows of the newest one."""

    def delete(self, condition: str | None, metadata: Mapping[str, Any]) -> int:
        """Delete rows; return how many. Without a condition all go, and no file is read."""

    def is_readable(self) -> bool:
        """Return whether all rows can be read: it reads them."""

    def merge(
        self,
        rows: "pa.Table | str",
        statement: Callable[[str], str],
        transaction: Transaction,
        metadata: Mapping[str, Any],
        settings: Mapping[str, str],
    ) -> None:
        """Merge rows into the table by ``vbucket`` and ``key``; those with ``deleted`` go.

        Args:
            rows: the table's columns, and ``deleted``; each key once. Or SQL for them, of views
                and tables of `LakeStore.spark`.
            statement: makes Spark's statement for that from SQL for the rows.
            transaction: fences the commit.
            metadata: what the commit says of itself (`dcp.lake.tables.history`).
            settings: those of the session for this statement.

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
        """Commit a version with the rows and columns that a query finds, and no others.

        The table's properties stay, but for those that ``properties`` sets. ``comments`` are by
        the columns' names. The other arguments are as for `merge`.
        """

    def optimize(
        self, metadata: Mapping[str, Any], settings: Mapping[str, str], *, whole: bool
    ) -> Mapping[str, int]:
        """Put the rows of small files into larger ones, sorted for the table's queries.

        ``settings`` are those of the session for this statement. With ``whole`` all files are
        written anew. Returns Delta's metrics, ``numFilesAdded`` and ``numFilesRemoved``.
        """

    def vacuum(
        self, metadata: Mapping[str, Any], hours: int | None, *, dry_run: bool = False
    ) -> int:
        """Delete the files that no kept version needs; return how many those are.

        ``hours`` is how long a version is kept after the next one came; None: what the table's
        property says. With ``dry_run`` nothing is deleted.
        """

    def register(self, name: str) -> None:
        """Give the table a name in a schema of the session's own catalog, unless it is taken."""

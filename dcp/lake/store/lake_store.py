"""The interface of a lake's store: its tables, and rows that Spark's tasks make for them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import pyarrow as pa

from dcp.lake.store.cached_reads import CachedReads
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.merge import Merge
from dcp.lake.store.table import Table, Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


Append = Callable[[Callable[[], int], Transaction, Mapping[str, Any]], None]
"""Lets Spark's tasks make the rows of an append, and commits them all at once.

If a first call has committed nothing, a second one need not make the rows again. The arguments:

- ``read_version`` returns the version that the commit may follow. It is called once the rows are
  made, but not if Spark appends: Delta then finds the version itself.
- ``transaction`` fences the commit.
- ``metadata`` is the commit's (`dcp.lake.tables.history`).

It raises CommitConflictError if another commit came first.
"""


class LakeStore(Protocol):
    @property
    def spark(self) -> "SparkSession":
        """A session for SQL on the tables. The first access starts Spark."""

    @property
    def location(self) -> LakeLocation: ...

    @property
    def slots(self) -> int:
        """The number of tasks that run at once; 0 if a cluster decides."""

    @property
    def is_remote(self) -> bool:
        """True if reading a commit costs a request to an object store."""

    @property
    def cached_reads(self) -> CachedReads: ...

    def table(self, name: str) -> Table: ...

    def prepare(self) -> None:
        """Check the store. Call this before the first table is made, and again afterwards.

        Only the second call can check the location that a catalog has chosen.

        Raises:
            LakeError: the store overwrites existing files.
            ConfigError: Spark's session may overwrite commits of others.
        """

    def note(self, name: str, content: bytes) -> None:
        """Write a small file into the folder of ``changes``, or replace it.

        Begin the name with an underscore: VACUUM and readers ignore such files.
        """

    def noted(self, name: str) -> bytes | None:
        """Return the content that `note` wrote last; None if there is none."""

    def for_each(self, do: Callable[[_Item], _Done], items: Sequence[_Item]) -> list[_Done]:
        """Call ``do`` for each item, and return the results. Raises the first exception.

        If each call waits for an object store, many run at once, in threads that share this
        thread's cached reads.
        """

    def pool(self, name: str) -> AbstractContextManager[None]:
        """Let this thread's Spark jobs share the slots fairly with other pools."""

    def computed(self, query: str) -> AbstractContextManager[str]:
        """Run a query once. Inside the block, the SQL that it yields reads the same rows.

        Statements of this store's session can read them. Over Spark Connect, each statement runs
        the query: it must return the same rows every time.
        """

    def new_changes(self, tasks: int, receive: BatchFunction, *, are_few: bool = False) -> Append:
        """Return the append of the rows of ``changes`` that ``tasks`` tasks make.

        ``receive`` gets the task's number as its input. ``are_few``: so few rows that generated
        code would cost Spark more than it saves, such as 10,000.
        """

    def first_rows(self, table: str, merge: Merge) -> Append | None:
        """Return the append of a merge's rows to an empty replica; None if they need a MERGE.

        Raises:
            LakeError: the table's store overwrites existing files.
        """

    def map_written(
        self, table: str, merge: Merge, make: BatchFunction, schema: pa.Schema
    ) -> pa.Table:
        """Apply ``make``, in tasks, to the rows that a merge would write; return its rows.

        ``make`` gets the columns ``datatype`` and ``value``, and returns the columns of ``schema``.
        """

    def beside(self) -> Self:
        """Return the same store for another thread, which fences its own commits."""

    def end_beside(self, stores: Sequence[Self]) -> None:
        """Close stores that `beside` made. Nothing may use them at that time."""

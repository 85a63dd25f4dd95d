"""The port of a lake's store: its tables, and what makes and merges rows beside them."""

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


class NewRows(Protocol):
    """Rows of a table that tasks make; one commit appends them all."""

    def append(
        self, read_version: Callable[[], int], transaction: Transaction, metadata: Mapping[str, Any]
    ) -> None:
        """Let the tasks make the rows, and commit them.

        A second call, after one that committed nothing, need not make them again.

        Args:
            read_version: called when the rows are made; returns the version that the commit may
            follow.
                Not called where Spark appends, since Delta finds the version itself.
            transaction: fences the commit.
            metadata: the commit's own words (`dcp.lake.tables.history`).

        Raises:
            CommitConflictError: another commit came first.
        """


class LakeStore(Protocol):
    @property
    def spark(self) -> "SparkSession":
        """A session for SQL on the tables; the first call starts Spark."""

    @property
    def location(self) -> LakeLocation: ...

    @property
    def slots(self) -> int:
        """The number of tasks that run at once; 0 if a cluster decides."""

    @property
    def is_remote(self) -> bool:
        """True if each commit that is read costs a request to an object store."""

    @property
    def cached_reads(self) -> CachedReads: ...

    def table(self, name: str) -> Table: ...

    def prepare(self) -> None:
        """Call this before the first table is made, and again after it.

        Only the second call can look where a catalog has put the tables.

        Raises:
            LakeError: the store overwrites.
            ConfigError: Spark's session may overwrite others' commits.
        """

    def note(self, name: str, content: bytes) -> None:
        """Put a small file beside the files of ``changes``, in place of an older one.

        A name that begins with an underscore is safe from VACUUM, and no reader takes it for rows.
        """

    def noted(self, name: str) -> bytes | None:
        """Return what `note` has put there last; None if nothing."""

    def for_each(self, do: Callable[[_Item], _Done], items: Sequence[_Item]) -> list[_Done]:
        """Do something with several tables; where each waits for an object store, with many at
        once, in threads that share this one's cached reads. Raises the first exception.
        """

    def pool(self, name: str) -> AbstractContextManager[None]:
        """Let this thread's work share the slots fairly with other pools meanwhile."""

    def new_changes(self, tasks: int, receive: BatchFunction, *, are_few: bool = False) -> NewRows:
        """Return the rows of ``changes`` that ``tasks`` tasks make. ``receive`` gets a task's
        number.
        """

    def first_rows(self, table: str, merge: Merge) -> NewRows | None:
        """Return the rows of a merge as the first ones of a replica; None: they must be merged.

        Raises:
            LakeError: the table's store overwrites.
        """

    def map_written(
        self, table: str, merge: Merge, make: BatchFunction, schema: pa.Schema
    ) -> pa.Table:
        """Return the rows that ``make`` makes, in tasks, of the rows that a merge would write.

        It gets their ``datatype`` and ``value``, and returns columns of ``schema``.
        """

    def beside(self) -> Self:
        """Return the same store for another thread: it fences its own statements."""

    def end_beside(self, stores: Sequence[Self]) -> None:
        """Close the stores that `beside` made, once nothing runs there."""

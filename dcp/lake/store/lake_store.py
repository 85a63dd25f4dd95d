"""The port of a lake's store: its tables, and what makes and merges rows beside them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa

from dcp.lake.store.looks import Looks
from dcp.lake.store.table import Table, Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task does: from batches with its number to batches of rows."""


class NewRows(Protocol):
    """Rows of a table that tasks make; they are appended as a whole, or not at all."""

    def append(
        self, base: Callable[[], int], transaction: Transaction, metadata: Mapping[str, Any]
    ) -> None:
        """Let the tasks make the rows, and commit them.

        A second call, after one that committed nothing, need not make them again.

        Args:
            base: called when the rows are made; returns the version that the commit may follow.
            transaction: fences the commit.
            metadata: what the commit says of itself (`dcp.lake.tables.history`).

        Raises:
            VersionTakenError: another commit came first.

        """


class LakeStore(Protocol):
    """The tables of a lake, and the means to make rows of them."""

    @property
    def spark(self) -> "SparkSession":
        """The session, for statements on more rows than this process holds."""

    @property
    def slots(self) -> int:
        """The number of tasks that run at once; 0 where a cluster decides that."""

    @property
    def looks(self) -> Looks:
        """The looks at its tables."""

    def table(self, name: str) -> Table:
        """Return a table, which need not be there."""

    def pool(self, name: str) -> AbstractContextManager[None]:
        """Let the work of this thread share the slots fairly with other pools' meanwhile."""

    def new_changes(self, tasks: int, receive: BatchFunction, *, are_few: bool = False) -> NewRows:
        """Return the rows of ``changes`` that so many tasks make, each called with its number."""

    def first_rows(
        self,
        table: str,
        query: str,
        made: Callable[[pa.RecordBatch], pa.RecordBatch],
        columns: pa.Schema,
        settings: Mapping[str, str],
    ) -> NewRows | None:
        """Return the first rows of a replica that is there: what ``made`` makes of a query's rows.

        ``columns`` are those of ``made``, and ``settings`` those of the session meanwhile. None
        where the rows must be merged.

        Raises:
            LakeError: the table is in a store that overwrites.

        """

    def beside(self) -> Self:
        """Return the same store for another thread: it fences statements of its own."""

    def end_beside(self, stores: Sequence[Self]) -> None:
        """Let go of what `beside` made, when nothing is under way there."""

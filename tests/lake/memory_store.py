"""The store of a lake in memory: no JVM, no files; the tasks of a round run one after the other."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa
from datafusion import SessionConfig, SessionContext

from dcp.errors import LakeError
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.store.cached_reads import CachedReads
from dcp.lake.store.lake_store import Append, BatchFunction
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.merge import Merge
from dcp.lake.store.table import Transaction
from dcp.lake.tables.lake_tables import LakeIdentity, LakeTables, create_lake
from tests.lake.memory_table import MemoryTable, MemoryVersion, MemoryVersions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")

_AT_VERSION: Final = re.compile(r"(\w+) VERSION AS OF (\d+)")

_SHA2: Final = re.compile(r"\bsha2\((.*?), 256\)")
_ARRAY_ITEM: Final = re.compile(r"\bget\(array\((.*?)\), vbucket\)")
"""The item of a vbucket in Spark's words, which count from 0."""


class MemoryStore:
    """The tables of one lake by name, and hooks for those who watch and disturb it."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.location = LakeLocation(root="memory://lake")
        self.kept: dict[str, MemoryVersions] = {}
        self.notes: dict[str, bytes] = {}
        self.now = now
        self.slots = 1
        self.is_remote = False
        self.run_task: Callable[[int, BatchFunction], list[pa.RecordBatch]] = run_task
        self.between: Callable[[str], None] = lambda _: None
        """Called with a table's name when a commit to it is made, before it is looked whether
        another one came first."""
        self.on_commit: Callable[[str, MemoryVersion], None] = lambda *_: None
        self.viewer: SparkSession | None = None
        """A session of its own, in which its tables are temporary views."""
        self._viewed: dict[str, MemoryVersion] = {}
        config = SessionConfig().with_target_partitions(1).with_information_schema(enabled=False)
        self._context = SessionContext(config)
        self._lock = Lock()
        self.making = Lock()
        """Held while a table is made: a table without a version is not there."""
        self._ids = count(1)
        self._know_nothing()

    def opened(self) -> Self:
        """Return the same store for another process, whose looks are its own; with these hooks."""
        opened = copy(self)
        opened._know_nothing()
        return opened

    def _know_nothing(self) -> None:
        self.cached_reads = CachedReads()
        self._seen: dict[str, tuple[int, MemoryVersions | None]] = {}

    def seen(self, name: str) -> MemoryVersions | None:
        """Return a table's versions as this thread's look has them; None where it is not there."""
        read_at, versions = self._seen.get(name, (0, None))
        if not self.cached_reads.has_seen(read_at):
            read_at, kept = self.cached_reads.tick(), self.kept.get(name)
            versions = replace(kept, versions=[*kept.versions]) if kept and kept.versions else None
            self._seen[name] = read_at, versions
        return versions

    @property
    def spark(self) -> "SparkSession":
        """The viewer, which sees the newest versions, and older ones where a query names them."""
        if self.viewer is None:
            raise LakeError("a lake in memory has no Spark")
        self.viewer.sql = self._query  # type: ignore[method-assign, assignment]  # of this session alone
        for name, versions in self.kept.items():
            if self._viewed.get(name) is not versions.newest:
                frame = self.viewer.createDataFrame(versions.newest.rows)
                frame.createOrReplaceTempView(name)
                self._viewed[name] = versions.newest
        return self.viewer

    def _query(self, text: str, *arguments: Any, **named: Any) -> "DataFrame":
        viewer = self.viewer
        assert viewer is not None

        def view(found: re.Match[str]) -> str:
            name, number = found.groups()
            rows = self.kept[name].versions[int(number)].rows
            viewer.createDataFrame(rows).createOrReplaceTempView(f"{name}_at_{number}")
            return f"{name}_at_{number}"

        at_versions = _AT_VERSION.sub(view, text)
        return type(viewer).sql(viewer, at_versions, *arguments, **named)

    def prepare(self) -> None:
        """Do nothing: tables can be made at once."""

    def new_id(self) -> str:
        """Return an id that no table has yet."""
        return f"t{next(self._ids)}"

    def table(self, name: str) -> MemoryTable:
        return MemoryTable(name, self)

    def note(self, name: str, content: bytes) -> None:
        self.notes[name] = content

    def noted(self, name: str) -> bytes | None:
        return self.notes.get(name)

    def for_each(self, do: Callable[[_Item], _Done], items: Sequence[_Item]) -> list[_Done]:
        return [do(item) for item in items]

    @contextmanager
    def pool(self, _: str) -> Iterator[None]:
        yield

    @contextmanager
    def computed(self, query: str) -> Iterator[str]:
        """Yield the query itself: its tables keep the versions that it names."""
        yield query

    def first_rows(self, table: str, merge: Merge) -> Append:
        """Return the append of a merge's rows, as the first ones of a table."""
        return partial(append_first_rows, self.table(table), merge)

    def map_written(
        self, table: str, merge: Merge, make: BatchFunction, schema: pa.Schema
    ) -> pa.Table:
        """Let one task look at the rows that a merge would write."""
        replica = self.table(table)
        rows = replica.after(merge)[0] if merge.rewrites else replica.written(merge)
        documents = rows.select(["datatype", "value"]).to_batches()
        return pa.Table.from_batches(make(iter(documents)), schema)

    def new_changes(
        self,
        tasks: int,
        receive: BatchFunction,
        *,
        are_few: bool = False,  # all are
    ) -> Append:
        """Return the append of the rows of ``changes`` that so many tasks make."""
        return MemoryRows(self, tasks, receive).append

    def beside(self) -> Self:
        """Return this: no statement is fenced by a session."""
        return self

    def end_beside(self, _: Sequence[Self]) -> None:
        """Let go of nothing."""

    def run(self, text: str, tables: Mapping[str, Sequence[pa.RecordBatch]]) -> pa.Table:
        """Return what a query finds in some tables."""
        context = self._context
        with self._lock:
            for name, chunks in tables.items():
                context.register_record_batches(name, [list(chunks)])
            try:
                return context.sql(_in_datafusion(text)).to_arrow_table()
            finally:
                for name in tables:
                    context.deregister_table(name)

    def run_sql(self, text: str, views: Mapping[str, Sequence[pa.RecordBatch]]) -> pa.Table:
        """Return what a query finds in views, in this store's tables and in versions of them."""
        read = dict(views)
        for name, number in _AT_VERSION.findall(text):
            read[f"{name}_at_{number}"] = self.table(name)._at(int(number)).one_chunk
        if f" {CHANGES_TABLE} " in text:
            read[CHANGES_TABLE] = self.table(CHANGES_TABLE)._at(None).one_chunk
        return self.run(_AT_VERSION.sub(r"\1_at_\2", text), read)

    def run_at(self, text: str, versions: Mapping[str, tuple[str, int]]) -> pa.Table:
        """Return what a query finds in versions of tables, by their names in the query."""
        read = {
            each: self.table(name)._at(number).one_chunk
            for each, (name, number) in versions.items()
        }
        return self.run(text, read)


class MemoryRows:
    """Rows that tasks make when they are appended for the first time."""

    def __init__(self, store: MemoryStore, tasks: int, receive: BatchFunction) -> None:
        self._store, self._tasks, self._receive = store, tasks, receive
        self._made: pa.Table | None = None

    def append(
        self, read_version: Callable[[], int], transaction: Transaction, metadata: Mapping[str, Any]
    ) -> None:
        """Let the tasks make the rows, and commit them."""
        changes = self._store.table(CHANGES_TABLE)
        if self._made is None:
            parts = [self._store.run_task(number, self._receive) for number in range(self._tasks)]
            batches = [batch for part in parts for batch in part]
            self._made = pa.Table.from_batches(batches, changes.columns())
        version = read_version()
        self._store.between(CHANGES_TABLE)
        changes.append_on(version, self._made, transaction, metadata)


def append_first_rows(
    table: MemoryTable,
    merge: Merge,
    read_version: Callable[[], int],
    transaction: Transaction,
    metadata: Mapping[str, Any],
) -> None:
    """Commit a merge's rows, if no other commit came behind the one of ``read_version``."""
    rows, version = table.written(merge), read_version()
    table.store.between(table.name)
    table.append_on(version, rows, transaction, metadata, "MERGE")


def run_task(number: int, receive: BatchFunction) -> list[pa.RecordBatch]:
    """Run a task to its end; return what it made."""
    return list(receive(iter([task_number(number)])))


def task_number(number: int) -> pa.RecordBatch:
    """Return what a task is called with."""
    return pa.RecordBatch.from_pydict({"id": [number]})


def lake_in_memory(
    vbuckets: int, store: MemoryStore | None = None, bucket_uuid: str = "bucket-uuid"
) -> LakeTables:
    """Make a lake in memory, or open the one in ``store``."""
    store = store or MemoryStore()
    identity = LakeIdentity("0123456789abcdef", "default", bucket_uuid, vbuckets)
    return create_lake(store, identity)


def _in_datafusion(text: str) -> str:
    """Return a statement without what only Spark understands."""
    text = _SHA2.sub(r"encode(sha256(\1), 'hex')", text)
    return _ARRAY_ITEM.sub(r"array_element(make_array(\1), vbucket + 1)", text).replace("`", '"')

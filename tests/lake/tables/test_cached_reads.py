"""A block reads the state of each table once; the next one sees what others commit meanwhile."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from dcp.lake.store.cached_reads import CachedReads
from dcp.lake.store.folder_location import FolderLocation
from dcp.lake.store.table import CommitConflictError, Table
from tests.lake.memory_store import MemoryStore
from tests.lake.tables_at import table_at

ROWS = pa.table({"id": ["a"]})

OpenedTable = Callable[[], tuple[Table, CachedReads]]
"""Opens a table as a process does that knows nothing of it; gives its cached reads, too."""


@pytest.fixture(params=["files", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> OpenedTable:
    store = MemoryStore()

    def in_files() -> tuple[Table, CachedReads]:
        table = table_at(FolderLocation(tmp_path / "t"))
        return table, table.remembered.cached_reads

    def in_memory() -> tuple[Table, CachedReads]:
        process = store.opened()
        return process.table("t"), process.cached_reads

    return in_files if request.param == "files" else in_memory


def rows(table: Table) -> int:
    return len(table.rows("id", "true"))


def version(table: Table) -> int:
    return int(table.commits(1)[0]["version"])


def test_a_block_sees_what_others_commit_when_the_next_one_begins(opened: OpenedTable) -> None:
    (ours, cached_reads), (theirs, _) = opened(), opened()
    theirs.create(ROWS.schema, (), {})
    with cached_reads.read_once():
        assert (rows(ours), version(ours)) == (0, 0)
        theirs.append(ROWS, {})
        with cached_reads.read_once():  # a part of the block around it
            assert rows(ours) == 0
        assert version(ours) == 0
    assert (rows(ours), version(ours)) == (1, 1), "outside of blocks each access reads"
    with cached_reads.read_once():
        assert rows(ours) == 1


def test_a_block_sees_at_once_what_its_own_process_commits(opened: OpenedTable) -> None:
    (ours, cached_reads), (theirs, _) = opened(), opened()
    with cached_reads.read_once():
        assert not ours.exists()
        theirs.create(ROWS.schema, (), {})
        assert not ours.exists()
        ours.create(ROWS.schema, (), {})
        assert ours.exists()
        theirs.append(ROWS, {})
        assert rows(ours) == 0
        ours.append(ROWS, {})
        assert (rows(ours), version(ours)) == (2, 2), "upon what another one committed"


def test_a_block_is_of_its_thread_and_ends_by_an_error_too(opened: OpenedTable) -> None:
    (ours, cached_reads), (theirs, _) = opened(), opened()
    ours.create(ROWS.schema, (), {})
    with pytest.raises(KeyError), cached_reads.read_once(), ThreadPoolExecutor(1) as beside:
        assert version(ours) == 0
        theirs.append(ROWS, {})
        assert beside.submit(version, ours).result() == 1
        raise KeyError
    theirs.append(ROWS, {})
    assert version(ours) == 2


def test_a_commit_on_an_older_state_loses_and_then_sees_why() -> None:
    process = MemoryStore()
    ours, theirs, cached_reads = (
        process.table("t"),
        process.opened().table("t"),
        process.cached_reads,
    )
    ours.create(ROWS.schema, (), {})
    with cached_reads.read_once():
        base = version(ours)
        theirs.append(ROWS, {})
        assert version(ours) == base
        with pytest.raises(CommitConflictError):
            ours.append_on(base, ROWS, ("app", 1), {})
        assert version(ours) == 1
        ours.append_on(1, ROWS, ("app", 1), {})
    assert rows(ours) == 2

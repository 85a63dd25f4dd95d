"""What the port `Table` promises, of each of its adapters: memory, files, and Spark alone."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dcp.errors import LakeError
from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.adapters.spark_table import SparkTable
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.merge import Merge
from dcp.lake.store.table import MissingVersionError, Table, Transaction
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.schema import U64
from tests.lake.memory_store import MemoryStore
from tests.lake.memory_table import MemoryTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = pa.schema(
    [("vbucket", pa.int32()), ("key", pa.string()), ("seqno", U64), ("value", pa.binary())]
)
KEYS = pa.schema([("key", pa.string())])

pytestmark = pytest.mark.slow

NewTable = Callable[[], Table]


@pytest.fixture(params=[MemoryTable, FileTable, SparkTable])
def new_table(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    """Returns a function that returns the table as another process finds it."""
    if request.param is MemoryTable:
        memory = MemoryStore()
        return lambda: memory.opened().table("t")

    def spark() -> "SparkSession":
        session: SparkSession = request.getfixturevalue("spark")
        return session

    # delta-rs would decode the other name.
    root = str(tmp_path / ("lake" if request.param is FileTable else "a%20lake"))

    def table() -> Table:
        found: Table = SparkStore(spark, LakeLocation(root=root)).table("t")
        assert type(found) is request.param
        return found

    return table


@pytest.fixture
def table(new_table: NewTable) -> Table:
    made = new_table()
    made.create(COLUMNS, ("vbucket",), {"dcplake.a": "1", "dcplake.b": 'it\'s "ü"'})
    return made


def rows(*keys: str, value: bytes | None = b"12345", vbucket: int = 1) -> pa.Table:
    made = [{"vbucket": vbucket, "key": key, "seqno": 2**64 - 1, "value": value} for key in keys]
    return pa.Table.from_pylist(made, schema=COLUMNS)


def keys_of(table: Table) -> list[str]:
    return sorted(row["key"] for row in table.rows("key", "true"))


def append(table: Table, made: pa.Table, transaction: Transaction) -> None:
    table.append_found("SELECT * FROM given", {"given": made}, transaction, {"by": "us"})


READS: list[Callable[[Table], object]] = [
    lambda table: table.properties(),
    lambda table: table.table_id(),
    lambda table: table.size(),
    lambda table: table.columns(),
    lambda table: table.commits(1),
    lambda table: table.rows("key", "true"),
    lambda table: table.query(lambda name, _: f"SELECT key FROM {name}", KEYS),
    lambda table: table.bounded_query(lambda name, _: f"SELECT key FROM {name}", KEYS, None, 1),
    lambda table: table.set_properties({"dcplake.a": "1"}),
    lambda table: table.append(rows("a"), {}),
]


def test_a_table_that_is_not_there_is_told_by_all_that_need_it(new_table: NewTable) -> None:
    table = new_table()
    assert not table.exists()
    for read in READS:
        with pytest.raises(LakeError, match="table t: found no Delta table there, expected one"):
            read(table)
    assert not table.exists()


def test_a_table_is_made_once(new_table: NewTable, table: Table) -> None:
    other = new_table()
    other.create(KEYS, (), {"dcplake.a": "2"})
    for each in (table, other):
        assert each.exists()
        assert each.columns() == COLUMNS
        assert each.table_id() == table.table_id()
        found = each.properties()
        assert (found["dcplake.a"], found["dcplake.b"]) == ("1", 'it\'s "ü"')
        assert (each.size().files, each.size().bytes) == (0, 0)
        assert [commit["operation"] for commit in each.commits(9)] == ["CREATE TABLE"]
    assert keys_of(table) == []


def test_rows_are_found_by_condition_and_by_query(new_table: NewTable, table: Table) -> None:
    table.append(rows("a", "it's"), {"by": "us"})
    new_table().append(rows("c", value=None), {"by": "them"})
    assert keys_of(table) == ["a", "c", "it's"]
    assert table.rows("seqno, value", "key = 'c'") == [{"seqno": 2**64 - 1, "value": None}]
    assert len(table.take_rows("key", "true", lambda found: list(islice(found, 2)))) == 2
    size = table.size()
    assert size.files >= 2 and size.bytes > 0

    def named(name: str, text: Callable[[str], str]) -> str:
        return f"SELECT value, vbucket, key FROM {name} WHERE key IN ({text('it' + chr(39) + 's')})"

    wanted = pa.schema([("key", pa.string()), ("vbucket", pa.int64())])
    assert table.query(named, wanted).to_pylist() == [{"key": "it's", "vbucket": 1}]
    assert table.query(named, wanted, 0) == wanted.empty_table()
    assert table.columns(0) == COLUMNS
    with pytest.raises(MissingVersionError, match="version 99"):
        table.query(named, wanted, 99)


def test_a_bounded_query_counts_texts_and_bytes(table: Table) -> None:
    def all_rows(name: str, _: object) -> str:
        return f"SELECT * FROM {name}"

    def found(most_bytes: int, version: int | None = None) -> pa.Table | None:
        return table.bounded_query(all_rows, COLUMNS, version, most_bytes)

    empty = found(0)
    assert empty is not None and empty.num_rows == 0
    table.append(rows("ab", "ü"), {})
    table.append(rows("c", value=None), {})
    whole = found(15)
    assert whole is not None and whole.schema == COLUMNS and whole.num_rows == 3
    assert found(14) is None
    assert found(14, version=1) is not None


def test_properties_are_set_and_removed(new_table: NewTable, table: Table) -> None:
    table.set_properties({"dcplake.a": "2", "dcplake.c": ""})
    table.set_properties({"dcplake.b": None, "dcplake.missing": None})
    names = ("dcplake.a", "dcplake.b", "dcplake.c")
    for each in (table, new_table()):
        assert [each.properties().get(name) for name in names] == ["2", None, ""]
    operations = [commit["operation"] for commit in table.commits(2)]
    assert operations == ["UNSET TBLPROPERTIES", "SET TBLPROPERTIES"]
    table.set_properties({"dcplake.a": None, "dcplake.b": "3"})
    assert [table.properties().get(name) for name in names] == [None, "3", ""]


def test_the_history_is_told_newest_first(table: Table) -> None:
    for number in range(3):
        table.append(rows(str(number)), {"number": number})
    told = history(table, 2)
    assert [(each.version, each.ours["number"]) for each in told] == [(3, 2), (2, 1)]
    whole = history(table, WHOLE)
    assert [each.version for each in whole] == [3, 2, 1, 0]
    assert [each.time for each in whole] == sorted((each.time for each in whole), reverse=True)
    assert {each.operation for each in whole[:3]} == {"WRITE"}


def test_a_transaction_is_committed_once(table: Table) -> None:
    assert table.transaction_version("app") is None
    append(table, rows("a"), ("app", 3))
    append(table, rows("b"), ("app", 3))
    append(table, rows("c"), ("app", 2))
    append(table, rows("d"), ("other", 1))
    assert keys_of(table) == ["a", "d"]
    told = None if type(table) is SparkTable else 3
    assert table.transaction_version("app") == told
    table.renew(("app", 3), {"by": "us"})
    table.renew(("app", 4), {"by": "us"})
    assert keys_of(table) == ["a", "d"]
    assert [each["version"] for each in table.commits(1)] == [3]


def test_rows_are_merged_and_deleted(table: Table) -> None:
    table.append(rows("old", "gone", "kept"), {})
    new = rows("old", "gone", "never", "new", value=b"new")
    marks = pa.array([False, True, True, False])

    def merge(given: pa.Table) -> None:
        marked = given.append_column("deleted", marks[: len(given)])
        values = Merge(marked, 1, (1,), 0)
        table.merge(values, ("app", 1), {"by": "us"})

    merge(new)
    merge(rows("late"))
    found = {row["key"]: row["value"] for row in table.rows("key, value", "true")}
    assert found == {"old": b"new", "kept": b"12345", "new": b"new"}
    [commit] = history(table, 1)
    assert (commit.operation, commit.ours) == ("MERGE", {"by": "us"})
    counts = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    assert [int(commit.metrics[name]) for name in counts] == [1, 1, 1]
    assert table.delete("key = 'kept'", {"by": "us"}) == 1
    assert table.can_read_all()
    assert table.delete(None, {"by": "us"}) == 2
    assert keys_of(table) == []


@pytest.mark.parametrize("new_table", [SparkTable], indirect=True)  # a FileTable's is the same
def test_a_merge_opens_only_files_that_may_have_its_vbuckets(table: Table, tmp_path: Path) -> None:
    files: dict[int, Path] = {}
    for vbucket in (1, 2, 3, 500, 1023):
        table.append(rows("a", vbucket=vbucket), {})
        [files[vbucket]] = set(tmp_path.rglob("part-*.parquet")) - set(files.values())
    for vbucket in (2, 500):
        files[vbucket].unlink()  # whoever opens it fails
    new = pa.concat_tables(rows("a", value=b"new", vbucket=each) for each in (1, 3, 1023))
    marked = new.append_column("deleted", pa.repeat(False, len(new)))
    table.merge(Merge(marked, 5, (1, 3, 1023), 0), ("app", 1), {"by": "us"})
    [commit] = history(table, 1)
    assert int(commit.metrics["numTargetRowsUpdated"]) == 3


def test_small_files_become_one(table: Table) -> None:
    for key in ("a", "b"):
        table.append(rows(key), {})
    made = table.optimize({"by": "us"}, 0)
    assert made == {"numFilesRemoved": 2, "numFilesAdded": 1}
    assert table.size().files == 1 and keys_of(table) == ["a", "b"]
    [commit] = history(table, 1)
    assert commit.is_optimize and commit.ours == {"by": "us"}


def test_a_purge_leaves_no_row_of_an_older_version_in_a_file(
    new_table: NewTable, table: Table
) -> None:
    table.set_properties({"delta.enableDeletionVectors": "true"})
    append(table, rows("a", "b", "c"), ("app", 1))
    version = table.commits(1)[0]["version"]
    table.delete("key = 'a'", {"by": "us"})
    is_b = "sha2(key, 256) = '3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d'"
    assert table.found_by_spark(KEYS, is_b).to_pylist() == [{"key": "b"}]
    assert table.update({"value": "X''"}, is_b, {"by": "us"}) == 1
    assert [row["value"] for row in table.rows("value", "true ORDER BY key")] == [b"", b"12345"]
    before, found = table.search_files(KEYS, "key = 'a'")
    assert before >= 1 and found

    purged = new_table()
    assert purged.purge({"by": "us"}) > 0
    after, found = purged.search_files(COLUMNS, "key = 'a' OR (key = 'b' AND value <> X'')")
    assert after >= 1 and not found
    assert keys_of(purged) == ["b", "c"]
    with pytest.raises(MissingVersionError):
        purged.query(lambda name, _: f"SELECT key FROM {name}", KEYS, version)


def test_a_purge_where_the_log_has_forgotten_old_commits(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    table = SparkStore(lambda: spark, LakeLocation(root=str(tmp_path))).table("t")
    kept = {
        "delta.checkpointInterval": "2",
        "delta.deletedFileRetentionDuration": "interval 1 second",
    }
    table.create(COLUMNS, ("vbucket",), kept | {"delta.enableDeletionVectors": "true"})
    for number in range(1, 5):
        append(table, rows(f"{number}"), ("app", number))
    log = tmp_path / "t" / "_delta_log"
    newest = max(file.name[:20] for file in log.glob("*.checkpoint*"))
    for file in [*log.glob("0*.json"), *log.glob("0*.crc")]:
        if file.name[:20] < newest:
            file.unlink()
    table.delete("key = '1'", {"by": "us"})
    sleep(1.1)  # so the first VACUUM of the purge deletes the removed file, by Delta's retention
    assert table.purge({"by": "us"}) > 0
    assert table.search_files(KEYS, "key = '1'")[1] == []
    assert keys_of(table) == ["2", "3", "4"]

"""Reads of a table by delta-rs equal Spark's; and which of the two is asked."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from dcp.errors import LakeError
from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.adapters.transaction import described
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.store.folder_location import FolderLocation
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.table_location import CommitFile, Located
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lake_tables import (
    DOCS,
    LakeIdentity,
    LakeTables,
    create_lake,
    ensure_replicas,
    open_lake,
)
from dcp.lake.tables.schema import REPLICA
from tests.lake.tables_at import by_spark, files_of, table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

STATEMENTS = (
    "INSERT INTO {docs} (vbucket, key, seqno, value) SELECT CAST(id % 2 AS INT), concat('k', id), "
    "CAST(id + 18446744073709551000BD AS DECIMAL(20,0)), CAST(concat('v', id) AS BINARY) "
    "FROM range(500)",
    "DELETE FROM {docs} WHERE key LIKE 'k7%'",  # deletion vectors
    "ALTER TABLE {docs} SET TBLPROPERTIES ('dcplake.a' = 'it''s \"url\" ü')",
    "UPDATE {docs} SET value = X'ff00' WHERE vbucket = 1",
    "OPTIMIZE {docs} FULL",
    "RESTORE TABLE {docs} TO VERSION AS OF 4",
    "VACUUM {docs} RETAIN 200 HOURS",
)

FEW_TASKS = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}  # of VACUUM: 10,000


def never() -> "SparkSession":
    """Starts Spark, as far as these tests allow it."""
    raise AssertionError("Spark was started")


@pytest.fixture(scope="module")
def made(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> LakeTables:
    """A lake whose replica was changed by many people."""
    location = LakeLocation(root=str(tmp_path_factory.mktemp("made") / "lake"))
    identity = LakeIdentity("lake-1", "default", "bucket-uuid", 2)
    lake = create_lake(SparkStore(lambda: spark, location), identity)
    ensure_replicas(lake, [DOCS])
    for statement in STATEMENTS:
        with described(spark, {}, FEW_TASKS):
            spark.sql(statement.format(docs=lake.table_sql(DOCS.name))).collect()
    return lake


@pytest.fixture
def changed(made: LakeTables, tmp_path: Path) -> LakeTables:
    """Returns a copy of that lake, with the times of its files."""
    shutil.copytree(made.location.path(""), tmp_path / "lake")
    return open_lake(SparkStore(lambda: made.spark, LakeLocation(root=str(tmp_path / "lake"))))


def docs_of(lake: LakeTables) -> FileTable:
    return files_of(lake.table(DOCS.name))


def folder_of(lake: LakeTables) -> Path:
    return Path(lake.location.path(DOCS.name))


def without_spark(table: FileTable) -> FileTable:
    return replace(table, start_spark=never)


@pytest.mark.parametrize("failure", [AttributeError, KeyError, OSError, ValueError])
@pytest.mark.parametrize("count", [0, 1])
def test_a_failure_of_who_takes_rows_does_not_start_spark(
    tmp_path: Path, failure: type[Exception], count: int
) -> None:
    table = table_at(FolderLocation(tmp_path / "t"))
    table.create(pa.schema({"id": pa.string()}), (), {})
    table.append(pa.table({"id": ["a", "b"]}), {})

    def take(rows: Iterator[dict[str, Any]]) -> None:
        assert len(list(islice(rows, count))) == count
        raise failure("ours")

    with pytest.raises(failure, match="ours"):
        table.take_rows("id", "true", take)


def test_rows_that_become_unreadable_as_they_are_taken_are_left_to_spark(tmp_path: Path) -> None:
    table = table_at(FolderLocation(tmp_path / "t"))
    table.create(pa.schema({"id": pa.string()}), (), {})
    table.append(pa.table({"id": ["a"]}), {})
    for file in (tmp_path / "t").glob("*.parquet"):
        file.write_bytes(b"damaged")
    with pytest.raises(AssertionError, match="Spark was started"):
        table.take_rows("id", "true", list)


@pytest.mark.parametrize("mistake", [AssertionError, AttributeError, KeyError, TypeError])
def test_a_mistake_in_our_program_does_not_start_spark(
    tmp_path: Path, mistake: type[Exception]
) -> None:
    table = table_at(FolderLocation(tmp_path / "t"))
    table.create(pa.schema({"id": pa.string()}), (), {})

    def statement(*_: object) -> str:
        raise mistake("ours")

    with pytest.raises(mistake, match="ours"):
        table.query(statement, pa.schema({"id": pa.string()}))


def test_the_log_says_once_why_spark_is_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where = str(tmp_path)
    table = table_at(FolderLocation(tmp_path / "t"), where)
    table.create(pa.schema({"id": pa.string()}), (), {})
    for log in (tmp_path / "t" / "_delta_log").glob("*.json"):
        log.write_text("{")
    with caplog.at_level("INFO"):
        for ask in (table.table_id, table.size):
            with pytest.raises(AssertionError, match="Spark was started"):
                ask()
    (told,) = (each for each in caplog.messages if each.endswith("Spark is asked"))
    assert told.startswith(f"{where}: ") and "\n" not in told


def test_rows_are_never_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is left to write them only where nothing was committed."""
    table = table_at(FolderLocation(tmp_path / "t"))
    rows = pa.table({"id": ["a"]})
    table.create(rows.schema, (), {})
    commit = FolderLocation.commit

    def fails_behind_the_commit(*given: Any) -> None:
        commit(*given)
        raise OSError("the folder is gone")

    with monkeypatch.context() as patch:
        patch.setattr(FolderLocation, "commit", fails_behind_the_commit)
        with pytest.raises(LakeError, match=r"the folder is gone; the rows may have been written"):
            table.append(rows, {})
    assert table.rows("id", "true") == [{"id": "a"}]
    table.append(rows, {})
    with pytest.raises(AssertionError, match="Spark was started"):
        table.append(pa.table({"other": ["a"]}), {})
    assert len(table.rows("id", "true")) == 2
    log = next((tmp_path / "t" / "_delta_log").glob("*0.json"))
    features = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines = [{"protocol": features} if "protocol" in line else line for line in lines]
    log.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(AssertionError, match="Spark was started"):
        table.append(rows, {})  # a feature that our commits do not know


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["key"]))


def test_both_read_the_same(changed: LakeTables) -> None:
    table = docs_of(changed)
    quick, slow = without_spark(table), by_spark(table)
    whole = history(slow, WHOLE)
    for limit in (1, 3, WHOLE):
        assert history(quick, limit) == whole[:limit]
    assert history(slow, 3) == whole[:3]
    told = slow.properties()
    assert quick.properties() == {name: told[name] for name in quick.properties()}
    assert {name for name in told if name.startswith("dcplake.")} <= quick.properties().keys()
    assert quick.columns() == slow.columns() == REPLICA
    for condition in ("true", "vbucket = 1 AND seqno IS NOT NULL", "key IN ('k1', 'k70')"):
        rows = in_order(quick.rows("vbucket, key, seqno, value", condition))
        assert rows == in_order(slow.rows("vbucket, key, seqno, value", condition))
    counted = quick.rows("count(*) AS found, max(seqno) AS newest", "true")
    polars_found = pl.scan_delta(str(folder_of(changed))).select(pl.len()).collect().item()
    assert counted[0]["found"] == polars_found == len(in_order(quick.rows("key", "true")))
    assert counted == slow.rows("count(*) AS found, max(seqno) AS newest", "true")


def test_after_a_checkpoint_and_without_the_files_before_it(changed: LakeTables) -> None:
    table = docs_of(changed)
    for number in range(4):  # Delta writes a checkpoint at version 10
        by_spark(table).set_properties({"dcplake.b": str(number)})
    log = folder_of(changed) / "_delta_log"
    checkpoint = max(int(file.name.split(".")[0]) for file in log.glob("*.checkpoint*.parquet"))
    for file in log.glob("*.json"):
        if int(file.stem) < checkpoint:
            file.unlink()
    quick, slow = without_spark(table), by_spark(table)
    assert history(quick, WHOLE) == history(slow, WHOLE)
    assert quick.properties()["dcplake.b"] == "3"
    assert quick.rows("count(*) AS found", "true") == slow.rows("count(*) AS found", "true")


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    table = table_at(FolderLocation(tmp_path / "x"), "the lake: table x")
    assert not table.exists()
    with pytest.raises(LakeError, match=r"^the lake: table x: found no Delta table there"):
        table.properties()


def test_other_columns_are_told_without_spark(tmp_path: Path) -> None:
    location = LakeLocation(root=str(tmp_path))
    store = SparkStore(never, location)
    create_lake(store, LakeIdentity("lake-1", "default", "bucket-uuid", 2))
    log = Path(location.path(CHANGES_TABLE)) / "_delta_log" / f"{0:020d}.json"
    text, kind = log.read_text(), r"\",\"type\":\""
    text = text.replace(rf"\"lock_time{kind}long", rf"\"lock_time{kind}string")
    log.write_text(text.replace(r"\"expiry\"", r"\"until\""))
    expected = r"lock_time string, until bigint, expected expiry bigint, lock_time bigint; restore"
    with pytest.raises(
        LakeError, match=f"changes: found the columns {expected}.* RESTORE TABLE delta"
    ):
        open_lake(SparkStore(never, location))


def test_spark_is_asked_where_the_log_cannot_be_read(changed: LakeTables) -> None:
    table, log = docs_of(changed), folder_of(changed) / "_delta_log"
    shutil.rmtree(log)
    log.mkdir()
    (log / "00000000000000000000.json").write_text("{")
    with pytest.raises(LakeError, match=r"files of the table's Delta log are damaged or gone"):
        table.properties()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions whose commits were read."""
    found: list[int] = []
    read = FolderLocation.read_commits

    def noted(location: FolderLocation, versions: Iterable[int]) -> Iterator[CommitFile]:
        for file in read(location, versions):
            found.append(file.version)
            yield file

    monkeypatch.setattr(FolderLocation, "read_commits", noted)
    return found


def test_a_log_is_read_again_only_where_something_came(
    changed: LakeTables, reads: list[int]
) -> None:
    newest = history(docs_of(changed), 3)
    whole = history(docs_of(changed), 50)
    assert history(docs_of(changed), 50) == whole
    assert history(docs_of(changed), 3) == whole[:3] == newest
    assert reads == [each.version for each in whole], "each once"
    reads.clear()
    docs = changed.table_sql(DOCS.name)
    changed.spark.sql(f"ALTER TABLE {docs} SET TBLPROPERTIES ('dcplake.c' = '1')").collect()
    newer = history(docs_of(changed), 50)
    assert [each.version for each in newer] == [whole[0].version + 1, *(c.version for c in whole)]
    assert history(docs_of(changed), WHOLE) == newer
    assert reads == [newer[0].version]


def test_a_table_that_was_made_anew_is_read_anew(
    changed: LakeTables, tmp_path: Path, reads: list[int]
) -> None:
    folder, copy = folder_of(changed), tmp_path / "copy"
    before = history(docs_of(changed))
    shutil.copytree(folder, copy)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder, copy_function=shutil.copy)
    after = history(docs_of(changed))
    assert reads == 2 * [each.version for each in before]
    assert [each.version for each in after] == [each.version for each in before]
    assert after[0].time == before[0].time, "a copy tells when its commits were made"
    shutil.rmtree(folder)
    assert not docs_of(changed).exists()


@pytest.mark.parametrize(
    ("name", "seconds"), [("copy", -(10**8)), ("100% [new] {a,b}", 3600), (r"100% \[a", 3600)]
)
def test_a_copied_lake_tells_when_its_commits_were_made(
    made: LakeTables, tmp_path: Path, name: str, seconds: float
) -> None:
    before = history(docs_of(made), WHOLE)
    copied_at = before[0].time.timestamp() + seconds
    shutil.copytree(made.location.path(""), tmp_path / name)
    for file in (tmp_path / name).rglob("*"):
        os.utime(file, (copied_at, copied_at))  # as a later copy has, or an image of fixed times
    lake = open_lake(SparkStore(lambda: made.spark, LakeLocation(root=str(tmp_path / name))))
    table = lake.table(DOCS.name)
    for each in (table, by_spark(table)):
        assert [commit.time for commit in history(each, WHOLE)] == [it.time for it in before]


def test_a_commit_of_a_clock_that_is_ahead_is_as_old_as_its_file(changed: LakeTables) -> None:
    """Heartbeats go by that time: of a commit that seems young there would be none."""
    table = docs_of(changed)
    before = history(table, WHOLE)
    log = folder_of(changed) / "_delta_log"
    newest = log / f"{before[0].version:020d}.json"
    made_at = newest.stat().st_mtime
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["timestamp"] += 10**12
    newest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(newest, (made_at, made_at))
    for checksum in log.glob(".*.crc"):  # Hadoop's
        checksum.unlink()
    for each in (table, by_spark(table)):
        found = history(each, WHOLE)
        assert abs((found[0].time - before[0].time).total_seconds()) < 1


def test_a_note_is_read_by_files_and_by_spark_and_stays_when_vacuum_runs(
    changed: LakeTables,
) -> None:
    name, store = "_note.json", changed.store
    assert isinstance(store, SparkStore)
    by_spark_alone = SparkStore(lambda: store.spark, store.location)
    at = store.location.spark_path(CHANGES_TABLE)
    by_spark_alone.located[CHANGES_TABLE] = Located(at, None)
    assert store.noted(name) is None and by_spark_alone.noted(name) is None
    store.note(name, b'{"n": 1}')
    assert by_spark_alone.noted(name) == b'{"n": 1}'
    by_spark_alone.note(name, b'{"n": 2}')
    assert store.noted(name) == b'{"n": 2}'
    os.utime(Path(store.location.path(CHANGES_TABLE)) / name, (0, 0))
    with described(store.spark, {}, FEW_TASKS):
        store.spark.sql(f"VACUUM {changed.changes_sql} RETAIN 200 HOURS").collect()
    assert store.noted(name) == b'{"n": 2}'

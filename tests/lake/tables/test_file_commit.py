"""Commits of data files without Spark: what Spark reads of them, and that one writer wins."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dcp.errors import LakeError
from dcp.lake.store.data_file import DataFile, DataFileWriter, FileContents
from dcp.lake.store.file_commit import commit_files, takes_files
from dcp.lake.store.folder_location import FolderLocation
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.table import CommitConflictError
from dcp.lake.store.table_location import TableLocation
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.schema import CHANGES, CHANGES_STATISTICS
from tests.lake import tables_at
from tests.lake.conftest import NewLake
from tests.lake.rounds_in_store import make_table

pytestmark = pytest.mark.slow

WRITERS = 8


@pytest.fixture
def lake(new_lake: NewLake) -> Iterator[LakeTables]:
    yield new_lake(2)


def folder_of(lake: LakeTables) -> Path:
    return Path(lake.location.path("changes"))


def location_of(lake: LakeTables) -> TableLocation:
    return tables_at.location_of(lake.changes)


def written(location: TableLocation, *rows: dict[str, Any]) -> DataFile:
    with DataFileWriter(location, FileContents(CHANGES, CHANGES_STATISTICS, 1_000_000)) as writer:
        writer.write(pa.RecordBatch.from_pylist(list(rows), schema=CHANGES))
        file = writer.finish()
    assert file is not None
    return file


def commit(location: TableLocation, read_version: int, round_number: int) -> DataFile:
    file = written(location, {"round": round_number, "vbucket": round_number % 2, "kind": "status"})
    commit_files(location, [file], read_version, ("app", round_number), f"round {round_number}")
    return file


def test_spark_reads_prunes_describes_and_compacts_what_was_committed(lake: LakeTables) -> None:
    folder, name, spark = folder_of(lake), lake.changes_sql, lake.spark
    location = location_of(lake)
    assert takes_files(location, location.open())
    log = folder / "_delta_log"
    files = {number: commit(location_of(lake), number - 1, number) for number in range(1, 26)}
    assert sorted(file.name for file in log.glob("*.checkpoint.parquet")) == [
        "00000000000000000010.checkpoint.parquet",
        "00000000000000000020.checkpoint.parquet",
    ]
    assert not list(log.glob(".*.tmp"))
    for version in range(20):  # as if the log's retention were over: the checkpoint has it all
        (log / f"{version:020d}.json").unlink()
    rounds = spark.sql(f"SELECT round, vbucket FROM {name} ORDER BY round").collect()
    assert [tuple(row) for row in rounds] == [(number, number % 2) for number in range(1, 26)]
    newest = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()[0]
    assert (newest["version"], newest["operation"], newest["userMetadata"]) == (
        25,
        "WRITE",
        "round 25",
    )
    assert newest["operationMetrics"]["numOutputRows"] == "1"
    [detail] = spark.sql(f"DESCRIBE DETAIL {name}").collect()
    assert (detail["numFiles"], detail["clusteringColumns"]) == (25, ["round"])
    others = [file for number, file in files.items() if number != 7]
    for file in others:
        (folder / file.name).rename(folder / f"_{file.name}")
    found = spark.sql(f"SELECT count(*) FROM {name} WHERE round = 7 AND kind LIKE 's%'").collect()
    assert found[0][0] == 1, "the statistics let Spark skip the others"
    for file in others:
        (folder / f"_{file.name}").rename(folder / file.name)
    spark.sql(f"DELETE FROM {name} WHERE round <= 3")  # by deletion vectors
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"DELETE FROM {name} WHERE round <= 5")
    commit(location_of(lake), history(lake.changes)[0].version, 26)
    assert spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0] == 21


def test_spark_skips_an_append_of_a_transaction_that_was_committed(lake: LakeTables) -> None:
    commit(location_of(lake), 0, 1)
    frame = lake.spark.sql(f"SELECT * FROM {lake.changes_sql}")
    append = frame.write.format("delta").mode("append").option("txnAppId", "app")
    append.option("txnVersion", "1").save(lake.location.path("changes"))
    assert history(lake.changes)[0].version == 1


def test_of_many_writers_on_one_version_one_wins(lake: LakeTables) -> None:
    folder = folder_of(lake)

    def attempt(number: int) -> bool:
        try:
            commit(location_of(lake), 0, number)
        except CommitConflictError as taken:
            assert "00000000000000000001.json: found a commit there" in str(taken)
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        assert sum(pool.map(attempt, range(1, WRITERS + 1))) == 1
    assert lake.spark.sql(f"SELECT count(*) FROM {lake.changes_sql}").collect()[0][0] == 1
    assert not list((folder / "_delta_log").glob(".*.tmp"))


def test_a_commit_stands_when_its_checkpoint_fails(
    lake: LakeTables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(DeltaTable, "create_checkpoint", fail)
    for round_number in range(1, 11):
        commit(location_of(lake), round_number - 1, round_number)
    assert history(lake.changes)[0].version == 10
    assert "version 10 has no checkpoint: the disk is full" in caplog.text


@pytest.mark.parametrize("interval", ["0", "-1", "many", "²"])
def test_an_interval_of_checkpoints_that_is_no_number_from_one_on_counts_as_deltas_ten(
    tmp_path: Path, interval: str
) -> None:
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    location = FolderLocation(tmp_path / "t")
    make_table(location, properties={"delta.checkpointInterval": interval})
    for version in range(10):
        commit(location, version, version + 1)
    assert [file.name[:20] for file in log.glob("*.checkpoint.parquet")] == [f"{10:020d}"]


def test_a_stale_transaction_commits_nothing(lake: LakeTables) -> None:
    commit(location_of(lake), 0, 2)
    commit(location_of(lake), 1, 2)
    commit(location_of(lake), 1, 1)
    assert history(lake.changes)[0].version == 1


def test_spark_trusts_our_checkpoint_that_follows_one_of_its_own(lake: LakeTables) -> None:
    folder, name = folder_of(lake), lake.changes_sql
    for version in range(9):
        commit(location_of(lake), version, version + 1)
    lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('note' = 'x')")  # version 10
    checksum = folder / "_delta_log" / "._last_checkpoint.crc"
    assert checksum.exists(), "Spark's own checkpoint has one"
    for version in range(10, 20):
        commit(location_of(lake), version, version + 1)
    assert not checksum.exists(), "it would be of another file"
    rows = lake.spark.newSession().sql(f"SELECT count(*) FROM {name}").collect()
    assert rows[0][0] == 19


def test_a_commit_waits_for_one_of_spark_in_another_thread(lake: LakeTables) -> None:
    with ThreadPoolExecutor(1) as pool:
        with location_of(lake).commits_blocked():
            committing = pool.submit(commit, location_of(lake), 0, 1)
            with pytest.raises(TimeoutError):
                committing.result(0.5)
            assert history(lake.changes)[0].version == 0
        committing.result(60)
    assert history(lake.changes)[0].version == 1


def test_a_folder_whose_name_delta_rs_would_decode_is_left_to_spark(tmp_path: Path) -> None:
    for name in ("a%20b", "a\\b"):
        location = LakeLocation(root=str(tmp_path / name))
        assert location.of_table("changes") is None
    assert LakeLocation(root=str(tmp_path / "a b")).of_table("x") is not None


def test_files_that_are_not_there_are_not_committed(lake: LakeTables) -> None:
    folder = folder_of(lake)
    file = written(location_of(lake), {"round": 1})
    (folder / file.name).unlink()
    with pytest.raises(
        LakeError, match=r"found no such file.*must have lake.root at the same path"
    ):
        commit_files(location_of(lake), [file], 0, ("app", 1), "")
    assert history(lake.changes)[0].version == 0


def test_the_log_is_cleaned_with_a_checkpoint_unless_it_shall_not(lake: LakeTables) -> None:
    folder, name = folder_of(lake), lake.changes_sql
    log = folder / "_delta_log"
    old = time.time() - 30 * 24 * 3600  # the log is kept for two weeks
    keep = "'delta.enableExpiredLogCleanup' = 'false', 'delta.checkpointInterval' = '5'"
    lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({keep})")
    leftover = log / ".00000000000000000003.json.x.tmp"
    leftover.touch()
    for file in (leftover, log / f"{0:020d}.json"):
        os.utime(file, (old, old))
    for version in range(1, 10):
        commit(location_of(lake), version, version)
        os.utime(log / f"{version:020d}.json", (old, old))
    assert len(list(log.glob("*.json"))) == 11
    assert not leftover.exists(), "of a process that was killed a day ago"
    lake.spark.sql(
        f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableExpiredLogCleanup' = 'true')"
    )
    for version in range(11, 15):
        commit(location_of(lake), history(lake.changes)[0].version, version)
    kept = sorted(int(file.stem) for file in log.glob("*.json"))
    assert kept[0] in (5, 10) and kept[-1] == 15
    assert lake.spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0] == 13


def test_tables_that_ask_more_of_writers_are_left_to_spark(
    lake: LakeTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(lake)

    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        assert not takes_files(location_of(lake), location_of(lake).open())
    assert takes_files(location_of(lake), location_of(lake).open())
    assert not list((folder / "_delta_log").glob(".*.tmp"))
    wanted = "'delta.enableInCommitTimestamps' = 'true'"
    lake.spark.sql(f"ALTER TABLE {lake.changes_sql} SET TBLPROPERTIES ({wanted})")
    assert not takes_files(location_of(lake), location_of(lake).open())

"""Tables of a catalog are looked up once and read like files; or Spark alone reads them."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
import pytest

from dcp.errors import LakeError
from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.adapters.spark_table import SparkTable
from dcp.lake.config.storage_options import LOG_STORE, options_of_delta_rs
from dcp.lake.store.folder_location import FolderLocation
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.object_location import ObjectLocation
from tests.lake.object_store import BUCKET, SECRET_KEY, ObjectStore
from tests.lake.tables_at import location_of, table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: Final = "looked_up"
PROPERTIES: Final = {"dcplake.a": "1"}

pytestmark = pytest.mark.slow


@pytest.fixture
def store(spark: "SparkSession") -> Iterator[SparkStore]:
    spark.sql(f"CREATE SCHEMA {SCHEMA}")
    yield SparkStore(lambda: spark, LakeLocation(schema=f"spark_catalog.{SCHEMA}"))
    spark.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


def made(store: SparkStore, name: str, also: str = "") -> FileTable | SparkTable:
    """Return a table with one row."""
    name_in_sql = store.location.table_sql(name)
    store.spark.sql(f"CREATE TABLE {name_in_sql} USING delta {also} AS SELECT 'a' AS id")
    return store.table(name)


def refuse_statements(store: SparkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the session refuse each statement."""

    def refuse(*_: object) -> None:
        raise AssertionError("Spark was asked")

    monkeypatch.setattr(type(store.spark), "sql", refuse)


def test_a_table_is_read_and_appended_to_by_files_as_soon_as_it_is_there(
    store: SparkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.table("control")
    assert not table.exists()
    with pytest.raises(LakeError, match="found no Delta table there"):
        table.properties()
    rows = pa.table({"id": ["a"]})
    table.create(rows.schema, (), PROPERTIES)
    assert isinstance(location_of(store.table("control")), FolderLocation)
    with monkeypatch.context() as patch:
        refuse_statements(store, patch)
        known = store.table("control")
        known.append(rows, {})
        assert known.rows("id", "true") == [{"id": "a"}]
        assert known.properties()["dcplake.a"] == "1"
        assert known.exists() and known.size().files == 1
    [row] = store.spark.sql(f"SELECT id FROM {table.sql}").collect()
    assert row.id == "a"


@pytest.mark.parametrize(("folder", "by_files"), [("a b ü", True), ("a%20b", False)])
def test_names_of_folders_that_delta_rs_would_decode_are_left_to_spark(
    store: SparkStore, tmp_path: Path, folder: str, by_files: bool
) -> None:
    table = made(store, "docs", f"LOCATION '{tmp_path / folder}'")
    assert isinstance(table, FileTable) == by_files
    assert not by_files or location_of(table) == FolderLocation(tmp_path / folder)
    assert table.rows("id", "true") == [{"id": "a"}]


def test_a_comment_that_looks_like_a_location_is_none(store: SparkStore, tmp_path: Path) -> None:
    table = made(store, "docs", f"COMMENT 'x\nLocation: file:{tmp_path}'")
    location = location_of(table)
    assert isinstance(location, FolderLocation) and location.path.name == "docs"
    assert table.rows("id", "true") == [{"id": "a"}]


def test_views_and_tables_of_other_formats_are_left_to_spark(store: SparkStore) -> None:
    spark = store.spark
    spark.sql(f"CREATE VIEW {SCHEMA}.docs AS SELECT 'v' AS id")
    spark.sql(f"CREATE TABLE {SCHEMA}.changes USING parquet AS SELECT 'p' AS id")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW control AS SELECT 't' AS id")
    assert not store.table("control").exists(), "a temporary view is none of the schema"
    for name, found in (("docs", "v"), ("changes", "p")):
        assert type(store.table(name)) is SparkTable
        assert store.table(name).rows("id", "true") == [{"id": found}]


def test_files_out_of_reach_are_left_to_spark_with_one_line(
    store: SparkStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(location: FolderLocation, _: int) -> NoReturn:
        raise PermissionError(f"{location}: permission denied")

    caplog.set_level("DEBUG", "dcp")
    monkeypatch.setattr(FolderLocation, "commits_from", refuse)
    table = made(store, "docs")
    for _ in range(3):
        assert store.table("docs").rows("id", "true") == [{"id": "a"}]
    [line] = [each for each in caplog.messages if "docs" in each]
    assert "permission denied" in line and line.endswith("Spark is asked")
    assert store.location_of_files("docs") is None
    assert table.exists()


def test_a_table_that_is_dropped_and_made_again_is_found_where_it_is(
    store: SparkStore, tmp_path: Path
) -> None:
    table = made(store, "docs")
    before = table.table_id()
    store.spark.sql(f"DROP TABLE {table.sql}")
    assert not table.exists()
    made(store, "docs")
    assert table.exists() and isinstance(store.table("docs"), FileTable)
    store.spark.sql(f"DROP TABLE {table.sql}")
    made(store, "docs", f"LOCATION '{tmp_path / 'elsewhere'}'")
    assert table.exists()
    assert table.table_id() != before
    assert location_of(store.table("docs")) == FolderLocation(tmp_path / "elsewhere")


def test_no_files_go_to_a_table_that_the_catalog_has_elsewhere_by_then(
    store: SparkStore, tmp_path: Path
) -> None:
    """Its files stay: it was no table whose files the catalog manages."""
    table = made(store, "docs", f"CLUSTER BY (id) LOCATION '{tmp_path / 'here'}'")
    assert store.location_of_files("docs") == FolderLocation(tmp_path / "here")
    store.spark.sql(f"DROP TABLE {table.sql}")
    with pytest.raises(LakeError, match=r"the catalog has no such table, expected file:.*/here"):
        store.location_of_files("docs")
    made(store, "docs", f"CLUSTER BY (id) LOCATION '{tmp_path / 'there'}'")
    assert store.location_of_files("docs") == FolderLocation(tmp_path / "there")


def test_tables_whose_commits_a_catalog_coordinates_are_left_to_spark(tmp_path: Path) -> None:
    location = FolderLocation(tmp_path / "t")
    table = table_at(location)
    table.create(pa.schema({"id": pa.string()}), (), {})
    assert table.read_delta_log() is not None
    log = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    coordinated = {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["coordinatedCommits-preview"],
    }
    lines = [{"protocol": coordinated} if "protocol" in line else line for line in lines]
    log.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(AssertionError, match="Spark was started"):
        table.properties()


def test_a_location_on_s3_is_opened_by_the_storage_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ObjectStore() as server:
        path = f"{BUCKET}/catalog/docs"
        options = options_of_delta_rs(f"s3://{BUCKET}", server.options, {}, {})
        assert options is not None
        at = table_at(ObjectLocation(f"s3://{path}", options))
        at.create(pa.schema({"id": pa.string()}), (), PROPERTIES)
        asked: list[str] = []

        def way(bucket: str) -> dict[str, str] | None:
            asked.append(bucket)
            return options_of_delta_rs(bucket, server.options, {}, {})

        location = LakeLocation(schema="main.travel", way=way)
        monkeypatch.setattr(SparkTable, "catalog_location", lambda *_: f"s3a://{path}")
        conf = {"spark.delta.logStore.s3a.impl": LOG_STORE}
        session: Any = SimpleNamespace(conf=conf)
        store = SparkStore(lambda: session, location)
        table = store.table("docs")
        assert table.properties()["dcplake.a"] == "1"
        assert asked == [f"s3a://{BUCKET}"]
        assert SECRET_KEY not in repr(table) + repr(store)
        unknown = SparkStore(lambda: session, LakeLocation(schema="main.travel"))
        assert type(unknown.table("docs")) is SparkTable
        conf["spark.delta.logStore.s3a.impl"] = "io.delta.storage.S3DynamoDBLogStore"
        anew = SparkStore(lambda: session, location)
        assert type(anew.table("docs")) is SparkTable, "it knows the newest commits"

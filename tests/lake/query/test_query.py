"""The plain names of a lake's tables: right, and in nobody's way."""

import json
import logging
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dcp.cli.main import main
from dcp.errors import ConfigError, DcplakeError, FencedError
from dcp.lake.query import answers as query
from dcp.lake.query import plain_names
from dcp.lake.tables.lake_tables import DOCS
from tests.lake.conftest import NewLake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def somebody(spark: "SparkSession") -> "Iterator[SparkSession]":
    """A session with a table ``docs`` of somebody else in its current schema."""
    spark.sql("USE default")
    spark.sql("CREATE TABLE default.docs USING delta AS SELECT 42 AS theirs")
    yield spark
    spark.sql("USE spark_catalog.default")
    spark.sql("DROP TABLE default.docs")
    for view in ("changes", "docs"):
        spark.sql(f"DROP VIEW IF EXISTS {view}")


def test_other_tables_of_these_names_stay(somebody: "SparkSession", new_lake: NewLake) -> None:
    first, second = new_lake(1), new_lake(2)
    for lake in (first, second, first):
        plain_names.name_tables(lake, [DOCS])
        assert "key" in somebody.sql("SELECT * FROM docs VERSION AS OF 0").columns
        found = somebody.sql("DESCRIBE DETAIL changes").collect()[0]["location"]
        assert found.endswith(lake.location.path("changes"))
    assert somebody.sql("SELECT theirs FROM default.docs").collect()[0][0] == 42


def test_a_statement_that_loses_to_another_commit_is_fenced(
    spark: "SparkSession", tmp_path: Path
) -> None:
    folder = str(tmp_path / "theirs")
    spark.range(3).write.format("delta").save(folder)

    def commit_beside(number: int) -> bool:
        if DeltaTable(folder).version() == 0:
            write_deltalake(folder, pa.table({"id": [number]}), mode="append")
        return True

    spark.udf.register("commit_beside", commit_beside, "boolean")
    with pytest.raises(FencedError, match=r"^SQL: DELTA_CONCURRENT_\w+.*wrote nothing"):
        query.answer(spark, f"UPDATE delta.`{folder}` SET id = 7 WHERE commit_beside(id)")
    assert sorted(spark.read.format("delta").load(folder).toPandas()["id"]) != [7, 7, 7]


def test_no_folder_stays(
    somebody: "SparkSession",
    new_lake: NewLake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "with spaces and 100%"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    plain_names.name_tables(new_lake(1), [DOCS])
    assert "key" in somebody.sql("SELECT * FROM docs VERSION AS OF 0").columns
    assert list(tmp_path.rglob("*dcplake_*")) == []


def test_nothing_is_made_in_a_catalog_that_stays(
    somebody: "SparkSession", new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(1)
    monkeypatch.setattr(plain_names, "catalog_ends_with_session", lambda _: False)
    databases = somebody.sql("SHOW DATABASES").collect()
    plain_names.name_tables(lake, [DOCS])
    assert somebody.sql("SHOW DATABASES").collect() == databases
    assert somebody.sql("SELECT theirs FROM default.docs").collect()[0][0] == 42
    assert "key" in somebody.sql("SELECT * FROM docs").columns
    with pytest.raises(ConfigError, match=r"for time travel name the table delta.`<folder"):
        query.answer(somebody, "SELECT * FROM docs VERSION AS OF 0")


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("SELECT\n 1/0", r"\[DIVIDE_BY_ZERO\] .* SQLSTATE: 22012 \(line 2, position 2\)$"),
        ("SELECT cast('a' AS int)", r"\[CAST_INVALID_INPUT\] .* \(line 1, position 8\)$"),
        (
            "SELECT raise_error('two\nlines')",
            r"\[USER_RAISED_EXCEPTION\] two lines SQLSTATE: P0001$",
        ),
        ("SELECT nosuch", r"`nosuch` cannot be resolved.* SQLSTATE: 42703; line 1 pos 7$"),
        ("SELEC", r"at or near 'SELEC'\. SQLSTATE: 42601 \(line 1, pos 0\)$"),
        pytest.param(
            "SELECT " + "(" * 5000 + "1" + ")" * 5000,
            r"nested too deeply for Spark, expected fewer brackets",
            id="brackets",
        ),
        ("SELECT interval 1 month", r"YearMonthIntervalType.*; this type .* cast it to STRING$"),
        ("SELECT map(array(1), 2)", r"a map whose keys hold arrays or maps; .* cast it to STRING$"),
    ],
)
def test_each_error_is_one_line(
    spark: "SparkSession", capfd: pytest.CaptureFixture[str], question: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        query.head(query.answer(spark, question), 1)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr().err == ""
    assert not logging.getLogger("SQLQueryContextLogger").disabled, "others may want it"


def test_a_file_that_is_gone_is_no_error_of_the_statement(
    spark: "SparkSession", tmp_path: Path
) -> None:
    spark.range(3).write.parquet(str(tmp_path / "gone"))
    found = query.answer(spark, f"SELECT * FROM parquet.`{tmp_path}/gone`")
    for file in (tmp_path / "gone").glob("*.parquet"):
        file.unlink()
    with pytest.raises(DcplakeError, match=r"damaged or gone") as raised:
        query.head(found, 5)
    assert raised.value.exit_code == 7
    assert "\n" not in str(raised.value)


def test_naming_the_tables_leaves_no_folder(
    spark: "SparkSession",
    new_lake: NewLake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    plain_names.name_tables(new_lake(1), [DOCS])
    assert "key" in spark.sql("SELECT * FROM docs VERSION AS OF 0").columns
    assert list(temporary.iterdir()) == []
    spark.sql("USE spark_catalog.default")


TIMES: Final = (
    ("TIMESTAMP'2020-02-29 12:00:00.25Z'", "2020-02-29T12:00:00.25+00:00"),
    ("TIMESTAMP'0001-01-01 00:00:00Z'", "0001-01-01T00:00:00+00:00"),
    ("TIMESTAMP'9999-12-31 23:59:59.999999Z'", "9999-12-31T23:59:59.999999+00:00"),
    ("timestamp_seconds(400000000000)", "+14645-06-30T15:06:40+00:00"),
    ("TIMESTAMP_NTZ'0001-01-01 00:00:00'", "0001-01-01T00:00:00"),
    ("DATE'0001-01-01'", "0001-01-01"),
    ("CAST(NULL AS TIMESTAMP)", None),
    ("array(TIMESTAMP'1970-01-01 00:00:00Z', NULL)", ["1970-01-01T00:00:00+00:00", None]),
    (
        "map(TIMESTAMP'1970-01-01 00:00:00Z', named_struct('a.b', DATE'1582-10-04', 'n', 1))",
        {"1970-01-01T00:00:00+00:00": {"a.b": "1582-10-04", "n": 1}},
    ),
    (
        "named_struct('a', 1, 'a', TIMESTAMP'1970-01-01 00:00:00Z')",
        {"a": 1, "a_2": "1970-01-01T00:00:00+00:00"},
    ),
)


def _cell(value: object) -> str:
    return "NULL" if value is None else json.dumps(value, separators=(",", ":"))


@pytest.fixture
def far_from_greenwich(monkeypatch: pytest.MonkeyPatch) -> "Iterator[None]":
    """The zone of this machine, in which PySpark makes Python's times."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_greenwich")
def test_times_of_any_year_are_told_in_utc_at_any_depth(
    spark: "SparkSession", new_lake: NewLake, capsys: pytest.CaptureFixture[str]
) -> None:
    user = spark.newSession()
    user.conf.set("spark.sql.session.timeZone", "America/New_York")
    user.createDataFrame([], "a INT")  # the active one, as in a notebook
    root = new_lake(1).location.root
    assert root is not None
    question = f"SELECT {', '.join(f'{sql} AS `the a`' for sql, _ in TIMES)}"
    assert main(["sql", "--lake", root, "--json", question]) == 0
    assert list(json.loads(capsys.readouterr().out).values()) == [told for _, told in TIMES]
    assert main(["sql", "--lake", root, question]) == 0
    [row] = capsys.readouterr().out.splitlines()[2:]
    cells = [cell if isinstance(cell, str) else _cell(cell) for _, cell in TIMES]
    assert row.split() == cells
    assert main(["sql", "--lake", root, "--json", "DESCRIBE HISTORY docs LIMIT 1"]) == 0
    told = datetime.fromisoformat(json.loads(capsys.readouterr().out)["timestamp"])
    assert told.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - told) < timedelta(hours=1)
    spark.createDataFrame([], "a INT")  # the active one again

"""``dcplake sql`` without ``--write``: what reads is run, what writes is not even begun."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.errors import ConfigError
from dcp.lake.query.answers import refuse_writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READING = [
    "SELECT * FROM scene",
    "  select a FROM scene;",
    "(SELECT a FROM scene) UNION ALL (SELECT 2) ORDER BY 1",
    "VALUES (1), (2);  ",
    "TABLE scene",
    "FROM scene SELECT a",
    "FROM scene |> WHERE a > 0",
    "WITH x AS (SELECT 1 AS a) SELECT * FROM x JOIN scene USING (a)",
    "WITH question AS (WITH question AS (SELECT 1) SELECT * FROM question) SELECT * FROM question",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT * FROM n;",
    "-- a comment\nSELECT 1",
    "-- DELETE FROM scene\n-- again\nDESCRIBE HISTORY scene",
    "/* DELETE FROM scene */ SELECT ')' AS text -- )",
    "/* one /* in another */ */ WITH x AS (SELECT ') DELETE FROM scene') SELECT * FROM x",
    "SELECT a FROM scene VERSION AS OF 0",
    "SELECT `DELETE` FROM (SELECT 1 AS `DELETE`)",
    "DESC scene",
    "describe detail scene",
    "SHOW TABLES",
    "SHOW TBLPROPERTIES scene",
    "EXPLAIN SELECT * FROM scene",
    "EXPLAIN EXTENDED WITH x AS (SELECT 1) SELECT * FROM x",
    "EXPLAIN -- how\n FORMATTED TABLE scene",
]
"""They end without an error; what does not is no proof of anything."""

WRITING = [
    "DELETE FROM scene",
    "  delete from scene;",
    "UPDATE scene SET a = 2",
    "INSERT INTO scene VALUES (2)",
    "INSERT OVERWRITE scene SELECT 2",
    "MERGE INTO scene USING (SELECT 1 AS b) ON a = b WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE scene",
    "RESTORE TABLE scene TO VERSION AS OF 0",
    "OPTIMIZE scene",
    "VACUUM scene",
    "DROP TABLE scene",
    "ALTER TABLE scene SET TBLPROPERTIES ('a' = 'b')",
    "CREATE TABLE other AS SELECT 1 AS a",
    "CREATE OR REPLACE TEMP VIEW scene AS SELECT 1 AS a",
    "SET spark.sql.ansi.enabled = false",
    "USE default",
    "CALL something()",
    "WITH x AS (SELECT 2) INSERT INTO scene SELECT * FROM x",
    "WITH x AS (SELECT 1 AS b) MERGE INTO scene USING x ON a = b WHEN MATCHED THEN DELETE",
    "FROM scene INSERT INTO scene SELECT a",
    "FROM scene INSERT INTO scene SELECT a INSERT INTO scene SELECT a + 1",
    "FROM (SELECT 3 AS a) INSERT INTO scene SELECT a",
    "-- SELECT\nDELETE FROM scene",
    "-- a comment that goes on \\\nSELECT\nDELETE FROM scene",
    "/* SELECT */ DELETE FROM scene",
    "/* one /* in another */ SELECT */ DELETE FROM scene",
    "EXECUTE IMMEDIATE 'DELETE FROM scene'",
    "EXPLAIN EXECUTE IMMEDIATE 'DELETE FROM scene'",
    "explain extended execute immediate 'DELETE FROM scene'",
    "EXPLAIN -- how\nEXECUTE IMMEDIATE 'DELETE FROM scene'",
    "EXPLAIN /* SELECT */ EXECUTE IMMEDIATE 'DELETE FROM scene'",
    "EXPLAIN DELETE FROM scene",
    "BEGIN DELETE FROM scene; END",
    "BEGIN SELECT 1; DELETE FROM scene; END",
    "BEGIN EXECUTE IMMEDIATE 'DELETE FROM scene'; END",
    "DECLARE x INT DEFAULT 1",
]

NONSENSE = [
    "SELECT 1; DELETE FROM scene",
    "SHOW TABLES; DELETE FROM scene",
    "SELECT 1) DELETE FROM scene --",
    "VALUES (1)) DELETE FROM scene -- \\",
    "VALUES (1)) SELECT 1; DELETE FROM scene --",
    "VALUES (1)), x AS (DELETE FROM scene",
    "(SELECT 1; DELETE FROM scene)",
    "DESCRIBE EXECUTE IMMEDIATE 'DELETE FROM scene'",
    "SELECT * FROM (DELETE FROM scene)",
    "SELECT EXECUTE IMMEDIATE 'DELETE FROM scene'",
    "EXPLAIN SELECT 1; DELETE FROM scene",
    "SELECT 1 UNION DELETE FROM scene",
    "WITH x AS (DELETE FROM scene) SELECT * FROM x",
    "SELECT 1 BEGIN DELETE FROM scene; END",
    "",
    ";",
    "-- nothing",
]
"""No statement at all, by any reading: refused, or an error of Spark's."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("read_only")


@pytest.fixture(scope="module")
def scene(spark: "SparkSession", folder: Path) -> "Iterator[SparkSession]":
    spark.sql("CREATE DATABASE read_only")
    spark.sql("USE read_only")
    place = folder / "scene"
    spark.sql(f"CREATE TABLE scene USING delta LOCATION '{place}' AS SELECT 1 AS a")
    yield spark
    spark.sql("USE spark_catalog.default")
    spark.sql("DROP DATABASE read_only CASCADE")


def state(spark: "SparkSession") -> object:
    """Whatever one of these statements would change."""
    return (
        spark.sql("SELECT a FROM scene").collect(),
        [row["version"] for row in spark.sql("DESCRIBE HISTORY scene").collect()],
        spark.sql("SHOW TABLES").collect(),
        spark.sql("SHOW VIEWS").collect(),
        spark.conf.get("spark.sql.ansi.enabled"),
        spark.sql("SELECT current_database()").collect(),
    )


def commits(folder: Path) -> set[str]:
    """Return the commits of the table, without asking Spark."""
    return {file.name for file in (folder / "scene" / "_delta_log").glob("*.json")}


def test_what_reads_is_run(scene: "SparkSession", folder: Path) -> None:
    before, log = state(scene), commits(folder)
    for statement in READING:
        refuse_writing(scene, statement)
        scene.sql(statement).collect()
        assert commits(folder) == log, statement
    assert state(scene) == before


def test_what_writes_is_refused_and_does_nothing(
    scene: "SparkSession", folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before, log = state(scene), commits(folder)
    for statement in WRITING:
        with pytest.raises(ConfigError, match=r"run with --write only$") as refused:
            refuse_writing(scene, statement)
        assert "\n" not in str(refused.value)
        assert commits(folder) == log, statement
    assert state(scene) == before
    assert capfd.readouterr().err == ""


def test_what_is_no_statement_does_nothing_either(scene: "SparkSession", folder: Path) -> None:
    before, log = state(scene), commits(folder)
    for statement in NONSENSE:
        with pytest.raises(Exception, match=r"--write only|PARSE_SYNTAX_ERROR|PARSE_EMPTY"):
            refuse_writing(scene, statement)
            scene.sql(statement)
        assert commits(folder) == log, statement
    assert state(scene) == before


@pytest.mark.parametrize(
    "statement",
    ["EXPLAIN EXECUTE IMMEDIATE 'DELETE FROM scene'", "-- goes on \\\nSELECT\nDELETE FROM scene"],
)
def test_these_two_would_write(scene: "SparkSession", statement: str) -> None:
    """Why EXPLAIN is no proof, and why a comment is not skipped that Spark may read otherwise."""
    scene.sql("INSERT INTO scene VALUES (2)")
    scene.sql(statement).collect()
    assert scene.sql("SELECT a FROM scene").collect() == []

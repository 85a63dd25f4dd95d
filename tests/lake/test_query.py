"""The plain names of a lake's tables: right, and in nobody's way."""

from typing import TYPE_CHECKING

import pytest

from dcp.errors import ConfigError
from dcp.lake import query
from dcp.lake.tables import DOCS
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
        query.name_tables(lake, [DOCS])
        assert "key" in somebody.sql("SELECT * FROM docs VERSION AS OF 0").columns
        found = somebody.sql("DESCRIBE DETAIL changes").collect()[0]["location"]
        assert found.endswith(lake.location.path("changes"))
    assert somebody.sql("SELECT theirs FROM default.docs").collect()[0][0] == 42


def test_nothing_is_made_in_a_catalog_that_stays(
    somebody: "SparkSession", new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(1)
    monkeypatch.setattr(query, "catalog_ends_with_session", lambda _: False)
    databases = somebody.sql("SHOW DATABASES").collect()
    query.name_tables(lake, [DOCS])
    assert somebody.sql("SHOW DATABASES").collect() == databases
    assert somebody.sql("SELECT theirs FROM default.docs").collect()[0][0] == 42
    assert "key" in somebody.sql("SELECT * FROM docs").columns
    with pytest.raises(ConfigError, match=r"for time travel name the table delta.`<folder"):
        query.answer(somebody, "SELECT * FROM docs VERSION AS OF 0")

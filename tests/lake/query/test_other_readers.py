"""Readers without Spark read the tables, too; some calls only tables without deletion vectors."""

import re
from collections import Counter
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dcp.errors import ConfigError
from dcp.lake.run.replicate import run
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import PASSWORD, USER, settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PAGE: Final = (Path(__file__).parents[3] / "docs/howto/read-from.md").read_text(encoding="utf-8")


def blocks_of(section: str) -> list[str]:
    """The Python of a section of the page."""
    [text] = re.findall(rf"^## {section}\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    return re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


EVERY_TABLE: Final = blocks_of("With deletion vectors, and without")
WITHOUT_DELETION_VECTORS: Final = blocks_of("Only without deletion vectors")


[DUCKDB_DELTA] = Path(str(resources.files("duckdb_extension_delta"))).rglob(
    "delta.duckdb_extension"
)
"""The extension that ``INSTALL delta`` fetches, from a package. DuckDB checks its signature."""


LAST: Final = chr(0x10FFFF)
LAST_KEYS: Final = (LAST * 40, LAST * 40 + "x", LAST * 32 + "x", LAST * 61)
"""Statistics that cut strings after some characters have no larger one to round these up to."""


def found_by_key(spark: "SparkSession", table: str) -> dict[str, int]:
    """Which of LAST_KEYS Spark and delta-rs find, by how many of both."""

    def each_key(name: str) -> str:
        """Look up each key for itself, so that a reader skips files for each."""
        asked = (f"SELECT key FROM {name} WHERE key = '{key}'" for key in LAST_KEYS)
        return " UNION ALL ".join(asked)

    by_delta_rs = QueryBuilder().register("t", DeltaTable(table)).execute(each_key("t")).read_all()
    by_spark = spark.sql(each_key(f"delta.`{table}`")).toArrow()
    both = (pa.table(rows)["key"].to_pylist() for rows in (by_spark, by_delta_rs))
    found = Counter(chain.from_iterable(both))
    return {key: found[key] for key in LAST_KEYS}


def rows_by(block: str, table: str) -> int:
    """Run the page's Python; return how many rows it finds in a table."""
    names: dict[str, Any] = {"table": table}
    exec(compile(block, "read-from.md", "exec"), names)  # noqa: S102 -- it is our own page
    return len(names["rows"])


@pytest.mark.slow
@pytest.mark.parametrize("deletion_vectors", [True, False])
def test_who_reads_the_tables(
    tmp_path: Path, spark: "SparkSession", deletion_vectors: bool
) -> None:
    assert (len(EVERY_TABLE), len(WITHOUT_DELETION_VECTORS)) == (6, 3)
    duckdb.load_extension(str(DUCKDB_DELTA))
    lake = tmp_path / "lake"
    with ProducerCluster(ClusterSettings(vbuckets=4, users={USER: PASSWORD}, seed=1)) as cluster:
        chosen = {"root": str(lake), "deletion_vectors": deletion_vectors}
        settings = settings_for(cluster, tmp_path, lake=chosen)
        for number in range(100):
            cluster.set(b"key-%d" % number, b"1")
        for key in LAST_KEYS[:2]:
            cluster.set(key.encode(), b"1")
        run(settings, once=True, spark=spark)
        assert list(found_by_key(spark, str(lake / "docs")).values()) == [2, 2, 0, 0]
        for number in range(10):
            cluster.delete(b"key-%d" % number)
            cluster.set(b"key-%d" % (number + 10), b"2")
        for key in LAST_KEYS[1:]:
            cluster.set(key.encode(), b"2")
        run(settings, once=True, spark=spark)
        other = settings_for(
            cluster, tmp_path, lake=chosen | {"deletion_vectors": not deletion_vectors}
        )
        with pytest.raises(ConfigError, match=r"^lake\.deletion_vectors: found .*, but .*table ch"):
            run(other, once=True, spark=spark)

    counted = {
        table: spark.read.format("delta").load(str(lake / table)).count()
        for table in ("docs", "changes")
    }
    assert counted["docs"] == 90 + len(LAST_KEYS)
    assert found_by_key(spark, str(lake / "docs")) == dict.fromkeys(LAST_KEYS, 2)
    for table, expected in counted.items():
        found = {block: rows_by(block, str(lake / table)) for block in EVERY_TABLE}
        assert found == dict.fromkeys(EVERY_TABLE, expected)
        for block in WITHOUT_DELETION_VECTORS:
            if deletion_vectors:
                with pytest.raises(Exception, match=r"deletionVectors|deletion vectors"):
                    rows_by(block, str(lake / table))
            else:
                assert rows_by(block, str(lake / table)) == expected, block

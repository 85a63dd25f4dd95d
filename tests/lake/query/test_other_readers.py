"""Readers without Spark read the tables, too; some calls only tables without deletion vectors."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl
import pytest
from deltalake import DeltaTable, QueryBuilder

from dcp.errors import ConfigError
from dcp.lake.run.run import run
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from tests.lake.receiving import PASSWORD, USER, settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _by_query_builder(table: str) -> int:
    asked = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT * FROM t")
    return sum(batch.num_rows for batch in asked)


EVERY_TABLE: Final[dict[str, Callable[[str], int]]] = {
    "delta-rs QueryBuilder": _by_query_builder,
    "Polars read_delta": lambda table: pl.read_delta(table).height,
    "Polars scan_delta": lambda table: pl.scan_delta(table).collect().height,
}
WITHOUT_DELETION_VECTORS: Final[dict[str, Callable[[str], int]]] = {
    "delta-rs to_pandas": lambda table: len(DeltaTable(table).to_pandas()),
    "delta-rs to_pyarrow_table": lambda table: DeltaTable(table).to_pyarrow_table().num_rows,
    "delta-rs to_pyarrow_dataset": lambda table: (
        DeltaTable(table).to_pyarrow_dataset().count_rows()
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("deletion_vectors", [True, False])
def test_who_reads_the_tables(
    tmp_path: Path, spark: "SparkSession", deletion_vectors: bool
) -> None:
    lake = tmp_path / "lake"
    with ProducerCluster(ClusterSettings(vbuckets=4, users={USER: PASSWORD}, seed=1)) as cluster:
        chosen = {"root": str(lake), "deletion_vectors": deletion_vectors}
        settings = settings_for(cluster, tmp_path, lake=chosen)
        for number in range(100):
            cluster.set(b"key-%d" % number, b"1")
        run(settings, once=True, spark=spark)
        for number in range(10):
            cluster.delete(b"key-%d" % number)
            cluster.set(b"key-%d" % (number + 10), b"2")
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
    assert counted["docs"] == 90
    for table, expected in counted.items():
        found = {name: read(str(lake / table)) for name, read in EVERY_TABLE.items()}
        assert found == dict.fromkeys(EVERY_TABLE, expected)
        for name, read in WITHOUT_DELETION_VECTORS.items():
            if deletion_vectors:
                with pytest.raises(Exception, match=r"deletionVectors|deletion vectors"):
                    read(str(lake / table))
            else:
                assert read(str(lake / table)) == expected, name

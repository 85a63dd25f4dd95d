"""Replicates over Spark Connect and compares the tables with the producer: `test_connect` runs it.

A program of its own, since a process has either a classic session or one of Connect. The local
server takes its static settings from the builder; the client warns that it cannot change them.
"""

import os
import sys
import warnings
from pathlib import Path

from pyspark.sql import SparkSession

from dcp.lake.query.views import register_views
from dcp.lake.run.run import run
from dcp.lake.spark.runtime import find_java_home
from dcp.lake.spark.session import build_session, delta_settings, static_settings
from dcp.lake.tables.opening import lake_location
from dcp.lake.tables.tables import open_lake
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from tests.lake.receiving import settings_for
from tests.lake.replicas import (
    require_every_version_exact,
    require_live_exact,
    require_no_row_twice,
    rows_of,
)
from tests.quick_spark import QUICK_CONF


def connect(folder: Path) -> SparkSession:
    """Start a local server of Spark Connect and return its client's session."""
    warnings.simplefilter("ignore")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(find_java_home())
    builder = SparkSession.builder.remote("local[2]")
    warehouse = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    for key, value in (
        static_settings("1500m", None) | delta_settings() | QUICK_CONF | warehouse
    ).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def replicate(folder: Path) -> int:
    """Run three rounds; return how many versions of ``docs`` were compared."""
    session = connect(folder)
    spark = build_session()  # takes over the one that is there
    assert spark is session
    assert type(spark).__module__ == "pyspark.sql.connect.session"
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=5)) as cluster:
        settings = settings_for(cluster, folder)
        for start in (0, 30, 60):
            with cluster.batch():
                for number in range(start, start + 80):
                    cluster.set(b"key-%d" % number, b'{"n": %d}' % number)
            cluster.delete(b"key-%d" % start)
            run(settings, once=True, spark=spark)
        lake = open_lake(lambda: spark, lake_location(settings))
        versions = require_every_version_exact(lake, cluster)
        require_live_exact(lake, cluster, 3)
        register_views(lake)
        assert rows_of(lake, "docs_live") == rows_of(lake, lake.table_sql("docs"))
        require_no_row_twice(lake)
    session.stop()
    return versions


if __name__ == "__main__":
    print(f"exact versions: {replicate(Path(sys.argv[1]))}")

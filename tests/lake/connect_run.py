"""Replicates over Spark Connect and compares the tables with the producer; then runs all jobs.

`test_spark_connect` runs it: a process has either a classic session or one of Connect.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dcp.lake.config.settings import SparkSettings
from dcp.lake.query.views import register_views
from dcp.lake.run.replicate import run
from dcp.lake.spark.session import end_session, started_session
from dcp.lake.spark.session_settings import jars_settings, static_settings
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.job_series import commands_for, run_jobs
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import (
    require_every_version_exact,
    require_no_row_twice,
    rows_of,
)
from tests.lake.spark_processes import activated_environment, options_of, spark_process
from tests.quick_spark import QUICK_CONF


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Run a server whose tasks run in this Python; give its address."""
    conf = static_settings("1500m", None) | jars_settings() | QUICK_CONF
    conf |= {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    words = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer")
    with spark_process(
        folder / "server.log",
        r"Spark Connect server started at: (127\.0\.0\.1:\d+)",
        "spark-submit",
        *words,
        *options_of(conf),
        environment=activated_environment() | {"PYSPARK_PYTHON": sys.executable},
    ) as ready:
        yield f"sc://{ready[1]}"


def replicate(folder: Path, server: str) -> int:
    """Run a round, then each job; return how many versions of ``docs`` were compared."""
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, replicas=1, seed=5)) as cluster:
        settings = replace(settings_for(cluster, folder), spark=SparkSettings(master=server))

        def change(first: int) -> None:
            with cluster.batch():
                for number in range(first, first + 80):
                    cluster.set(b"key-%d" % number, b'{"n": %d}' % (first + number))
            cluster.delete(b"key-%d" % first)

        change(0)
        run(settings, once=True)
        spark = started_session()
        assert spark is not None
        assert type(spark).__module__ == "pyspark.sql.connect.session"
        change(30)
        cluster.wait_until_replicated()
        config = folder / "run.toml"
        config.write_text(
            f'[source]\nseeds = {json.dumps(cluster.seeds)}\nusername = "Administrator"\n'
            f'password_file = "{settings.source.password_file}"\n'
            f'[lake]\nroot = "{settings.lake.root}"\n[round]\nquiet_seconds = 1\n'
            f'[spark]\nmaster = "{server}"\n'
        )
        run_jobs(*commands_for(config))
        lake = lake_of(settings, spark)
        versions = require_every_version_exact(lake, cluster)
        register_views(lake)
        assert rows_of(lake, "docs_live") == rows_of(lake, lake.table_sql("docs"))
        require_no_row_twice(lake)
        end_session(spark)
    return versions


if __name__ == "__main__":
    place = Path(sys.argv[1])
    with connect_server(place) as address:
        print(f"exact versions: {replicate(place, address)}")

"""Spark settings for tests: many short statements on few rows, each plan used once.

They change how a statement is compiled, never what it does.
"""

from typing import Final

QUICK_JAVA_OPTIONS: Final = (
    # C1 alone gets a code cache of 48 MB; Spark fills it, then compiles in circles.
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=400m -XX:+UseSerialGC"
)

QUICK_CONF: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # Tables of a few hundred rows: a second task only costs its start.
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.driver.extraJavaOptions": QUICK_JAVA_OPTIONS,
}

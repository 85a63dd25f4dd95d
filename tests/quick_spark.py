"""Spark settings for tests: many short statements on few rows, each plan used once.

They change how a statement is compiled, never what it does.
"""

import json
from collections.abc import Mapping
from typing import Final

from dcp.lake.spark.jvm_options import jvm_options

_RARE_COMPILATION: Final = "-XX:CompileThresholdScaling=3"
"""Much of what runs in a test runs a few hundred times: to compile that takes longer."""

QUICK_JAVA_OPTIONS: Final = f"{jvm_options(is_long=False)} -XX:+UseSerialGC {_RARE_COMPILATION}"

QUICK_SQL_CONF: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # Tables of a few hundred rows: a second task only costs its start.
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # For a page that nobody opens each statement's plan is written out, at length by default.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "1",
    # Delta finds the files for a checksum by a statement in each commit; readers save one by it.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}

QUICK_CONF: Final = QUICK_SQL_CONF | {"spark.driver.extraJavaOptions": QUICK_JAVA_OPTIONS}


def spark_conf_toml(conf: Mapping[str, str]) -> str:
    """Return the section of a configuration file that gives a job these settings."""
    lines = (f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in conf.items())
    return "[spark.conf]\n" + "".join(lines)

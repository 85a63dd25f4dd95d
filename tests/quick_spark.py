"""Spark settings for tests: many short statements on few rows, each plan used once.

They change how a statement is compiled, never what it does.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(__file__).parents[1] / ".spark-tests.jsa"
"""The loaded classes of a JVM with Spark and Delta, where `tests.class_archive` has made it."""

ARCHIVE_SECONDS: Final = 120.0
"""More than a JVM takes at its end to write it."""

QUICK_JAVA_OPTIONS: Final = (
    # C1 alone gets a code cache of 48 MB; Spark fills it, then compiles in circles.
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=400m -XX:+UseSerialGC"
    # Without it the heap is collected five times while Spark's classes are being loaded.
    " -XX:MetaspaceSize=256m"
)


def _archive_option() -> list[str]:
    return [shlex.quote(f"-XX:SharedArchiveFile={ARCHIVE}")] if ARCHIVE.exists() else []


QUICK_SQL_CONF: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # Tables of a few hundred rows: a second task only costs its start.
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}

QUICK_CONF: Final = QUICK_SQL_CONF | {
    "spark.driver.extraJavaOptions": " ".join([QUICK_JAVA_OPTIONS, *_archive_option()])
}


def spark_conf_toml(conf: Mapping[str, str]) -> str:
    """Return the section of a configuration file that gives a job these settings."""
    lines = (f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in conf.items())
    return "[spark.conf]\n" + "".join(lines)

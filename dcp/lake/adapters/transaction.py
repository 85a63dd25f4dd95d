"""Sets session settings that fence a statement and describe its commit, and makes its views.

Delta reads the settings for *every* write of the session. They are therefore set for one statement,
and always restored.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dcp.lake.spark.failures import CONFLICT
from dcp.lake.store.failures import translated
from dcp.lake.store.sql import quoted
from dcp.lake.store.table import CommitConflictError, MissingVersionError, Transaction
from dcp.lake.tables.history import metadata_json
from dcp.lake.tables.schema import spark_ddl

_DELTA: Final = "spark.databricks.delta."

FEW_JOBS: Final = {"spark.sql.adaptive.enabled": "false"}
"""Session settings for a statement on little data: adaptive execution makes each stage a job."""

FEW_ROWS: Final = {"spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Session settings for a statement on few rows: Spark interprets their projections.

Otherwise, every task compiles Java code for them, which costs more than the rows. Scans and filters
are compiled in any case.
"""

FEW_JOBS_TO_JOIN: Final = {
    **FEW_JOBS,
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
}
"""The same for a join: a broadcast is also a job, and each partition makes a file."""

_MISSING_VERSION: Final = (
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "FileNotFoundException",
    "NoSuchKey",
)


def fenced(
    spark: SparkSession,
    transaction: Transaction,
    metadata: Mapping[str, Any],
    also: Mapping[str, str],
) -> AbstractContextManager[None]:
    """Fence the statements in the block by ``transaction``, which must be above the last one.

    A statement with an outdated version does nothing and raises nothing: read the commit back. The
    MERGE source is not materialised, so it must return the same rows every time. For the rest
    see `described`.
    """
    app_id, version = transaction
    fence = {
        _DELTA + "write.txnAppId": app_id,
        _DELTA + "write.txnVersion": str(version),
        _DELTA + "merge.materializeSource": "none",
    }
    return described(spark, metadata, {**fence, **also})


def delta_errors() -> AbstractContextManager[None]:
    """Replace Delta's errors by the errors of `dcp.lake.store.table`; pass any other on.

    Raises:
        CommitConflictError, MissingVersionError: see `dcp.lake.store.table`.
    """
    return translated(_delta_error)


def _delta_error(failure: Exception) -> Exception | None:
    # The class of Delta's error depends on where Spark's bridge met it. In tasks, and under Spark
    # Connect, only the text contains the condition.
    condition = failure.getCondition() if isinstance(failure, PySparkException) else None
    text = f"{condition or ''} {failure}"
    if CONFLICT.search(text):
        return CommitConflictError(str(failure))
    if any(mark in text for mark in _MISSING_VERSION):
        return MissingVersionError(str(failure))
    return None


@contextmanager
def described(
    spark: SparkSession, metadata: Mapping[str, Any], also: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Put ``metadata`` into the commits of the statements in the block, without a fence.

    ``also`` are further settings for these statements. Raises the errors of `delta_errors`.
    """
    named = {_DELTA + "commitInfo.userMetadata": metadata_json(metadata)}
    with delta_errors(), session_settings_for_a_while(spark, {**named, **(also or {})}):
        yield


@contextmanager
def session_settings_for_a_while(
    spark: SparkSession, settings: Mapping[str, str]
) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


@contextmanager
def memory_view(spark: SparkSession, name: str, table: pa.Table) -> Iterator[str]:
    """Yield the SQL name of a view of ``table``, which exists inside the block."""
    # PySpark 4.2 loses all rows after an empty chunk.
    frame = spark.createDataFrame(table.combine_chunks(), spark_ddl(table.schema))
    frame.createOrReplaceTempView(quoted(name))
    try:
        yield quoted(name)
    finally:
        spark.catalog.dropTempView(name)

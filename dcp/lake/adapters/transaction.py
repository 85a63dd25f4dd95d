"""Sets session settings that fence one statement and mark its commit, and makes views for one.

Delta reads them for *every* write of the session, so they are set for one statement and put back as
they were, whatever happens.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dcp.errors import DcplakeError
from dcp.lake.spark.failures import CONFLICT
from dcp.lake.store.sql import quoted
from dcp.lake.store.table import CommitConflictError, MissingVersionError, Transaction
from dcp.lake.tables.history import metadata_json
from dcp.lake.tables.schema import spark_ddl

_DELTA: Final = "spark.databricks.delta."

FEW_JOBS: Final = {"spark.sql.adaptive.enabled": "false"}
"""Session settings for a statement on little data: with others each stage is its own job."""

FEW_ROWS: Final = {"spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Session settings for a statement on few rows: Spark interprets their projections.

It would write and compile Java for them in every task: more work than the rows are. Scans and
filters are compiled all the same.
"""

FEW_JOBS_TO_JOIN: Final = {
    **FEW_JOBS,
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
}
"""The same for a join: each broadcast would be a job, too, and each partition a file."""

_MISSING_VERSION: Final = (
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "FileNotFoundException",
    "NoSuchKey",
)


@contextmanager
def fenced(
    spark: SparkSession,
    transaction: Transaction,
    metadata: Mapping[str, Any],
    also: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Fence the statements within by ``transaction``, which must be above the last one.

    A statement with a stale version does nothing and raises nothing: read the commit back. The
    source of a MERGE within is not copied to disk first: it must give the same rows every time.
    ``also`` are further settings for the same statements. Raises what `delta_errors` does.
    """
    app_id, version = transaction
    settings = {
        _DELTA + "write.txnAppId": app_id,
        _DELTA + "write.txnVersion": str(version),
        _DELTA + "commitInfo.userMetadata": metadata_json(metadata),
        _DELTA + "merge.materializeSource": "none",
        **(also or {}),
    }
    with delta_errors(), session_settings_for_a_while(spark, settings):
        yield


@contextmanager
def delta_errors() -> Iterator[None]:
    """Raise the port's errors for those of Delta; pass on any other.

    The class of Delta's error depends on where Spark's bridge met it; in tasks, and under Spark
    Connect, only the text has its condition.

    Raises:
        CommitConflictError, MissingVersionError: see `dcp.lake.store.table`.
    """
    try:
        yield
    except DcplakeError:
        raise
    except Exception as error:
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        text = f"{condition or ''} {error}"
        if CONFLICT.search(text):
            raise CommitConflictError(str(error)) from error
        if any(mark in text for mark in _MISSING_VERSION):
            raise MissingVersionError(str(error)) from error
        raise


@contextmanager
def described(
    spark: SparkSession, metadata: Mapping[str, Any], also: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Name the owner in the commits of the statements within; fences nothing.

    ``also`` are further settings for the same statements. Raises what `delta_errors` does.
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
    """Give the SQL name of a view of ``table``, which exists for the statements within."""
    # PySpark 4.2 loses every row behind an empty chunk.
    frame = spark.createDataFrame(table.combine_chunks(), spark_ddl(table.schema))
    frame.createOrReplaceTempView(quoted(name))
    try:
        yield quoted(name)
    finally:
        spark.catalog.dropTempView(name)

"""Checks the data quality of a replica table: a suite's expectations over one version.

All rows come from one version (later applies do not disturb a run), together with what the log
says about that version: the round that it was brought to, and each vbucket's complete seqno then.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dcp.errors import ConfigError, LakeError
from dcp.lake.log.applied import replica_status
from dcp.lake.log.log_slice import HeldVersion
from dcp.lake.quality.quality_engine import run_suite
from dcp.lake.quality.quality_report import QualityReport
from dcp.lake.quality.quality_suite import QualitySuite, load_suite
from dcp.lake.tables.schema import REPLICA
from dcp.lake.tables.sql import integer_list, quoted
from dcp.lake.tables.tables import DOCS, LakeTables, replicas_in


@dataclass(frozen=True, slots=True)
class ReplicaVersion:
    """One version of a replica table, as SQL, with what the log says about it.

    ``rows_sql`` and ``complete_sql`` are queries; the second gives ``vbucket`` and
    ``complete_seqno``, one row per vbucket.
    """

    table: str
    version: int
    applied_round: int
    vbucket_count: int
    rows_sql: str
    complete_sql: str


def check_replica(
    lake: LakeTables, table: str = DOCS.name, suite: QualitySuite | None = None
) -> QualityReport:
    """Return what ``suite`` (the installed one by default) finds in a replica's newest version.

    Raises:
        LakeError: there is no such table, or it lacks columns of a replica.
        ConfigError: a column of the suite is no valid SQL over the table.

    """
    return check_version(lake.spark, newest_version(lake, table), suite or load_suite())


def newest_version(lake: LakeTables, table: str) -> ReplicaVersion:
    """Return the newest version of a replica; whoever made it, so that nobody's rows are missed.

    Raises:
        LakeError: there is no such table in the lake.

    """
    replica = next((each for each in replicas_in(lake) if each.name == table), None)
    if replica is None:
        raise LakeError(
            f"{lake.location}: found no table {table}, expected a replica; replicate first"
        )
    status = replica_status(lake, replica)
    return ReplicaVersion(
        table=table,
        version=status.version,
        applied_round=status.round,
        vbucket_count=lake.identity.vbucket_count,
        rows_sql=f"SELECT * FROM {lake.table_sql(table)} VERSION AS OF {status.version}",
        complete_sql=_complete_sql(lake.changes_sql, status.held),
    )


def _complete_sql(changes_sql: str, held: HeldVersion) -> str:
    """Return the query for each vbucket's complete seqno; a stale one's is of an older round."""
    positions = (
        f"SELECT vbucket, position.complete_seqno FROM {changes_sql} WHERE kind = 'position'"
    )
    at_rounds: dict[int, list[int]] = {}
    for vbucket, number in sorted(held.stale.items()):
        at_rounds.setdefault(number, []).append(vbucket)
    fresh = f" AND vbucket NOT IN ({integer_list(sorted(held.stale))})" if held.stale else ""
    queries = [f"{positions} AND round = {held.round}{fresh}"]
    queries += [
        f"{positions} AND round = {number} AND vbucket IN ({integer_list(vbuckets)})"
        for number, vbuckets in at_rounds.items()
    ]
    return " UNION ALL ".join(queries)


def check_version(
    spark: SparkSession, replica: ReplicaVersion, suite: QualitySuite
) -> QualityReport:
    """Return what ``suite`` finds in the rows of ``replica``.

    Raises:
        LakeError: the rows lack columns of a replica.
        ConfigError: a column of the suite is no valid SQL over the rows.

    """
    rows = spark.sql(replica.rows_sql)
    if missing := [column.name for column in REPLICA if column.name not in rows.columns]:
        raise LakeError(
            f"{replica.table} version {replica.version}: found columns {', '.join(rows.columns)}; "
            f"expected {', '.join(missing)} too"
        )
    return QualityReport(
        table=replica.table,
        suite=suite.name,
        version=replica.version,
        applied_round=replica.applied_round,
        rows=rows.count(),
        results=run_suite(_with_suite_columns(spark, rows, replica, suite), suite),
    )


def _with_suite_columns(
    spark: SparkSession, rows: DataFrame, replica: ReplicaVersion, suite: QualitySuite
) -> DataFrame:
    """Add what a suite's SQL may use beside the replica's columns, then the suite's own columns.

    ``vbucket_count`` is how many vbuckets the bucket has, ``complete_seqno`` the vbucket's complete
    seqno at the applied round, null where there is none, ``checked_at`` the time of the check.

    An expression that gives NULL counts as false: Great Expectations would pass over it.
    """
    complete = spark.sql(replica.complete_sql).hint("broadcast")
    # A literal: both passes over the rows see the same time.
    checked_at = f"timestamp_micros({int(datetime.now(UTC).timestamp() * 1_000_000)})"
    facts = rows.join(complete, "vbucket", "left").selectExpr(
        "*",
        f"{int(replica.vbucket_count)} AS vbucket_count",
        f"{checked_at} AS checked_at",
    )
    for name, expression in suite.columns.items():
        try:
            # Connect resolves a query only when its schema is asked for.
            _ = facts.selectExpr(expression).schema
        except PySparkException as error:
            raise ConfigError(
                f"suite {suite.name!r}: column {name!r}: {str(error).splitlines()[0]}"
            ) from None
    return facts.selectExpr(
        "*",
        *(f"coalesce({sql}, false) AS {quoted(name)}" for name, sql in suite.columns.items()),
    )

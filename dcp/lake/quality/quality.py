"""Checks the data quality of a replica table: a suite's expectations over rows of one version.

All rows come from one version (later applies do not disturb a run), together with what the log
says about that version: the round that it was brought to, and each vbucket's complete seqno then.

By default the rows are those that changed since the newest version that passed. A row is left out
only if its vbucket is of the same epoch in both versions, complete as far or farther, and its seqno
was complete in the older one: the older version had the same row then. So after a rollback, or a
RESTORE, all rows of a vbucket count as changed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dcp.errors import ConfigError, LakeError
from dcp.lake.config.memory import MEBIBYTE
from dcp.lake.log.applied import ReplicaStatus, replica_status
from dcp.lake.log.log_slice import HeldVersion
from dcp.lake.quality.quality_engine import run_suite
from dcp.lake.quality.quality_report import CheckScope, QualityReport
from dcp.lake.quality.quality_results import PassedCheck, last_passed
from dcp.lake.quality.quality_suite import QualitySuite, load_suite
from dcp.lake.tables.schema import REPLICA
from dcp.lake.tables.sql import integer_list, quoted
from dcp.lake.tables.tables import DOCS, LakeTables, replicas_in

_COUNT: Final = pa.schema([("documents", pa.int64())])

_CACHED_BYTES: Final = 256 * MEBIBYTE
"""More rows are read from the table once more for each statement; in files they are smaller."""


@dataclass(frozen=True, slots=True)
class ReplicaVersion:
    """One version of a replica table, as SQL, with what the log says about it.

    ``rows_sql`` and ``complete_sql`` are queries; the second gives ``vbucket``, ``epoch`` and
    ``complete_seqno``, one row per vbucket. ``scope`` says which rows those are; ``since`` is the
    check that this one goes on from, and ``since_sql`` the same as ``complete_sql`` at its round;
    without it all rows are checked.
    ``facts`` are those about the table that a suite may use (`TABLE_FACTS`), if there is one;
    ``row_bytes`` is the mean size of a row, where that is known.
    """

    table: str
    version: int
    applied_round: int
    vbucket_count: int
    rows_sql: str
    complete_sql: str
    scope: CheckScope = CheckScope.WHOLE
    since: PassedCheck | None = None
    since_sql: str = ""
    facts: Mapping[str, Any] | None = None
    row_bytes: float = inf


def check_replica(
    lake: LakeTables,
    table: str = DOCS.name,
    suite: QualitySuite | None = None,
    *,
    whole_table: bool = False,
) -> QualityReport:
    """Return what ``suite`` (the installed one by default) finds in a replica's newest version.

    Checked are the rows that changed since the newest version that passed it; all of them where
    there is none, or with ``whole_table``.

    Raises:
        LakeError: there is no such table, or it lacks columns of a replica.
        ConfigError: a column of the suite is no valid SQL over the table.

    """
    suite = suite or load_suite()
    version = newest_version(lake, table, suite, whole_table=whole_table)
    return check_version(lake.spark, version, suite)


def newest_version(
    lake: LakeTables, table: str, suite: QualitySuite, *, whole_table: bool = False
) -> ReplicaVersion:
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
    passed = last_passed(lake, table, suite)
    since = None if whole_table else passed
    facts = _facts(lake, table, status, passed)
    return ReplicaVersion(
        table=table,
        version=status.version,
        applied_round=status.round,
        vbucket_count=lake.identity.vbucket_count,
        rows_sql=f"SELECT * FROM {lake.table_sql(table)} VERSION AS OF {status.version}",
        complete_sql=complete_sql(lake.changes_sql, status.held),
        scope=CheckScope.WHOLE if since is None else CheckScope.CHANGED,
        since=since,
        since_sql=""
        if since is None
        else complete_sql(lake.changes_sql, HeldVersion(since.version, since.round)),
        facts=facts,
        row_bytes=lake.table(table).size().bytes / max(1, facts["rows"]),
    )


def _facts(
    lake: LakeTables, table: str, status: ReplicaStatus, passed: PassedCheck | None
) -> dict[str, Any]:
    """Return the facts about a table's newest version (`TABLE_FACTS`)."""
    counted = lake.table(table).query(
        lambda name, _: f"SELECT count(*) AS documents FROM {name}", _COUNT, status.version
    )
    rows: int = counted["documents"][0].as_py()
    previous = passed.table_rows if passed else None
    commit = status.lineage.commit(status.applied.version) if status.applied else None
    return {
        "rows": rows,
        "previous_rows": previous,
        "rows_change_percent": 100 * (rows - previous) / previous if previous else None,
        "age_seconds": (datetime.now(UTC) - commit.time).total_seconds() if commit else None,
    }


def complete_sql(changes_sql: str, held: HeldVersion) -> str:
    """Return the query for each vbucket's epoch and complete seqno in a version of a replica.

    Those of a stale vbucket are of an older round.
    """
    positions = (
        f"SELECT vbucket, epoch, position.complete_seqno FROM {changes_sql} WHERE kind = 'position'"
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
    if replica.since is not None:
        rows = spark.sql(changed_sql(replica))
    checked_at, count = datetime.now(UTC), rows.count()
    frame = _with_suite_columns(spark, rows, replica, suite, checked_at)
    with _cached(frame) if count * replica.row_bytes <= _CACHED_BYTES else nullcontext():
        evaluation = run_suite(frame, suite, replica.facts)
    return QualityReport(
        run=uuid4().hex,
        checked_at=checked_at,
        table=replica.table,
        suite=suite.name,
        suite_digest=suite.digest,
        version=replica.version,
        applied_round=replica.applied_round,
        scope=replica.scope,
        since_version=replica.since.version if replica.since else None,
        rows=count,
        table_rows=replica.facts["rows"] if replica.facts else None,
        results=evaluation.results,
        validation=evaluation.validation,
    )


@contextmanager
def _cached(frame: DataFrame) -> Iterator[None]:
    """Let Spark keep rows: each statement about them would look for them, and join them, anew."""
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


def changed_sql(replica: ReplicaVersion) -> str:
    """Return the query for the rows of a version that changed since the one that passed."""
    return f"""
SELECT r.* FROM ({replica.rows_sql}) r
LEFT JOIN ({replica.complete_sql}) n ON n.vbucket = r.vbucket
LEFT JOIN ({replica.since_sql}) o ON o.vbucket = r.vbucket
WHERE NOT coalesce(
  o.epoch = n.epoch AND o.complete_seqno <= n.complete_seqno AND r.seqno <= o.complete_seqno, false)
"""


def _with_suite_columns(
    spark: SparkSession,
    rows: DataFrame,
    replica: ReplicaVersion,
    suite: QualitySuite,
    checked_at: datetime,
) -> DataFrame:
    """Add what a suite's SQL may use beside the replica's columns, then the suite's own columns.

    ``vbucket_count`` is how many vbuckets the bucket has, ``complete_seqno`` the vbucket's complete
    seqno at the applied round, null where there is none, ``checked_at`` the time of the check.

    An expression that gives NULL counts as false: Great Expectations would pass over it.
    """
    complete = spark.sql(replica.complete_sql).select("vbucket", "complete_seqno").hint("broadcast")
    # A literal: both passes over the rows see the same time.
    time_sql = f"timestamp_micros({int(checked_at.timestamp() * 1_000_000)})"
    facts = rows.join(complete, "vbucket", "left").selectExpr(
        "*", f"{int(replica.vbucket_count)} AS vbucket_count", f"{time_sql} AS checked_at"
    )
    for name, expression in suite.columns.items():
        try:
            # Connect resolves a query only when its schema is asked for.
            _ = facts.selectExpr(expression).schema
        except PySparkException as error:
            raise ConfigError(
                f"{suite.place or f'suite {suite.name!r}'}: meta.columns: {name!r}: found "
                f"{expression!r}, expected SQL over a replica's columns: "
                f"{str(error).splitlines()[0]}"
            ) from None
    return facts.selectExpr(
        "*",
        *(f"coalesce({sql}, false) AS {quoted(name)}" for name, sql in suite.columns.items()),
    )

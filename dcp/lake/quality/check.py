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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dcp.errors import ConfigError, LakeError
from dcp.lake.change_log.applied import ReplicaStatus, replica_status
from dcp.lake.change_log.round_queries import states_left
from dcp.lake.config.memory import MEBIBYTE
from dcp.lake.quality.engine import run_suite
from dcp.lake.quality.report import PassedCheck, QualityReport, last_passed
from dcp.lake.quality.suite import QualitySuite, load_suite
from dcp.lake.store.sql import quoted, u64
from dcp.lake.tables.applied_version import BEGINNING, AppliedVersion
from dcp.lake.tables.lake_tables import DOCS, LakeTables, replicas_in
from dcp.lake.tables.quality_check import CheckScope, QualityCheck
from dcp.lake.tables.schema import REPLICA

_COUNT: Final = pa.schema([("documents", pa.int64())])
_CACHED_BYTES: Final = 256 * MEBIBYTE
"""Each statement reads larger sets of rows from the table again: in files they are smaller."""


@dataclass(frozen=True, slots=True)
class RowsToCheck:
    current: AppliedVersion
    table_id: str
    vbucket_count: int
    rows_sql: str
    complete: Mapping[int, int]
    """By vbucket, its complete seqno."""
    scope: CheckScope = CheckScope.WHOLE
    since: PassedCheck | None = None
    """The check whose version this check goes on from."""
    unchanged: Mapping[int, int] = field(default_factory=dict)
    """By vbucket: rows up to this seqno are the same in `since`, and are left out."""
    facts: Mapping[str, Any] | None = None
    """Facts about the table for a suite (`TABLE_FACTS`), if there is one."""
    row_bytes: float = inf
    """The mean size of a row, if known."""


def check_replica(
    lake: LakeTables,
    table: str = DOCS.name,
    suite: QualitySuite | None = None,
    *,
    whole_table: bool = False,
) -> QualityReport:
    """Check a replica's newest version with ``suite``, by default the installed one.

    It checks the rows that changed since the newest version that passed. Without such a version, or
    with ``whole_table``, it checks all rows.

    Raises:
        LakeError: there is no such table, or it lacks columns of a replica.
        ConfigError: a column of the suite is no valid SQL over the table.
    """
    suite = suite or load_suite()
    version = newest_version(lake, table, suite, whole_table=whole_table)
    return check_version(lake.spark, version, suite)


def newest_version(
    lake: LakeTables, table: str, suite: QualitySuite, *, whole_table: bool = False
) -> RowsToCheck:
    """Return the newest version of a replica, whoever made it."""
    replica = next((each for each in replicas_in(lake) if each.name == table), None)
    if replica is None:
        raise LakeError(
            f"{lake.location}: found no table {table}, expected a replica table; replicate first"
        )
    status = replica_status(lake, replica)
    passed = last_passed(lake, table, suite)
    since = None if whole_table else passed
    facts = _facts(lake, table, status, passed)
    now = complete_positions(lake, status.current)
    then = complete_positions(lake, replace(BEGINNING, to_round=since.round)) if since else {}
    return RowsToCheck(
        current=status.current,
        table_id=lake.table(table).table_id(),
        vbucket_count=lake.identity.vbucket_count,
        rows_sql=f"SELECT * FROM {lake.table_sql(table, status.version)}",
        complete={vbucket: seqno for vbucket, (_, seqno) in now.items()},
        scope=CheckScope.WHOLE if since is None else CheckScope.CHANGED,
        since=since,
        unchanged=unchanged_seqnos(now, then),
        facts=facts,
        row_bytes=lake.table(table).size().bytes / max(1, facts["rows"]),
    )


def _facts(
    lake: LakeTables, table: str, status: ReplicaStatus, passed: PassedCheck | None
) -> dict[str, Any]:
    counted = lake.table(table).query(
        lambda name, _: f"SELECT count(*) AS documents FROM {name}", _COUNT, status.version
    )
    rows: int = counted["documents"][0].as_py()
    previous = passed.table_rows if passed else None
    commit = status.commit_history.commit(status.applied.version) if status.applied else None
    return {
        "rows": rows,
        "previous_rows": previous,
        "rows_change_percent": 100 * (rows - previous) / previous if previous else None,
        "age_seconds": (datetime.now(UTC) - commit.time).total_seconds() if commit else None,
    }


def complete_positions(lake: LakeTables, current: AppliedVersion) -> dict[int, tuple[int, int]]:
    """Return each vbucket's epoch and complete seqno in a version of a replica.

    A round whose positions were cleaned has none: then all rows count as changed.
    """
    states = {
        number: states_left(lake, number) for number in {current.to_round, *current.stale.values()}
    }
    return {
        vbucket: (state.epoch, state.complete_seqno)
        for number, of_round in states.items()
        for vbucket, state in of_round.items()
        if current.round_of(vbucket) == number
    }


def unchanged_seqnos(
    now: Mapping[int, tuple[int, int]], then: Mapping[int, tuple[int, int]]
) -> dict[int, int]:
    """Return the seqnos up to which a later version has the same rows, by vbucket.

    ``now`` and ``then`` hold each vbucket's epoch and complete seqno.
    """
    return {
        vbucket: seqno
        for vbucket, (epoch, seqno) in then.items()
        if vbucket in now and epoch == now[vbucket][0] and seqno <= now[vbucket][1]
    }


def check_version(spark: SparkSession, replica: RowsToCheck, suite: QualitySuite) -> QualityReport:
    rows = spark.sql(replica.rows_sql)
    if missing := [column.name for column in REPLICA if column.name not in rows.columns]:
        raise LakeError(
            f"{replica.current.table} version {replica.current.version}: found columns "
            f"{', '.join(rows.columns)}; expected {', '.join(missing)} too"
        )
    rows, checked_at = spark.sql(checked_sql(replica)), datetime.now(UTC)
    count = rows.count()
    frame = _with_suite_columns(rows, replica, suite, checked_at)
    with _cached(frame) if count * replica.row_bytes <= _CACHED_BYTES else nullcontext():
        results, validation = run_suite(frame, suite, replica.facts)
    check = QualityCheck(
        run=uuid4().hex,
        checked_at=checked_at,
        table=replica.current.table,
        table_id=replica.table_id,
        version=replica.current.version,
        round=replica.current.to_round,
        scope=replica.scope,
        since_version=replica.since.version if replica.since else None,
        table_rows=replica.facts["rows"] if replica.facts else None,
        checked_rows=count,
        suite=suite.name,
        suite_digest=suite.digest,
    )
    return QualityReport(check, results, validation)


@contextmanager
def _cached(frame: DataFrame) -> Iterator[None]:
    """Let Spark keep rows; otherwise each statement would find and join them again."""
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


def checked_sql(replica: RowsToCheck) -> str:
    positions = ", ".join(
        f"({vbucket}, {u64(seqno)}, "
        f"{u64(replica.unchanged[vbucket]) if vbucket in replica.unchanged else 'NULL'})"
        for vbucket, seqno in replica.complete.items()
    )
    positions = positions or f"(-1, {u64(0)}, {u64(0)})"
    return f"""
SELECT /*+ BROADCAST(p) */ r.*, p.complete_seqno FROM ({replica.rows_sql}) r
LEFT JOIN (VALUES {positions}) AS p(vbucket, complete_seqno, unchanged_seqno)
  ON p.vbucket = r.vbucket
WHERE NOT coalesce(r.seqno <= p.unchanged_seqno, false)"""


def _with_suite_columns(
    rows: DataFrame,
    replica: RowsToCheck,
    suite: QualitySuite,
    checked_at: datetime,
) -> DataFrame:
    """Add the further columns for a suite's SQL, then the suite's own columns.

    ``vbucket_count`` is the bucket's number of vbuckets. ``complete_seqno`` is the vbucket's at the
    applied round, or null. ``checked_at`` is the time of the check.

    NULL counts as false: Great Expectations would pass over it.
    """
    # A literal: both passes over the rows see the same time.
    time_sql = f"timestamp_micros({int(checked_at.timestamp() * 1_000_000)})"
    facts = rows.selectExpr(
        "*", f"{int(replica.vbucket_count)} AS vbucket_count", f"{time_sql} AS checked_at"
    )
    for name, expression in suite.columns.items():
        found = f"{suite.where or f'suite {suite.name!r}'}: meta.columns: {name!r}: found "
        try:
            # Connect resolves a query only when its schema is asked for.
            kind = facts.selectExpr(expression).schema[0].dataType.simpleString()
        except PySparkException as error:
            raise ConfigError(
                f"{found}{expression!r}, expected SQL over a replica's columns: "
                f"{str(error).splitlines()[0]}"
            ) from None
        if kind != "boolean":
            raise ConfigError(f"{found}{expression!r}, a {kind}, expected what is true or false")
    return facts.selectExpr(
        "*",
        *(f"coalesce({sql}, false) AS {quoted(name)}" for name, sql in suite.columns.items()),
    )

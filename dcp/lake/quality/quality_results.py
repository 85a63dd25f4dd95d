"""Keeps what checks of data quality found, in the lake's table ``quality``; it only grows."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from dcp.lake.quality.quality_report import QualityReport
from dcp.lake.quality.quality_suite import QualitySuite, Severity
from dcp.lake.tables.schema import QUALITY
from dcp.lake.tables.tables import QUALITY_TABLE, LakeTables, ensure_ledger

_PASSED: Final = pa.schema([QUALITY.field(name) for name in ("version", "round", "table_rows")])


@dataclass(frozen=True, slots=True)
class PassedCheck:
    version: int
    round: int
    """The version held this round."""
    table_rows: int
    """All rows of the version."""


def write_results(lake: LakeTables, report: QualityReport) -> None:
    table = ensure_ledger(lake, QUALITY_TABLE)
    metadata = {"lake": lake.identity.lake_id, "quality": report.run, "table": report.table}
    rows = results_table(report, lake.table(report.table).table_id())
    table.append(rows, metadata)


def results_table(report: QualityReport, table_id: str) -> pa.Table:
    of_check = {
        "run": report.run,
        "time": report.checked_at,
        "table": report.table,
        "table_id": table_id,
        "version": report.version,
        "round": report.applied_round,
        "scope": str(report.scope),
        "since_version": report.since_version,
        "table_rows": report.table_rows,
        "checked_rows": report.rows,
        "suite": report.suite,
        "suite_digest": report.suite_digest,
    }
    rows = [
        {
            **of_check,
            "expectation": result.name,
            "columns": list(result.columns),
            "severity": str(result.severity),
            "success": result.passed,
            "failed": result.violations,
            "samples": [dict(sample) for sample in result.samples],
            "found": result.seen or result.problem or None,
        }
        for result in report.results
    ]
    return pa.Table.from_pylist(rows, schema=QUALITY)


def last_passed(lake: LakeTables, table: str, suite: QualitySuite) -> PassedCheck | None:
    """Return the newest version of a table in which a suite of the same rules found no error."""
    if not lake.table(QUALITY_TABLE).exists():
        return None
    table_id = lake.table(table).table_id()
    found = lake.table(QUALITY_TABLE).query(
        lambda name, text: (
            f"SELECT version, round, max(table_rows) AS table_rows FROM {name} "
            f"WHERE table_id = {text(table_id)} AND suite_digest = {text(suite.digest)} "
            "GROUP BY run, version, round "
            f"HAVING min(CASE WHEN success OR severity = {text(Severity.WARNING)} "
            "THEN 1 ELSE 0 END) = 1 ORDER BY version DESC LIMIT 1"
        ),
        _PASSED,
    )
    rows = found.to_pylist()
    return PassedCheck(**rows[0]) if rows else None

"""The report of a data-quality run: typed, as text and as JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import pyarrow as pa

from dcp.lake.config.table_names import QUALITY_TABLE
from dcp.lake.quality.suite import QualitySuite, Severity
from dcp.lake.tables.applied_version import Version
from dcp.lake.tables.lake_tables import LakeTables, ensure_ledger
from dcp.lake.tables.schema import QUALITY, columns_of
from dcp.lake.tables.vbucket_state import Round
from dcp.records import UNSTORED, Record, plain


class CheckScope(StrEnum):
    """The checked rows: a version's changed rows, all of them, or those of a coming apply."""

    CHANGED = "changed rows"
    WHOLE = "whole table"
    PENDING = "rows of an apply"


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    name: str
    says: str
    violations: int | None
    """The number of rows that break it; None for a fact about the table, or if it could not run."""
    samples: tuple[Mapping[str, Any], ...] = ()
    """A few of the rows that break it, by their identifying columns."""
    problem: str = ""
    """The reason why it could not run."""
    seen: str = ""
    """The finding of an expectation about the table."""
    severity: Severity = Severity.ERROR
    columns: Annotated[tuple[str, ...], UNSTORED] = ()

    def __post_init__(self) -> None:
        if [self.violations is not None, bool(self.problem), bool(self.seen)].count(True) != 1:
            raise ValueError(
                f"{self.name}: either a count of violations, a problem or what was seen is expected"
            )

    @property
    def passed(self) -> Annotated[bool, "passed"]:
        return self.violations == 0

    def __str__(self) -> str:
        if self.passed:
            return f"ok    {self.name}: {self.says}"
        is_warning = self.severity is Severity.WARNING
        fail, error = ("warn ", "warn ") if is_warning else ("FAIL ", "ERROR")
        if self.seen:
            return f"{fail} {self.name}: found {self.seen}, against: {self.says}"
        if self.violations is None:
            return f"{error} {self.name}: could not be checked: {self.problem}"
        shown = "".join(
            "\n        "
            + ", ".join(
                f"{name}={json.dumps(each, ensure_ascii=False)}" for name, each in row.items()
            )
            for row in self.samples
        )
        rest = self.violations - len(self.samples)
        more = f"\n        … and {rest:,} more" if self.samples and rest > 0 else ""
        rows = "row" if self.violations == 1 else "rows"
        return f"{fail} {self.name}: {self.violations:,} {rows} against: {self.says}{shown}{more}"


@dataclass(frozen=True, slots=True)
class QualityReport(Record):
    run: str
    checked_at: Annotated[datetime, UNSTORED]
    table: str
    suite: str
    suite_digest: Annotated[str, UNSTORED]
    version: int
    applied_round: int
    scope: CheckScope
    rows: int
    """Checked rows."""
    results: Annotated[tuple[ExpectationResult, ...], "expectations"]
    table_rows: int | None = None
    """All rows of the version."""
    since_version: int | None = None
    """A check of changed rows goes on from this version."""
    validation: Annotated[Any, UNSTORED] = field(default=None, repr=False, compare=False)
    """Great Expectations' own result, for Data Docs."""

    @property
    def failed(self) -> tuple[ExpectationResult, ...]:
        """The expectations that do not hold, or could not be checked; without mere warnings."""
        return tuple(each for each in self.broken if each.severity is Severity.ERROR)

    @property
    def passed(self) -> Annotated[bool, "passed"]:
        return not self.failed

    @property
    def broken(self) -> tuple[ExpectationResult, ...]:
        """The same, with warnings."""
        return tuple(result for result in self.results if not result.passed)

    def __str__(self) -> str:
        return "\n".join([self._summary(), *(f"  {result}" for result in self.results)])

    def _summary(self) -> str:
        met = len(self.results) - len(self.broken)
        since = "" if self.since_version is None else f" since version {self.since_version}"
        of_all = "" if self.table_rows is None else f" of {self.table_rows:,} rows"
        return (
            f"{self.table} version {self.version} (round {self.applied_round}): "
            f"{self.scope}{since}, {self.rows:,}{of_all}: {met} of "
            f"{len(self.results)} expectations of suite {self.suite!r} hold"
        )


@dataclass(frozen=True, slots=True)
class PassedCheck:
    version: Version
    round: Round
    """The version had this round."""
    table_rows: Annotated[int, pa.int64()]


_PASSED: Final = pa.schema(columns_of(PassedCheck))


def write_results(lake: LakeTables, report: QualityReport) -> None:
    table = ensure_ledger(lake, QUALITY_TABLE, QUALITY)
    metadata = {"lake": lake.identity.lake_id, "quality": report.run, "table": report.table}
    rows = results_table(report, lake.table(report.table).table_id())
    table.append(rows, metadata)


def results_table(report: QualityReport, table_id: str) -> pa.Table:
    """Return rows of ``quality``; a field with the name of a column fills it."""
    of_check = {
        **report.to_json(),
        "time": report.checked_at,
        "table_id": table_id,
        "round": report.applied_round,
        "checked_rows": report.rows,
        "suite_digest": report.suite_digest,
    }
    rows = [
        {
            **of_check,
            **plain(result),
            "expectation": result.name,
            "columns": result.columns,
            "success": result.passed,
            "failed": result.violations,
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

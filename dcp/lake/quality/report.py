"""The report of a data-quality run: typed, as text and as JSON."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import pyarrow as pa

from dcp.lake.config.table_names import QUALITY_TABLE
from dcp.lake.quality.suite import QualitySuite
from dcp.lake.tables.applied_version import Version
from dcp.lake.tables.history import LAKE
from dcp.lake.tables.lake_tables import LakeTables, ensure_ledger
from dcp.lake.tables.quality_check import ExpectationResult, QualityCheck, Severity
from dcp.lake.tables.schema import QUALITY, columns_of
from dcp.lake.tables.vbucket_state import Round
from dcp.records import SPREAD, UNSTORED, Record, read, row_of


@dataclass(frozen=True, slots=True)
class QualityReport(Record):
    check: Annotated[QualityCheck, SPREAD]
    results: tuple[ExpectationResult, ...]
    validation: Annotated[Any, UNSTORED] = field(default=None, repr=False, compare=False)
    """Great Expectations' own result, for Data Docs."""

    @property
    def failed(self) -> tuple[ExpectationResult, ...]:
        """The expectations that do not hold, or could not be checked; without mere warnings."""
        return tuple(each for each in self.broken if each.severity is Severity.ERROR)

    @property
    def success(self) -> Annotated[bool, "success"]:
        return not self.failed

    @property
    def broken(self) -> tuple[ExpectationResult, ...]:
        """The same, with warnings."""
        return tuple(result for result in self.results if not result.success)

    def __str__(self) -> str:
        return "\n".join([self._summary(), *(f"  {result}" for result in self.results)])

    def _summary(self) -> str:
        check, met = self.check, len(self.results) - len(self.broken)
        since = "" if check.since_version is None else f" since version {check.since_version}"
        of_all = "" if check.table_rows is None else f" of {check.table_rows:,} rows"
        return (
            f"{check.table} version {check.version} (round {check.round}): "
            f"{check.scope}{since}, {check.checked_rows:,}{of_all}: {met} of "
            f"{len(self.results)} expectations of suite {check.suite!r} hold"
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
    check = report.check
    metadata = {LAKE: lake.identity.lake_id, "quality": check.run, "table": check.table}
    table.append(results_table(report), metadata)


def results_table(report: QualityReport) -> pa.Table:
    rows = [row_of(report.check) | row_of(result) for result in report.results]
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
    return read(PassedCheck, rows[0]) if rows else None

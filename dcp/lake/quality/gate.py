"""Holds applies back while rows that they would publish break a suite (``quality.gate``)."""

import logging
from dataclasses import replace
from math import inf
from pathlib import Path

from dcp.errors import QualityError
from dcp.lake.adapters.merge_rows import written_rows
from dcp.lake.apply.merge_plan import MergePlan
from dcp.lake.config.settings import INSTALLED_SUITE
from dcp.lake.quality.report import QualityReport, write_results
from dcp.lake.quality.suite import QualitySuite, load_suite
from dcp.lake.store.merge import LogRows
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.quality_check import CheckScope

_LOGGER = logging.getLogger(__name__)


class QualityGate:
    """Checks the rows of each apply before its MERGE. Without a suite every apply passes.

    Withheld rows wait in ``changes``. A later round may bring better ones, so its apply checks
    again. The table ``quality`` and the driver's log get a report when other expectations fail than
    at the last check.
    """

    def __init__(self, gate: str) -> None:
        """Read the suite that a value of ``quality.gate`` names; an empty one names none.

        Raises:
            ConfigError: there is no such suite, or it cannot be read.
            SetupError: Great Expectations is missing.
        """
        file = None if gate == INSTALLED_SUITE else Path(gate)
        self._suite = load_suite(file) if gate else None
        self._withheld: dict[str, QualityReport] = {}

    def may_publish(self, lake: LakeTables, plan: MergePlan) -> bool:
        if self._suite is None:
            return True
        report = check_plan(lake, plan, self._suite)
        if report.success:
            self._withheld.pop(plan.current.table, None)
            return True
        before = self._withheld.get(plan.current.table)
        self._withheld[plan.current.table] = report
        if before is None or _broken(before) != _broken(report):
            write_results(lake, report)
            _LOGGER.warning("%s", _told(report))
        return False

    def refuse_withheld(self) -> None:
        """Raise if an apply is withheld, so that no run reports success.

        Raises:
            QualityError: names the tables and the broken expectations.
        """
        if self._withheld:
            raise QualityError("\n".join(_told(each) for each in self._withheld.values()))


def check_plan(lake: LakeTables, plan: MergePlan, suite: QualitySuite) -> QualityReport:
    # A run that has nothing to apply, or no gate, does without pyspark.sql.
    from dcp.lake.quality.check import RowsToCheck, check_version, complete_positions

    current = plan.current.after(plan.log_slice)
    row_bytes = inf
    if not isinstance(plan.rows, LogRows):
        row_bytes = plan.rows.nbytes / max(1, plan.rows.num_rows)
    merge = replace(plan.merge(), rewrites=False)  # what stays was checked
    with written_rows(lake.spark, lake.table_sql(plan.current.table), merge) as written:
        rows = RowsToCheck(
            current=current,
            table_id=lake.table(current.table).table_id(),
            vbucket_count=lake.identity.vbucket_count,
            rows_sql=f"SELECT * FROM {written}",
            complete={vb: seqno for vb, (_, seqno) in complete_positions(lake, current).items()},
            scope=CheckScope.PENDING,
            row_bytes=row_bytes,
        )
        return check_version(lake.spark, rows, suite)


def _broken(report: QualityReport) -> set[str]:
    return {each.expectation for each in report.failed}


def _told(report: QualityReport) -> str:
    failed = "\n".join(f"  {each}" for each in report.failed)
    check = report.check
    return (
        f"{check.table} stays at version {check.version}: quality.gate holds the apply of round "
        f"{check.round} back: of its {check.checked_rows:,} rows some break suite "
        f"{check.suite!r}. Correct them at the source (the next round brings them), or change the "
        f"suite\n{failed}"
    )

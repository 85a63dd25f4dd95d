"""The quality gate of a simulation: its check of rows, in place of Great Expectations on Spark."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from unittest.mock import patch

import dcp.lake.quality.gate
from dcp.lake.apply.merge_plan import MergePlan
from dcp.lake.quality.report import QualityReport
from dcp.lake.quality.suite import QualitySuite
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.quality_check import CheckScope, ExpectationResult, QualityCheck
from tests.lake.memory_store import MemoryStore

BAD: Final = b'{"bad":true}'
"""A document that no table may have."""


@contextmanager
def rows_checked(told: Callable[[], None]) -> Iterator[None]:
    """Let the gate refuse each `BAD` document meanwhile; it calls ``told`` then."""

    def check_plan(lake: LakeTables, plan: MergePlan, suite: QualitySuite) -> QualityReport:
        assert isinstance(lake.store, MemoryStore)
        table = lake.store.table(plan.current.table)
        values = table.written(plan.merge())["value"].to_pylist()
        bad = values.count(BAD)
        if bad:
            told()
        check = QualityCheck(
            run="run",
            checked_at=datetime.fromtimestamp(0, UTC),
            table=plan.current.table,
            table_id=table.table_id(),
            version=plan.current.version,
            round=plan.to_round,
            scope=CheckScope.PENDING,
            since_version=None,
            table_rows=None,
            checked_rows=len(values),
            suite=suite.name,
            suite_digest=suite.digest,
        )
        found = ExpectationResult("no bad document", "No document is bad.", unexpected_count=bad)
        return QualityReport(check, (found,))

    with patch.object(dcp.lake.quality.gate, "check_plan", check_plan):
        yield

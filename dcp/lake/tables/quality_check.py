"""The records of a check of data quality: a row of the table ``quality`` has a check and a result.

Names that Great Expectations has, too, mean the same here.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import pyarrow as pa

from dcp.lake.tables.applied_version import Version
from dcp.lake.tables.vbucket_state import Round, Vbucket
from dcp.records import plain


class Severity(StrEnum):
    """The weight of an expectation: a ``warning`` is reported, and fails nothing."""

    ERROR = "error"
    WARNING = "warning"


class CheckScope(StrEnum):
    """The checked rows: a version's changed rows, all of them, or those of a coming apply."""

    CHANGED = "changed rows"
    WHOLE = "whole table"
    PENDING = "rows of an apply"


@dataclass(frozen=True, slots=True)
class RowSample:
    """A row of a replica, by the columns that identify it."""

    vbucket: Vbucket | None = None
    key: str | None = None
    seqno: int | None = None


@dataclass(frozen=True, slots=True)
class QualityCheck:
    """A check of one version of one table."""

    run: str
    checked_at: datetime
    table: str
    table_id: str
    """Delta's id: a table that is created again gets another."""
    version: Version
    round: Round
    """The version has the state of this round."""
    scope: CheckScope
    since_version: Version | None
    """A check of changed rows goes on from this version."""
    table_rows: Annotated[int | None, pa.int64()]
    """All rows of the version; None if they were not counted."""
    checked_rows: Annotated[int, pa.int64()]
    suite: str
    suite_digest: str


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    expectation: str
    says: str
    """The rule in words."""
    columns: tuple[str, ...] = ()
    severity: Severity = Severity.ERROR
    unexpected_count: Annotated[int | None, pa.int64()] = None
    """The number of rows that break it; None for a fact about the table, or if it could not run."""
    samples: tuple[RowSample, ...] = ()
    """A few of the rows that break it."""
    observed_value: str | None = None
    """The finding of an expectation about the table that does not hold."""
    exception_message: str | None = None
    """The reason why it could not run."""

    def __post_init__(self) -> None:
        found = (self.unexpected_count, self.observed_value, self.exception_message)
        if sum(each is not None for each in found) != 1:
            raise ValueError(
                f"{self.expectation}: found {found}, expected one of the count of unexpected rows, "
                "the observed value and the message of an exception"
            )

    @property
    def success(self) -> Annotated[bool, "success"]:
        return self.unexpected_count == 0

    def __str__(self) -> str:
        named = f"{self.expectation}:"
        if self.success:
            return f"ok    {named} {self.says}"
        is_warning = self.severity is Severity.WARNING
        fail, error = ("warn ", "warn ") if is_warning else ("FAIL ", "ERROR")
        if self.observed_value is not None:
            return f"{fail} {named} found {self.observed_value}, against: {self.says}"
        if self.unexpected_count is None:
            return f"{error} {named} could not be checked: {self.exception_message}"
        shown = "".join(
            "\n        "
            + ", ".join(
                f"{name}={json.dumps(each, ensure_ascii=False)}"
                for name, each in plain(row).items()
            )
            for row in self.samples
        )
        rest = self.unexpected_count - len(self.samples)
        more = f"\n        … and {rest:,} more" if self.samples and rest > 0 else ""
        rows = "row" if self.unexpected_count == 1 else "rows"
        return f"{fail} {named} {self.unexpected_count:,} {rows} against: {self.says}{shown}{more}"

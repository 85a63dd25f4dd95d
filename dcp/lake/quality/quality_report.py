"""The report of a data-quality run: typed, as text and as JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """One expectation's outcome.

    ``violations`` counts the rows that break it; ``samples`` are a few of them, by their
    identifying columns. Where it is None there are no rows to count: ``seen`` is what an
    expectation about the table as a whole found instead, or ``problem`` says why it could not run.
    """

    name: str
    says: str
    violations: int | None
    samples: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""
    seen: str = ""

    def __post_init__(self) -> None:
        if [self.violations is not None, bool(self.problem), bool(self.seen)].count(True) != 1:
            raise ValueError(
                f"{self.name}: either a count of violations, a problem or what was seen is expected"
            )

    @property
    def passed(self) -> bool:
        """True if the check ran and no row breaks it."""
        return self.violations == 0

    def __str__(self) -> str:
        if self.passed:
            return f"ok    {self.name}: {self.says}"
        if self.seen:
            return f"FAIL  {self.name}: found {self.seen}, against: {self.says}"
        if self.violations is None:
            return f"ERROR {self.name}: could not be checked: {self.problem}"
        shown = "".join(f"\n        {_row_text(sample)}" for sample in self.samples)
        rest = self.violations - len(self.samples)
        more = f"\n        … and {rest:,} more" if self.samples and rest > 0 else ""
        rows = "row" if self.violations == 1 else "rows"
        return f"FAIL  {self.name}: {self.violations:,} {rows} against: {self.says}{shown}{more}"


@dataclass(frozen=True, slots=True)
class QualityReport:
    """One suite over one version of one replica table."""

    table: str
    suite: str
    version: int
    applied_round: int
    rows: int
    results: tuple[ExpectationResult, ...]

    @property
    def failed(self) -> tuple[ExpectationResult, ...]:
        """The expectations that do not hold, or could not be checked."""
        return tuple(result for result in self.results if not result.passed)

    def __str__(self) -> str:
        return "\n".join([self._summary(), *(f"  {result}" for result in self.results)])

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; seqnos are exact integers."""
        return {
            "table": self.table,
            "suite": self.suite,
            "version": self.version,
            "applied_round": self.applied_round,
            "rows": self.rows,
            "passed": not self.failed,
            "expectations": [
                {
                    "name": result.name,
                    "says": result.says,
                    "passed": result.passed,
                    "violations": result.violations,
                    "samples": [dict(sample) for sample in result.samples],
                    **({"problem": result.problem} if result.problem else {}),
                    **({"seen": result.seen} if result.seen else {}),
                }
                for result in self.results
            ],
        }

    def _summary(self) -> str:
        held = len(self.results) - len(self.failed)
        return (
            f"{self.table} version {self.version} (round {self.applied_round}, {self.rows:,} rows):"
            f" {held} of {len(self.results)} expectations of suite {self.suite!r} hold"
        )


def _row_text(row: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in row.items()
    )

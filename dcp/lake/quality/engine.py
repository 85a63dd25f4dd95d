"""Runs a suite with Great Expectations, quietly and in few Spark jobs.

Expectations about rows run in two passes. The first pass asks only whether each expectation holds.
Great Expectations computes all of them that look at one row at a time in a single aggregation. So
the documents of a sound table are read once, and its keys once more for uniqueness. The second pass
runs only the failed ones, for their counts and a few rows. Facts about a table are one row of
pandas, without a Spark job.

Nothing leaves the process: the context lives in memory, and analytics are off.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampNTZType, TimestampType

from dcp.errors import SetupError
from dcp.lake.quality.report import QualityReport
from dcp.lake.quality.suite import ExpectationSpec, QualitySuite, Subject
from dcp.lake.store.sql import quoted
from dcp.lake.tables.quality_check import ExpectationResult, RowSample, Severity
from dcp.lake.tables.schema import IDENTIFYING_COLUMNS
from dcp.records import read

SAMPLES_AT_MOST: Final = 5

_SEVERITIES: Final = {Severity.ERROR: "critical", Severity.WARNING: "warning"}

_WHETHER: Final[Mapping[str, Any]] = {"result_format": "BOOLEAN_ONLY"}
_WHAT: Final[Mapping[str, Any]] = {"result_format": "SUMMARY"}
_WHICH: Final[Mapping[str, Any]] = {
    **_WHAT,
    "partial_unexpected_count": SAMPLES_AT_MOST,
    "unexpected_index_column_names": list(IDENTIFYING_COLUMNS),
}


def run_suite(
    rows: DataFrame, suite: QualitySuite, facts: Mapping[str, Any] | None = None
) -> tuple[tuple[ExpectationResult, ...], Any]:
    """Run a suite over ``rows``, and over ``facts`` about the table.

    Returns the result of each expectation, in the suite's order, and Great Expectations' own.
    ``rows`` must have the suite's columns. Without facts the expectations about them are left out.
    An expectation that cannot be computed has a problem in its result, and is never met.
    """
    import pandas as pd

    with _quiet():
        rows = _with_utc(rows)
        of_rows = suite.about(Subject.ROWS)
        outcomes = _validate(rows, suite.name, of_rows, _WHETHER)
        doubtful = [spec for spec in of_rows if not outcomes[spec.name].success]
        details = _validate(rows, suite.name, doubtful, _WHICH)
        about_table = () if facts is None else suite.about(Subject.TABLE)
        # Of objects, so that whole numbers beside a fact that is not known stay whole numbers.
        one_row = pd.DataFrame([facts or {}], dtype=object)
        told = _validate(one_row, suite.name, about_table, _WHAT)
        outcomes |= details | told
        asked = [spec for spec in suite.expectations if spec.name in outcomes]
        return (
            tuple(_result(spec, outcomes[spec.name], facts) for spec in asked),
            _whole(suite.name, [outcomes[spec.name] for spec in asked]),
        )


def _with_utc(rows: DataFrame) -> DataFrame:
    """Return the rows with times without a zone: PySpark returns others in the machine's."""
    return rows.select(
        *(
            rows[quoted(field.name)].cast(TimestampNTZType()).alias(field.name)
            if isinstance(field.dataType, TimestampType)
            else rows[quoted(field.name)]
            for field in rows.schema
        )
    )


def write_data_docs(report: QualityReport, folder: Path) -> Path:
    """Write a check's page of Data Docs, ``<table>-<version>.html``, and return its path.

    Raises:
        SetupError: it cannot be written.
    """
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view.view import DefaultJinjaPageView

    view: Any = DefaultJinjaPageView()  # its methods have no types
    page = folder / f"{report.check.table}-{report.check.version}.html"
    try:
        with _quiet():
            text = str(view.render(ValidationResultsPageRenderer().render(report.validation)))
        folder.mkdir(parents=True, exist_ok=True)
        page.write_text(text, "utf-8")
    except OSError as error:
        raise SetupError(
            f"--data-docs: cannot write {page}: {error.strerror}; name a folder that can be written"
        ) from None
    return page


def _validate(
    frame: Any, name: str, specs: Sequence[ExpectationSpec], result_format: Mapping[str, Any]
) -> dict[str, Any]:
    if not specs:
        return {}
    import great_expectations as gx
    from great_expectations.core.expectation_suite import ExpectationSuite
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = (
        context.data_sources.add_spark(name, persist=False).add_dataframe_asset("rows")
        if isinstance(frame, DataFrame)
        else context.data_sources.add_pandas(name).add_dataframe_asset("facts")
    )
    definition = gx.ValidationDefinition(
        name=name,
        data=asset.add_batch_definition_whole_dataframe("all"),
        suite=context.suites.add(
            ExpectationSuite(
                name=name,
                expectations=[
                    {
                        "type": spec.type,
                        "kwargs": dict(spec.kwargs),
                        "meta": {"name": spec.name},
                        "description": f"{spec.name}: {spec.says}",
                        "severity": _SEVERITIES[spec.severity],
                    }
                    for spec in specs
                ],
            )
        ),
    )
    outcome = context.validation_definitions.add(definition).run(
        batch_parameters={"dataframe": frame}, result_format=dict(result_format)
    )
    results: Sequence[Any] = outcome.results  # each has the configuration that it was made from
    return {each.expectation_config.meta["name"]: each for each in results}


def _whole(name: str, outcomes: Sequence[Any]) -> Any:
    from great_expectations.core import ExpectationSuiteValidationResult

    met = sum(bool(each.success) for each in outcomes)
    return ExpectationSuiteValidationResult(
        success=met == len(outcomes),
        results=list(outcomes),
        suite_name=name,
        statistics={
            "evaluated_expectations": len(outcomes),
            "successful_expectations": met,
            "unsuccessful_expectations": len(outcomes) - met,
            "success_percent": 100 * met / len(outcomes) if outcomes else None,
        },
        meta={},
    )


def _result(
    spec: ExpectationSpec, outcome: Any, facts: Mapping[str, Any] | None
) -> ExpectationResult:
    made = partial(ExpectationResult, spec.name, spec.says, spec.columns, spec.severity)
    if outcome.success:
        return made(unexpected_count=0)
    if problem := _problem(outcome.exception_info or {}):
        return made(exception_message=problem)
    if spec.about is Subject.TABLE:
        seen = ", ".join(f"{name} {(facts or {})[name]}" for name in spec.columns)
        return made(observed_value=seen)
    count = outcome.result.get("unexpected_count")
    if not count:
        # An expectation about the rows together: it counts none but has seen something.
        seen = outcome.result.get("observed_value", "nothing")
        is_time = isinstance(seen, datetime)
        return made(observed_value=f"{seen.isoformat()}+00:00" if is_time else str(seen))
    samples = outcome.result.get("partial_unexpected_index_list") or []
    shown = tuple(read(RowSample, each) for each in samples[:SAMPLES_AT_MOST])
    return made(unexpected_count=int(count), samples=shown)


def _problem(exception_info: Mapping[str, Any]) -> str:
    """The message of an exception that Great Expectations kept instead of raising it."""
    nested = [info for info in exception_info.values() if isinstance(info, Mapping)]
    for info in (exception_info, *nested):
        if info.get("raised_exception"):
            return str(info.get("exception_message") or "no message").strip().splitlines()[0]
    return ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's log lines from the application's handlers, and its analytics off."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    logger = logging.getLogger("great_expectations")
    silent, propagate = logging.NullHandler(), logger.propagate
    logger.addHandler(silent)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(silent)

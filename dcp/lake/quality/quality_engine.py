"""Runs a suite on a DataFrame with Great Expectations, quietly and in few Spark jobs.

Two passes. The first asks only whether each expectation holds: Great Expectations computes all of
them that look at one row at a time in a single aggregation, so a sound table's documents are read
once, however many expectations there are, and its keys once more for uniqueness. Only those that
do not hold are run again for their counts and a few of the rows.

Nothing leaves the process: the context lives in memory, and analytics are off.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import DataFrame

from dcp.lake.quality.quality_report import ExpectationResult
from dcp.lake.quality.quality_suite import ExpectationSpec, QualitySuite

IDENTIFYING_COLUMNS: Final = ("vbucket", "key", "seqno")
SAMPLES_AT_MOST: Final = 5

_WHETHER: Final[Mapping[str, Any]] = {"result_format": "BOOLEAN_ONLY"}
_WHICH: Final[Mapping[str, Any]] = {
    "result_format": "SUMMARY",
    "partial_unexpected_count": SAMPLES_AT_MOST,
    "unexpected_index_column_names": list(IDENTIFYING_COLUMNS),
}


def run_suite(rows: DataFrame, suite: QualitySuite) -> tuple[ExpectationResult, ...]:
    """Return each expectation's outcome on ``rows``, in the suite's order.

    ``rows`` must hold the suite's columns already. An expectation that cannot be computed is
    reported as a result with a problem; it never counts as held.
    """
    with _quiet():
        verdicts = dict(_validate(rows, suite, suite.expectations, _WHETHER))
        doubtful = [spec for spec in suite.expectations if not verdicts[spec.name].get("success")]
        details = dict(_validate(rows, suite, doubtful, _WHICH)) if doubtful else {}
    return tuple(_result(spec, details.get(spec.name)) for spec in suite.expectations)


def _validate(
    rows: DataFrame,
    suite: QualitySuite,
    specs: Iterable[ExpectationSpec],
    result_format: Mapping[str, Any],
) -> Iterator[tuple[str, dict[str, Any]]]:
    import great_expectations as gx
    from great_expectations.core.expectation_suite import ExpectationSuite
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_spark(suite.name, persist=False).add_dataframe_asset("rows")
    definition = gx.ValidationDefinition(
        name=suite.name,
        data=asset.add_batch_definition_whole_dataframe("all"),
        suite=context.suites.add(
            ExpectationSuite(
                name=suite.name,
                expectations=[
                    {"type": spec.type, "kwargs": dict(spec.kwargs), "meta": {"name": spec.name}}
                    for spec in specs
                ],
            )
        ),
    )
    outcome = context.validation_definitions.add(definition).run(
        batch_parameters={"dataframe": rows}, result_format=dict(result_format)
    )
    for result in outcome.results:
        samples = result.result.get("partial_unexpected_index_list") or []
        content: Any = result.to_json_dict()
        yield content["expectation_config"]["meta"]["name"], content | {"samples": samples}


def _result(spec: ExpectationSpec, outcome: dict[str, Any] | None) -> ExpectationResult:
    """The outcome of the second pass; None where the first found that the expectation holds."""
    if outcome is None:
        return ExpectationResult(spec.name, spec.says, violations=0)
    if problem := _problem(outcome.get("exception_info") or {}):
        return ExpectationResult(spec.name, spec.says, violations=None, problem=problem)
    count = outcome["result"].get("unexpected_count")
    if not count:
        # An expectation about the table as a whole: it counts no rows but has seen something.
        seen = outcome["result"].get("observed_value", "nothing")
        return ExpectationResult(spec.name, spec.says, None, seen=str(seen))
    samples = tuple(
        {name: _plain(sample.get(name)) for name in IDENTIFYING_COLUMNS}
        for sample in outcome["samples"][:SAMPLES_AT_MOST]
    )
    return ExpectationResult(spec.name, spec.says, int(count), samples)


def _problem(exception_info: Mapping[str, Any]) -> str:
    """The message of an exception that Great Expectations kept instead of raising it."""
    nested = [info for info in exception_info.values() if isinstance(info, Mapping)]
    for info in (exception_info, *nested):
        if info.get("raised_exception"):
            return str(info.get("exception_message") or "no message").strip().splitlines()[0]
    return ""


def _plain(value: object) -> object:
    """A sample's value as JSON can carry it: DECIMAL columns hold whole numbers."""
    return int(value) if isinstance(value, Decimal) else value


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's own log lines away from the application's handlers, its analytics off."""
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

"""Suites and reports as data: no Spark."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dcp.errors import ConfigError
from dcp.lake.quality.report import QualityReport, results_table
from dcp.lake.quality.suite import load_suite, parse_suite
from dcp.lake.tables.quality_check import (
    CheckScope,
    ExpectationResult,
    QualityCheck,
    RowSample,
    Severity,
)

EXPECTATION = {
    "type": "expect_column_values_to_not_be_null",
    "kwargs": {"column": "key"},
    "meta": {"name": "key_present", "says": "every row has a key"},
}
SUITE: dict[str, Any] = {"name": "mine", "expectations": [EXPECTATION]}


def of_bound(most: int) -> dict[str, Any]:
    """Return a suite that bounds the CAS."""
    expectation = EXPECTATION | {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "cas", "max_value": most},
    }
    return SUITE | {"expectations": [expectation]}


def of_meta(**different: str) -> dict[str, Any]:
    """The suite, with something else said in the expectation's ``meta``."""
    meta = {"name": "key_present", "says": "every row has a key", **different}
    return SUITE | {"expectations": [EXPECTATION | {"meta": meta}]}


def test_installed_suite_is_whole() -> None:
    suite = load_suite()
    assert suite.name == "replica"
    assert {spec.name for spec in suite.expectations} >= {
        "vbucket_and_key_unique",
        "key_in_its_vbucket",
        "within_complete_seqno",
        "document_parses",
        "vbucket_in_range",
        "seqno_positive",
        "cas_positive",
    }
    checked = {spec.kwargs.get("column") for spec in suite.expectations}
    assert set(suite.columns) <= checked, "a column that no expectation looks at"
    warnings = {each.name for each in suite.expectations if each.severity is Severity.WARNING}
    assert warnings == {"modified_at_plausible", "rows_kept", "fresh"}


def test_suites_with_other_rules_have_other_digests() -> None:
    reworded = of_meta(says="in other words")
    assert parse_suite(reworded).digest == parse_suite(SUITE).digest
    stricter = SUITE | {
        "expectations": [EXPECTATION | {"kwargs": {"column": "key", "mostly": 0.5}}]
    }
    others = [
        parse_suite(content).digest
        for content in (
            of_meta(severity="warning"),
            SUITE | {"meta": {"columns": {"a": "true"}}},
            stricter,
        )
    ]
    assert len({parse_suite(SUITE).digest, *others}) == 4


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([], "found [] where an object with 'meta' is expected"),
        ({"expectations": [EXPECTATION]}, "name: found None, expected a JSON string"),
        ({"name": "mine"}, "expectations: found None, expected a JSON array"),
        ({"name": "mine", "expectations": []}, "found no expectation"),
        (SUITE | {"expectations": [EXPECTATION] * 2}, "found key_present more than once"),
        (SUITE | {"expectations": [EXPECTATION | {"meta": {}}]}, "expectation 1: name: found None"),
        (
            SUITE | {"expectations": [EXPECTATION | {"kwargs": "key"}]},
            "expectation 'key_present': kwargs: found 'key', expected a JSON object",
        ),
        (
            SUITE | {"expectations": [EXPECTATION | {"type": "expect_column_values_to_be_nul"}]},
            "found type 'expect_column_values_to_be_nul' (did you mean "
            "'expect_column_values_to_be_null'?), expected one of Great Expectations'",
        ),
        (
            SUITE | {"expectations": [EXPECTATION | {"kwargs": {"colum": "key"}}]},
            "expectation 'key_present': kwargs of expect_column_values_to_not_be_null: column: "
            "found none, expected one; found an argument 'colum' (did you mean 'column'?), "
            "expected no such argument",
        ),
        (
            SUITE | {"expectations": [EXPECTATION | {"kwargs": {"column": "kez"}}]},
            "expectation 'key_present': found column 'kez' (did you mean 'key'?), expected one of "
            "vbucket, key, key_bytes,",
        ),
        (
            SUITE | {"expectations": [EXPECTATION | {"kwargs": {"column": "key", "mostly": 2}}]},
            "mostly: found 2, expected otherwise: ",
        ),
        (of_bound(10**400), "kwargs of expect_column_values_to_be_between: found a number that is"),
        (
            of_bound(1795664817024008191),
            "max_value: found 1795664817024008191, which Great Expectations would round to a float",
        ),
        (of_meta(severity="warn"), "meta.severity: found 'warn', expected one of error, warning"),
        (of_meta(about="tables"), "meta.about: found 'tables', expected one of rows, table"),
        (
            of_meta(about="table"),
            "expectation 'key_present': found column 'key', expected one of rows, previous_rows,",
        ),
        (SUITE | {"meta": {"columns": {"a b": "true"}}}, "meta.columns: found 'a b'"),
        (SUITE | {"meta": {"columns": {"a": True}}}, "meta.columns: found 'a'"),
    ],
)
def test_malformed_suite_is_refused(content: object, told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_suite(content)
    assert told in str(refusal.value)


def test_whole_numbers_that_a_float_holds_are_taken() -> None:
    for most in (0, 7, 2**53, 2**60):
        [expectation] = parse_suite(of_bound(most)).expectations
        assert expectation.kwargs["max_value"] == most


def test_unreadable_suite_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(of_meta(severity="warn")))
    for path, told in (
        (missing, "cannot read the suite"),
        (broken, "found no valid JSON"),
        (wrong, "expectation 'key_present': meta.severity: found 'warn', expected one of"),
    ):
        with pytest.raises(ConfigError, match=told) as refusal:
            load_suite(path)
        assert str(path) in str(refusal.value)


def report(*results: ExpectationResult) -> QualityReport:
    check = QualityCheck(
        run="run-1",
        checked_at=CHECKED_AT,
        table="docs",
        table_id="table-id",
        version=7,
        round=3,
        scope=CheckScope.CHANGED,
        since_version=5,
        table_rows=2000,
        checked_rows=1000,
        suite="replica",
        suite_digest="0123456789abcdef",
    )
    return QualityReport(check, results)


CHECKED_AT = datetime(2026, 11, 25, tzinfo=UTC)
HELD = ExpectationResult("key_present", "every row has a key", unexpected_count=0)
BROKEN = ExpectationResult(
    "cas_positive",
    "a stored document never has CAS 0",
    unexpected_count=1200,
    samples=(RowSample(5, 'a"b', 2**64 - 1),),
)
UNEQUAL = ExpectationResult("row_count", "there are 10 rows", observed_value="1000")
WARNED = replace(UNEQUAL, expectation="fresh", severity=Severity.WARNING, columns=("age_seconds",))
UNKNOWN = ExpectationResult("document_parses", "it is JSON", exception_message="no column value")


def test_sound_report_reads_well() -> None:
    assert report(HELD).failed == ()
    assert str(report(HELD)) == (
        "docs version 7 (round 3): changed rows since version 5, 1,000 of 2,000 rows: "
        "1 of 1 expectations of suite 'replica' hold\n"
        "  ok    key_present: every row has a key"
    )


def test_violations_are_named_with_count_and_rows() -> None:
    found = report(HELD, BROKEN, UNEQUAL, UNKNOWN)
    assert found.failed == (BROKEN, UNEQUAL, UNKNOWN)
    assert str(found) == (
        "docs version 7 (round 3): changed rows since version 5, 1,000 of 2,000 rows: "
        "1 of 4 expectations of suite 'replica' hold\n"
        "  ok    key_present: every row has a key\n"
        "  FAIL  cas_positive: 1,200 rows against: a stored document never has CAS 0\n"
        '        vbucket=5, key="a\\"b", seqno=18446744073709551615\n'
        "        … and 1,199 more\n"
        "  FAIL  row_count: found 1000, against: there are 10 rows\n"
        "  ERROR document_parses: could not be checked: no column value"
    )


def test_a_warning_is_told_and_fails_nothing() -> None:
    found = report(HELD, WARNED)
    assert (found.failed, found.broken) == ((), (WARNED,))
    assert found.to_json()["success"] is True
    assert "  warn  fresh: found 1000, against: there are 10 rows" in str(found)
    assert "1 of 2 expectations of suite 'replica' hold" in str(found)


def test_results_have_a_row_for_each_expectation() -> None:
    rows = results_table(report(BROKEN, WARNED, UNKNOWN)).to_pylist()
    assert [each["expectation"] for each in rows] == ["cas_positive", "fresh", "document_parses"]
    assert [each["unexpected_count"] for each in rows] == [1200, None, None]
    assert [each["observed_value"] for each in rows] == [None, "1000", None]
    assert [each["exception_message"] for each in rows] == [None, None, "no column value"]
    assert rows[1]["columns"] == ["age_seconds"]
    assert [each["severity"] for each in rows] == ["error", "warning", "error"]
    assert rows[0]["samples"] == [{"vbucket": 5, "key": 'a"b', "seqno": Decimal(2**64 - 1)}]
    of_check = ("run", "checked_at", "version", "scope", "success")
    assert {tuple(each[name] for name in of_check) for each in rows} == {
        ("run-1", CHECKED_AT, 7, "changed rows", False)
    }


def test_json_form_is_exact() -> None:
    content = json.loads(json.dumps(report(HELD, BROKEN, UNKNOWN).to_json()))
    assert content["success"] is False
    assert [each["success"] for each in content["results"]] == [True, False, False]
    assert content["results"][1]["samples"][0]["seqno"] == 2**64 - 1
    assert content["results"][2]["exception_message"] == "no column value"


def test_a_result_has_one_finding() -> None:
    with pytest.raises(ValueError, match="expected one of"):
        ExpectationResult("a", "b")
    with pytest.raises(ValueError, match="expected one of"):
        ExpectationResult("a", "b", unexpected_count=1, exception_message="c")

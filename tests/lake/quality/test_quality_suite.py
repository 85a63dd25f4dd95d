"""Suites and reports as data: no Spark."""

import json
from pathlib import Path
from typing import Any

import pytest

from dcp.errors import ConfigError
from dcp.lake.quality.quality_report import ExpectationResult, QualityReport
from dcp.lake.quality.quality_suite import load_suite, parse_suite

EXPECTATION = {
    "type": "expect_column_values_to_not_be_null",
    "kwargs": {"column": "key"},
    "meta": {"name": "key_present", "says": "every row has a key"},
}
SUITE: dict[str, Any] = {"name": "mine", "expectations": [EXPECTATION]}


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


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([], "found [] where an object with 'meta' is expected"),
        ({"expectations": [EXPECTATION]}, "name: found None, expected a JSON string"),
        ({"name": "mine"}, "expectations: found None, expected a JSON array"),
        ({"name": "mine", "expectations": []}, "found no expectation"),
        (SUITE | {"expectations": [EXPECTATION] * 2}, "found key_present more than once"),
        (SUITE | {"expectations": [EXPECTATION | {"meta": {}}]}, "name: found None"),
        (SUITE | {"expectations": [EXPECTATION | {"kwargs": "key"}]}, "kwargs: found 'key'"),
        (
            SUITE | {"expectations": [EXPECTATION | {"type": "expect_column_values_to_be_nul"}]},
            "found type 'expect_column_values_to_be_nul' (did you mean "
            "'expect_column_values_to_be_null'?), expected one of Great Expectations'",
        ),
        (
            SUITE | {"expectations": [EXPECTATION | {"kwargs": {"colum": "key"}}]},
            "column: field required; colum: extra fields not permitted",
        ),
        (SUITE | {"meta": {"columns": {"a b": "true"}}}, "meta.columns: found 'a b'"),
        (SUITE | {"meta": {"columns": {"a": True}}}, "meta.columns: found 'a'"),
    ],
)
def test_malformed_suite_is_refused(content: object, told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_suite(content)
    assert told in str(refusal.value)


def test_unreadable_suite_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for path, told in ((missing, "cannot read the suite"), (broken, "found no valid JSON")):
        with pytest.raises(ConfigError, match=told) as refusal:
            load_suite(path)
        assert str(path) in str(refusal.value)


def report(*results: ExpectationResult) -> QualityReport:
    return QualityReport("docs", "replica", 7, 3, 1000, results)


HELD = ExpectationResult("key_present", "every row has a key", 0)
BROKEN = ExpectationResult(
    "cas_positive",
    "a stored document never has CAS 0",
    1200,
    ({"vbucket": 5, "key": 'a"b', "seqno": 2**64 - 1},),
)
UNEQUAL = ExpectationResult("row_count", "there are 10 rows", None, seen="1000")
UNKNOWN = ExpectationResult("document_parses", "it is JSON", None, problem="no column value")


def test_sound_report_reads_well() -> None:
    assert report(HELD).failed == ()
    assert str(report(HELD)) == (
        "docs version 7 (round 3, 1,000 rows): 1 of 1 expectations of suite 'replica' hold\n"
        "  ok    key_present: every row has a key"
    )


def test_violations_are_named_with_count_and_rows() -> None:
    found = report(HELD, BROKEN, UNEQUAL, UNKNOWN)
    assert found.failed == (BROKEN, UNEQUAL, UNKNOWN)
    assert str(found) == (
        "docs version 7 (round 3, 1,000 rows): 1 of 4 expectations of suite 'replica' hold\n"
        "  ok    key_present: every row has a key\n"
        "  FAIL  cas_positive: 1,200 rows against: a stored document never has CAS 0\n"
        '        vbucket=5, key="a\\"b", seqno=18446744073709551615\n'
        "        … and 1,199 more\n"
        "  FAIL  row_count: found 1000, against: there are 10 rows\n"
        "  ERROR document_parses: could not be checked: no column value"
    )


def test_json_form_is_exact() -> None:
    content = json.loads(json.dumps(report(HELD, BROKEN, UNKNOWN).to_json()))
    assert content["passed"] is False
    assert [each["passed"] for each in content["expectations"]] == [True, False, False]
    assert content["expectations"][1]["samples"][0]["seqno"] == 2**64 - 1
    assert content["expectations"][2]["problem"] == "no column value"


def test_result_without_count_needs_a_problem() -> None:
    with pytest.raises(ValueError, match="either"):
        ExpectationResult("a", "b", None)
    with pytest.raises(ValueError, match="either"):
        ExpectationResult("a", "b", 1, problem="c")

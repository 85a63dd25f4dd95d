"""The rollback decision against the case list made from kv_engine's tests and documents."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dcp.producer.failover import ResumeRequest, VbucketFacts, judge
from dcp.types import FailoverEntry, FailoverLog
from tests.conformance import main, run_file
from tests.conformance_formats.case_file import CaseResult

FILE = Path(__file__).parents[1] / "data" / "cases" / "rollback-cases.json"
CASES = json.loads(FILE.read_text())["cases"]


def result_of(case: dict[str, Any], folder: Path) -> CaseResult:
    file = folder / "cases.json"
    file.write_text(json.dumps({"cases": [case]}))
    [result] = run_file(file)
    return result


def test_the_case_list_is_whole() -> None:
    assert len(CASES) == 84


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    assert result_of(case, tmp_path) == CaseResult(case["id"])


def test_the_file_runs_through_the_conformance_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(FILE)]) == 0
    assert capsys.readouterr().out == "84 passed, 0 failed\n"


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({"expected": {"status": "ROLLBACK", "rollback_seqno": 7}}, "expected ROLLBACK to 7"),
        ({"expected": {"status": "MAYBE"}}, "KeyError: 'MAYBE'"),
        ({"moon_phase": 3}, "found moon_phase in the case"),
        ({"vb_state": "asleep"}, "KeyError: 'ASLEEP'"),
    ],
)
def test_a_wrong_case_fails(change: dict[str, Any], failure: str, tmp_path: Path) -> None:
    [failed] = result_of(deepcopy(CASES[1]) | change, tmp_path).failures
    assert failure in failed


def test_a_whole_snapshot_is_not_asked_for_again() -> None:
    facts = VbucketFacts(FailoverLog((FailoverEntry(7, 0),)), 50)
    assert judge(ResumeRequest(25, 7, 0, 25), facts).snap_start == 25
    assert judge(ResumeRequest(12, 7, 0, 25), facts).snap_start == 0

"""The rollback decision: the case list made from kv_engine's tests, and the rollback document."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dcp.server.commands import stream_requests
from dcp.server.model.resume_rules import (
    Rules,
    VbucketFacts,
    Verdict,
    judge,
    rollback_seqno,
)
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.vocabulary import Status, StreamFlag
from tests.conformance import main, run_file
from tests.conformance_formats import rollback_cases
from tests.conformance_formats.case_file import CaseResult
from tests.producer.resuming import resuming

FILE = Path(__file__).parents[2] / "data" / "cases" / "rollback-cases.json"
CASES = json.loads(FILE.read_text())["cases"]


@pytest.fixture(scope="module")
def results() -> dict[str, CaseResult]:
    """The result of each case, asked both ways."""
    return {result.name: result for result in run_file(FILE)}


def result_of(case: dict[str, Any], folder: Path) -> CaseResult:
    file = folder / "cases.json"
    file.write_text(json.dumps({"cases": [case]}))
    [result] = run_file(file)
    return result


def test_the_case_list_is_whole(results: dict[str, CaseResult]) -> None:
    assert len(CASES) == len(results) == 84


@pytest.mark.parametrize("name", [case["id"] for case in CASES])
def test_case(name: str, results: dict[str, CaseResult]) -> None:
    assert results[name] == CaseResult(name)


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
    failed = result_of(deepcopy(CASES[1]) | change, tmp_path).failures
    assert failed
    assert all(failure in text for text in failed)


@pytest.mark.parametrize(
    ("module", "failure"), [(rollback_cases, "the decision"), (stream_requests, "over the wire")]
)
def test_either_way_alone_fails_a_case(
    module: Any, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in CASES if case["id"] == "d-50")
    monkeypatch.setattr(module, "judge", lambda *_: Verdict(Status.ROLLBACK, 3))
    [failed] = result_of(case, tmp_path).failures
    assert failed.startswith(f"{failure}: found ROLLBACK to 3, expected ROLLBACK to 850")


def test_a_whole_snapshot_is_not_asked_for_again() -> None:
    facts = VbucketFacts(FailoverLog((FailoverEntry(7, 0),)), 50)
    assert judge(resuming(25, 7, 0, 25), facts, "document").snap_start == 25
    assert judge(resuming(12, 7, 0, 25), facts, "document").snap_start == 0


# --- the rollback document, case by case

A, B, C = 0xA, 0xB, 0xC
LOG = FailoverLog((FailoverEntry(C, 50), FailoverEntry(B, 30), FailoverEntry(A, 0)))
"""The history of A ends at 30, that of B at 50; C goes on to 80, deletions up to 20 are purged."""
FACTS = VbucketFacts(LOG, high_seqno=80, purge_seqno=20)
BOTH: tuple[Rules, ...] = ("document", "server")


@pytest.mark.parametrize(
    ("start", "uuid", "snapshot", "document", "server"),
    [
        # start 0 with uuid 0: the consumer takes whatever history there is
        (0, 0, (0, 0), None, None),
        (0, 0, (0, 90), None, None),
        # start 0 with another uuid: decided like any other
        (0, C, (0, 0), None, None),
        (0, A, (0, 90), None, None),
        (0, 0x99, (0, 0), 0, None),
        # snap_start below the purge seqno, after adjustment
        (10, C, (10, 10), 0, 0),
        (19, C, (0, 40), 0, 0),
        (20, C, (0, 20), None, None),
        (20, C, (20, 40), None, None),
        (25, C, (10, 40), 0, None),
        (40, C, (10, 40), None, None),
        # the uuid is not in the failover log
        (25, 0x99, (25, 25), 0, 0),
        (25, 0, (25, 25), 0, 0),
        # lagging: the snapshot ends where the histories are still one
        (30, A, (30, 30), None, None),
        (25, A, (21, 30), None, None),
        (45, B, (40, 50), None, None),
        (70, C, (60, 80), None, None),
        # leading: the whole snapshot lies beyond
        (40, A, (40, 40), 30, 30),
        (40, A, (35, 45), 30, 30),
        (60, B, (55, 60), 50, 50),
        (90, C, (90, 90), 80, 80),
        # mismatch: the snapshot straddles the end of the common history
        (35, A, (25, 40), 25, 25),
        (29, A, (25, 31), 25, 25),
        (30, A, (25, 40), 25, 25),
        (55, B, (50, 60), 50, 50),
        (79, C, (70, 81), 70, 70),
        # nothing or all of the straddling snapshot is held
        (25, A, (25, 40), None, None),
        (40, A, (25, 40), 30, 30),
    ],
)
def test_the_rollback_document(
    start: int, uuid: int, snapshot: tuple[int, int], document: int | None, server: int | None
) -> None:
    request = resuming(start, uuid, *snapshot)
    assert rollback_seqno(request, FACTS, "document") == document
    assert rollback_seqno(request, FACTS, "server") == server


@pytest.mark.parametrize("rules", BOTH)
def test_purged_deletions_may_be_ignored(rules: Rules) -> None:
    flags = int(StreamFlag.IGNORE_PURGED_TOMBSTONES)
    assert rollback_seqno(resuming(10, C, 10, 10, flags=flags), FACTS, rules) is None
    assert rollback_seqno(resuming(90, C, 10, 90, flags=flags), FACTS, rules) == 80


@pytest.mark.parametrize("rules", BOTH)
def test_a_rollback_is_asked_again_until_both_agree(rules: Rules) -> None:
    """The document's failover with a hard end: back to snap_start, then on."""
    assert rollback_seqno(resuming(35, A, 25, 40), FACTS, rules) == 25
    assert rollback_seqno(resuming(25, A, 25, 25), FACTS, rules) is None


def test_strict_uuids_are_what_the_document_says_of_all() -> None:
    request = resuming(0, 0x99, 0, 0, flags=int(StreamFlag.STRICT_VBUUID))
    assert [rollback_seqno(request, FACTS, rules) for rules in BOTH] == [0, 0]

"""The rollback decision against the case list made from kv_engine's tests and documents."""

import json
from pathlib import Path
from typing import Any

import pytest

from dcp.producer.failover import ResumeRequest, VbucketFacts, judge, rollback_seqno
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.vocabulary import Status, VbucketState

CASES = json.loads(
    (Path(__file__).parents[1] / "data" / "cases" / "rollback-cases.json").read_text()
)["cases"]


def _request(case: dict[str, Any]) -> ResumeRequest:
    asked = case["request"]
    return ResumeRequest(
        asked["start"],
        asked["uuid"],
        asked["snap_start"],
        asked["snap_end"],
        asked["end"],
        case["flags"],
        case["remote_purge_seqno"],
    )


def _facts(case: dict[str, Any]) -> VbucketFacts:
    entries = tuple(FailoverEntry(e["uuid"], e["seqno"]) for e in case["failover_log"])
    return VbucketFacts(
        FailoverLog(entries),
        case["high_seqno"],
        case["purge_seqno"],
        case["persisted_seqno"],
        case["max_collection_high_seqno"],
        VbucketState[case["vb_state"].upper()],
    )


def test_the_case_list_is_whole() -> None:
    assert len(CASES) == 84


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    expected = case["expected"]
    if case.get("function_level"):
        assert rollback_seqno(_request(case), _facts(case)) == expected["rollback_seqno"]
        return
    verdict = judge(_request(case), _facts(case))
    wanted = {"OK": "SUCCESS"}.get(expected["status"], expected["status"])
    assert verdict.status is Status[wanted]
    assert verdict.rollback_seqno == expected["rollback_seqno"]


def test_a_whole_snapshot_is_not_asked_for_again() -> None:
    facts = VbucketFacts(FailoverLog((FailoverEntry(7, 0),)), 50)
    assert judge(ResumeRequest(25, 7, 0, 25), facts).snap_start == 25
    assert judge(ResumeRequest(12, 7, 0, 25), facts).snap_start == 0

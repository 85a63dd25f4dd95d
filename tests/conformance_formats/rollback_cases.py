"""Rollback cases: ``{"cases": [{"failover_log", "request", "expected", …}…]}``.

A case passes when the producer's decision about the stream request is the expected one. A key that
is not understood fails the case.
"""

from collections.abc import Iterator
from typing import Any, Final

from dcp.producer.failover import ResumeRequest, VbucketFacts, Verdict, judge, rollback_seqno
from dcp.types import END_OF_TIME, FailoverEntry, FailoverLog
from dcp.wire.vocabulary import Status, VbucketState
from tests.conformance_formats.case_file import CaseFile, CaseResult

_REMARKS: Final = frozenset({"id", "source", "why", "why_rule", "asserted", "log_reconstructed"})
_FACTS: Final = frozenset(
    {
        "failover_log",
        "high_seqno",
        "purge_seqno",
        "remote_purge_seqno",
        "persisted_seqno",
        "max_collection_high_seqno",
        "vb_state",
        "flags",
        "function_level",
        "request",
        "expected",
    }
)
_ASKED: Final = frozenset({"uuid", "start", "end", "snap_start", "snap_end"})
_EXPECTED: Final = frozenset({"status", "rollback_seqno"})
_STATUSES: Final = {
    "OK": Status.SUCCESS,
    "ROLLBACK": Status.ROLLBACK,
    "ERANGE": Status.ERANGE,
    "NOT_MY_VBUCKET": Status.NOT_MY_VBUCKET,
}


class RollbackCases:
    """The format's entry in the registry of ``tests/conformance.py``."""

    name = "rollback cases"

    def recognises(self, file: CaseFile) -> bool:
        """Whether the file is an object with a list ``cases`` of objects with a failover log."""
        cases = file.content.get("cases") if isinstance(file.content, dict) else None
        return isinstance(cases, list) and all(
            isinstance(case, dict) and "failover_log" in case for case in cases
        )

    def run(self, file: CaseFile) -> Iterator[CaseResult]:
        """Yield one result per case."""
        for index, case in enumerate(file.content["cases"]):
            try:
                failures = tuple(_failures(case))
            except (ValueError, TypeError, KeyError) as error:
                failures = (f"{type(error).__name__}: {error}",)
            yield CaseResult(str(case.get("id", f"case {index}")), failures)


def _failures(case: dict[str, Any]) -> Iterator[str]:
    for found, known, where in (
        (case, _FACTS | _REMARKS, "the case"),
        (case["request"], _ASKED, "its request"),
        (case["expected"], _EXPECTED, "what it expects"),
    ):
        if unknown := sorted(found.keys() - known):
            yield f"found {', '.join(unknown)} in {where}, expected none of a name not known here"
    expected = Verdict(
        _STATUSES[case["expected"]["status"]], case["expected"].get("rollback_seqno")
    )
    found_verdict = _verdict(case)
    told = (found_verdict.status, found_verdict.rollback_seqno)
    if told != (expected.status, expected.rollback_seqno):
        yield (
            f"found {_text(found_verdict)}, expected {_text(expected)}"
            f" ({case.get('why', 'no reason given')})"
        )


def _verdict(case: dict[str, Any]) -> Verdict:
    request, facts = request_of(case), facts_of(case)
    if not case.get("function_level", False):
        return judge(request, facts, "server")
    seqno = rollback_seqno(
        request, facts, "server"
    )  # without the checks that come before it on the wire
    return Verdict(Status.SUCCESS if seqno is None else Status.ROLLBACK, seqno)


def request_of(case: dict[str, Any]) -> ResumeRequest:
    """Return the stream request of a case."""
    asked = case["request"]
    return ResumeRequest(
        asked["start"],
        asked["uuid"],
        asked["snap_start"],
        asked["snap_end"],
        asked.get("end", END_OF_TIME),
        case.get("flags", 0),
        case.get("remote_purge_seqno", 0),
    )


def facts_of(case: dict[str, Any]) -> VbucketFacts:
    """Return what the producer of a case holds."""
    entries = tuple(FailoverEntry(each["uuid"], each["seqno"]) for each in case["failover_log"])
    return VbucketFacts(
        FailoverLog(entries),
        case["high_seqno"],
        case.get("purge_seqno", 0),
        case.get("persisted_seqno"),
        case.get("max_collection_high_seqno"),
        VbucketState[case.get("vb_state", "active").upper()],
    )


def _text(verdict: Verdict) -> str:
    seqno = "" if verdict.rollback_seqno is None else f" to {verdict.rollback_seqno}"
    return f"{verdict.status.name}{seqno}"

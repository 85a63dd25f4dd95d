"""Rollback cases: ``{"cases": [{"failover_log", "request", "expected", …}…]}``.

A case passes when the producer decides the stream request as expected, asked both ways: the
decision function alone, and a node that is in the case's state, over TCP. The server's rules hold.
A key that is not understood fails the case.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from dcp.errors import DcplakeError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.resume_rules import (
    Rules,
    VbucketFacts,
    judge,
    rollback_seqno,
    state_allows,
)
from dcp.types import END_OF_TIME, FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.vocabulary import Status, VbucketState
from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.producer.raw_client import RawClient
from tests.producer.resuming import resuming

_RULES: Final[Rules] = "server"

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


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's status, and the rollback seqno with ROLLBACK."""

    status: int
    rollback_seqno: int | None = None

    def __str__(self) -> str:
        seqno = "" if self.rollback_seqno is None else f" to {self.rollback_seqno}"
        return f"{Status(self.status).name}{seqno}"


_MALFORMED: Final = (ValueError, TypeError, KeyError, AttributeError)
"""What reading a case may raise: that case fails, the others are run."""


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
        """Yield one result per case; one producer serves them all."""
        with ProducerCluster(ClusterSettings(vbuckets=1, rules=_RULES)) as cluster:
            for index, case in enumerate(file.content["cases"]):
                try:
                    failures = tuple(_failures(case, cluster))
                except (*_MALFORMED, OSError, EOFError, DcplakeError) as error:
                    failures = (f"{type(error).__name__}: {error}",)
                yield CaseResult(str(case.get("id", f"case {index}")), failures)


def _failures(case: dict[str, Any], cluster: ProducerCluster) -> Iterator[str]:
    for found, known, where in (
        (case, _FACTS | _REMARKS, "the case"),
        (case["request"], _ASKED, "its request"),
        (case["expected"], _EXPECTED, "what it expects"),
    ):
        if unknown := sorted(found.keys() - known):
            yield f"found {', '.join(unknown)} in {where}, expected none of a name not known here"
    told = case["expected"]
    expected = Answer(_STATUSES[told["status"]], told.get("rollback_seqno"))
    by_function = _decided(case)
    by_wire = _answered(case, cluster)
    for how, answer, wanted in (
        ("the decision", by_function, expected),
        ("over the wire", by_wire, _as_the_wire_says(expected, case)),
    ):
        if answer != wanted:
            why = case.get("why", "no reason given")
            yield f"{how}: found {answer}, expected {wanted} ({why})"


def _decided(case: dict[str, Any]) -> Answer:
    """Ask the decision function."""
    request, facts = request_of(case), facts_of(case)
    if not case.get("function_level", False):
        verdict = judge(request, facts, _RULES, remote_purge_seqno_of(case))
        return Answer(verdict.status, verdict.rollback_seqno)
    seqno = rollback_seqno(
        request, facts, _RULES, remote_purge_seqno_of(case)
    )  # without what the wire checks around it
    return Answer(Status.SUCCESS if seqno is None else Status.ROLLBACK, seqno)


def _as_the_wire_says(expected: Answer, case: dict[str, Any]) -> Answer:
    """Return what a function-level case leads to with the checks around the function."""
    if not case.get("function_level", False):
        return expected
    request, facts = request_of(case), facts_of(case)
    if not state_allows(request, facts):
        return Answer(Status.NOT_MY_VBUCKET)
    beyond = request.start > facts.high_seqno and expected.status is Status.SUCCESS
    if not request.snap_start <= request.start <= min(request.snap_end, request.end) or beyond:
        return Answer(Status.ERANGE)
    return expected


def _answered(case: dict[str, Any], cluster: ProducerCluster) -> Answer:
    """Bring the producer into the case's state and send it the request."""
    request, facts = request_of(case), facts_of(case)
    cluster.set_up_vbucket(0, facts)
    wanted: dict[str, object] = {}
    if facts.collections_high_seqno is not None:
        wanted["collections"] = ["0"]
    if remote_purge_seqno := remote_purge_seqno_of(case):
        wanted["purge_seqno"] = str(remote_purge_seqno)
    with RawClient(cluster.seeds[0]) as client:
        client.log_in().open_dcp()
        answer = client.request_stream(
            0,
            request.start,
            end=request.end,
            vb_uuid=request.vb_uuid,
            snapshot=(request.snap_start, request.snap_end),
            flags=request.flags,
            value=json.dumps(wanted).encode() if wanted else b"",
        )
    body = decode(answer)
    if isinstance(body, m.FailoverLogAnswer) and body.entries != facts.failover_log.entries:
        raise ValueError(f"over the wire: found failover log {body.entries}, expected the case's")
    return Answer(
        answer.status, body.rollback_seqno if isinstance(body, m.RollbackAnswer) else None
    )


def request_of(case: dict[str, Any]) -> m.StreamRequest:
    """Return the stream request of a case."""
    asked = case["request"]
    return resuming(
        asked["start"],
        asked["uuid"],
        asked["snap_start"],
        asked["snap_end"],
        asked.get("end", END_OF_TIME),
        case.get("flags") or 0,
    )


def remote_purge_seqno_of(case: dict[str, Any]) -> int:
    """Return the purge seqno that the client of a case names; 0: none."""
    return case.get("remote_purge_seqno") or 0


def facts_of(case: dict[str, Any]) -> VbucketFacts:
    """Return what the producer of a case holds."""
    entries = tuple(FailoverEntry(each["uuid"], each["seqno"]) for each in case["failover_log"])
    return VbucketFacts(
        FailoverLog(entries),
        case["high_seqno"],
        case.get("purge_seqno") or 0,
        case.get("persisted_seqno"),
        case.get("max_collection_high_seqno"),
        VbucketState[(case.get("vb_state") or "active").upper()],
    )

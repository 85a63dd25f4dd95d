"""The record of a committed round by vbucket: its position, and the outcome of its stream."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from dcp.lake.config.memory import DOCUMENT_BYTES
from dcp.lake.tables.vbucket_state import VbucketProgress

UNDECODABLE: Final = (
    "values cannot be decoded and are as they were sent: datatype is above 1 there, "
    "row_history.detail says why"
)
"""What is said behind their number."""


class Outcome(StrEnum):
    """The reason why a vbucket's part of a round ended; a ``status`` row stores it."""

    REACHED = "reached"
    """The target seqno was reached, and the end of its snapshot."""
    CAUGHT_UP = "caught_up"
    """At a snapshot's end below the target, and the node said that it holds nothing beyond it."""
    BUDGET = "budget"
    """The task's bytes or seconds were used up; the next round goes on from here. Where the round
    brought nothing, ``reason`` and ``detail`` say why."""
    ROLLBACK = "rollback"
    """The producer ordered a rollback; the next round begins a new epoch."""
    STOPPED = "stopped"
    """The source failed; ``reason`` and ``detail`` say how."""
    LEFT_OUT = "left_out"
    """It was behind and could not be streamed at all; ``reason`` and ``detail`` say why."""


@dataclass(frozen=True, slots=True)
class VbucketReport:
    """The result of a round for one vbucket, from its ``status`` row.

    A vbucket that was left out has only a reason; its numbers are 0 here.
    """

    vbucket: int
    outcome: Outcome
    rows: int
    frame_bytes: int
    largest_bytes: int
    seqno: int
    complete_seqno: int
    target_seqno: int
    reason: str = ""
    detail: str = ""
    escaped_keys: int = 0
    undecodable_values: int = 0
    window_full: float = 0.0
    gate: str = ""
    rollback_seqno: int | None = None
    """The seqno that its node ordered it back to; None: no order."""

    @property
    def failed(self) -> bool:
        """True if the source kept it from going on."""
        return self.outcome in (Outcome.ROLLBACK, Outcome.STOPPED, Outcome.LEFT_OUT)

    @classmethod
    def parse(cls, vbucket: int, status: str) -> "VbucketReport":
        """Read the ``detail`` of a status row."""
        told = json.loads(status)
        return cls(
            vbucket=vbucket,
            outcome=Outcome(told["outcome"]),
            rows=told.get("rows", 0),
            frame_bytes=told.get("bytes", 0),
            largest_bytes=told.get("largest_bytes", DOCUMENT_BYTES),
            seqno=told.get("seqno", 0),
            complete_seqno=told.get("complete_seqno", 0),
            target_seqno=told.get("target_seqno", 0),
            reason=told.get("reason", ""),
            detail=told.get("detail", ""),
            escaped_keys=told.get("escaped_keys", 0),
            undecodable_values=told.get("undecodable_values", 0),
            window_full=told.get("window_full", 0.0),
            gate=told.get("gate", ""),
            rollback_seqno=told.get("rollback_seqno"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""
        return {
            "vbucket": self.vbucket,
            "outcome": str(self.outcome),
            "rows": self.rows,
            "bytes": self.frame_bytes,
            "seqno": self.seqno,
            "complete_seqno": self.complete_seqno,
            "target_seqno": self.target_seqno,
            "reason": self.reason,
            "detail": self.detail,
            "escaped_keys": self.escaped_keys,
            "undecodable_values": self.undecodable_values,
            "window_full": self.window_full,
            "gate": self.gate,
            "rollback_seqno": self.rollback_seqno,
        }


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A committed round: the state of every vbucket after it, and reports of some.

    These are the vbuckets that it streamed, and those that it should have streamed and could not.
    """

    states: Mapping[int, VbucketProgress]
    reports: tuple[VbucketReport, ...]

    @property
    def largest_bytes(self) -> int:
        """Size of the largest document of the round; the most there can be if that is not told."""
        return max((report.largest_bytes for report in self.reports), default=DOCUMENT_BYTES)


BEFORE_THE_FIRST: Final = RoundRecord({}, ())
"""Round 0: no vbucket was met yet."""

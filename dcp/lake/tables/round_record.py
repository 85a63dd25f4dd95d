"""The record of a committed round by vbucket: its position, and the outcome of its stream."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import pyarrow as pa

from dcp.errors import LakeError
from dcp.lake.config.memory import DOCUMENT_BYTES
from dcp.lake.tables.schema import CHANGES, RowKind
from dcp.lake.tables.vbucket_state import VbucketProgress
from dcp.records import Record, plain, read

UNDECODABLE: Final = (
    "values cannot be decoded and are as they were sent: datatype is above 1 there, "
    "row_history.detail says why"
)
"""Follows their number in messages."""


class Outcome(StrEnum):
    """The reason why a vbucket's part of a round ended; a ``status`` row stores it."""

    REACHED = "reached"
    """The stream reached the target seqno, and the end of its snapshot."""
    CAUGHT_UP = "caught_up"
    """At a snapshot's end below the target, and the node says that it holds no more."""
    BUDGET = "budget"
    """The task used up its bytes or seconds; the next round goes on from here.

    If the round brought nothing, ``reason`` and ``detail`` say why.
    """
    ROLLBACK = "rollback"
    """The producer ordered a rollback; the next round begins a new epoch."""
    STOPPED = "stopped"
    """The source failed; ``reason`` and ``detail`` say how."""
    LEFT_OUT = "left_out"
    """It was behind and could not be streamed at all; ``reason`` and ``detail`` say why."""


@dataclass(frozen=True, slots=True)
class VbucketReport(Record):
    """A vbucket's result, from its ``status`` row; one that was left out has only a reason."""

    vbucket: int
    outcome: Outcome
    rows: int = 0
    frame_bytes: Annotated[int, "bytes"] = 0
    largest_bytes: int = DOCUMENT_BYTES
    seqno: int = 0
    complete_seqno: int = 0
    target_seqno: int = 0
    reason: str = ""
    detail: str = ""
    escaped_keys: int = 0
    undecodable_values: int = 0
    window_full: float = 0.0
    gate: str = ""
    rollback_seqno: int | None = None
    """Its node ordered it back to this seqno; None: no order."""

    @property
    def failed(self) -> bool:
        """True if the source kept it from going on."""
        return self.outcome in (Outcome.ROLLBACK, Outcome.STOPPED, Outcome.LEFT_OUT)

    @classmethod
    def parse(cls, vbucket: int, status: str) -> "VbucketReport":
        return read(cls, json.loads(status) | {"vbucket": vbucket})

    def status(self) -> str:
        """Return the ``detail`` of its status row, JSON, without default values."""
        unset = VbucketReport(self.vbucket, self.outcome).to_json()
        told = {name: told for name, told in self.to_json().items() if told != unset[name]}
        return json.dumps({"outcome": self.outcome} | told)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    states: Mapping[int, VbucketProgress]
    """Every vbucket's state after the round."""
    reports: tuple[VbucketReport, ...]
    """Of the vbuckets that it streamed, or should have streamed and could not."""

    @property
    def largest_bytes(self) -> int:
        """Size of the largest document of the round; the greatest possible if it is unknown."""
        return max((report.largest_bytes for report in self.reports), default=DOCUMENT_BYTES)


BEFORE_THE_FIRST: Final = RoundRecord({}, ())
"""Round 0: no vbucket is known yet."""


def states_to_batch(states: Iterable[VbucketProgress], round_number: int) -> pa.RecordBatch:
    rows = [
        {
            "round": round_number,
            "epoch": state.epoch,
            "vbucket": state.vbucket,
            "kind": RowKind.POSITION,
            "seqno": state.position.seqno,
            "vb_uuid": state.position.vb_uuid,
            "position": plain(state),
        }
        for state in states
    ]
    return pa.RecordBatch.from_pylist(rows, schema=CHANGES)


def states_from_rows(rows: Iterable[Mapping[str, Any]]) -> dict[int, VbucketProgress]:
    """Return the states of ``position`` rows, by vbucket.

    Raises:
        LakeError: a vbucket has two rows.
    """
    states: dict[int, VbucketProgress] = {}
    for row in rows:
        state = read(VbucketProgress, {**row, **row["position"]})
        if state.vbucket in states:
            raise LakeError(
                f"changes: found two position rows of vbucket {state.vbucket} in one round, "
                "expected one"
            )
        states[state.vbucket] = state
    return states

"""The result of one vbucket's stream in a task: its outcome, counters and next state."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from dcp.client.addresses import NodeAddress
from dcp.lake.rounds.round_plan import LeftOut, StreamPlan
from dcp.lake.tables.rollback_order import RollbackOrder
from dcp.lake.tables.round_record import Outcome
from dcp.lake.tables.vbucket_state import VbucketProgress
from dcp.protocol.position import Position
from dcp.types import FailoverLog

_LEAST_SHARE: Final = 0.005
"""Less than half a percent of the time is not worth a word."""


def left_out_status(left: LeftOut) -> str:
    """Return the ``detail`` of the status row of a vbucket that was not streamed, JSON."""
    told = {"outcome": str(Outcome.LEFT_OUT), "reason": left.reason, "detail": left.detail}
    return json.dumps(told | {"largest_bytes": 0})


@dataclass(slots=True)
class StreamResult:
    """One vbucket in one task of a round. Its counts are filled in when the task ends.

    ``position_of`` is the consumer's, which alone keeps where a vbucket stands.

    More than 15 attributes: one is one column.

    Written from outside: a task fills it in as its streams go on.
    """

    plan: StreamPlan
    position_of: Callable[[int], Position]
    failover_log: FailoverLog | None = None
    purge_seqno: int | None = None
    start_seqno: int | None = None
    node: NodeAddress | None = None
    rows: int = 0
    frame_bytes: int = 0
    largest_bytes: int = 0
    escaped_keys: int = 0
    brought_collections: bool = False
    """True if a collection began, was flushed or was dropped."""
    undecodable_values: int = 0
    window_full: float = 0.0
    """The part of its task's time in which the node could send nothing: the window was full."""
    gate: str = ""
    """The stage that the window then waited for, most of the time."""
    order: RollbackOrder | None = None
    outcome: Outcome | None = None
    reason: str = ""
    detail: str = ""

    @property
    def position(self) -> Position:
        """The position behind the last row that was taken."""
        return self.position_of(self.plan.vbucket)

    @property
    def target_reached(self) -> bool:
        """True if the end of a snapshot at or beyond the target was reached."""
        return self.position.complete_seqno >= self.plan.target_seqno

    @property
    def reads_on(self) -> bool:
        """True if the stream must not end before a snapshot's end that is still to come."""
        return self.position.complete_seqno < self.plan.least_complete_seqno

    def end(self, outcome: Outcome, reason: str = "", detail: str = "") -> None:
        """Note the outcome of this vbucket, which gets no more rows in this round."""
        self.outcome, self.reason, self.detail = outcome, reason, detail

    def state(self, round_number: int) -> VbucketProgress:
        """Return the vbucket's state after the round."""
        begun = self.plan.state
        caught_up = None
        if self.outcome in (Outcome.REACHED, Outcome.CAUGHT_UP):
            # Never the target itself: a node may have lost it, and write other data at its seqnos.
            caught_up = max(self.position.complete_seqno, begun.caught_up_seqno)
        if self.start_seqno is not None:
            begun = replace(begun, start_seqno=self.start_seqno)
        state = begun.advanced(
            round_number,
            self.position,
            brought_rows=self.rows > 0,
            brought_collections=self.brought_collections,
            failover_log=self.failover_log,
            caught_up_seqno=caught_up,
            purge_seqno=self.purge_seqno,
        )
        return state if self.order is None else state.ordered(self.order)

    def status(self) -> str:
        """Return the ``detail`` of the status row, JSON."""
        told: dict[str, Any] = {
            "outcome": str(self.outcome),
            "rows": self.rows,
            "bytes": self.frame_bytes,
            "largest_bytes": self.largest_bytes,
            "seqno": self.position.seqno,
            "complete_seqno": self.position.complete_seqno,
            "target_seqno": self.plan.target_seqno,
        }
        if self.escaped_keys:
            told["escaped_keys"] = self.escaped_keys
        if self.undecodable_values:
            told["undecodable_values"] = self.undecodable_values
        if self.window_full >= _LEAST_SHARE:
            told |= {"window_full": round(self.window_full, 3), "gate": self.gate}
        if self.order is not None:
            told["rollback_seqno"] = self.order.to_seqno
        if self.reason:
            told |= {"reason": self.reason, "detail": self.detail}
        return json.dumps(told)

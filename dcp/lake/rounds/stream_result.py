"""The result of one vbucket's stream in a task: its outcome, counters and next state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.lake.rounds.round_plan import StreamPlan
from dcp.lake.tables.round_record import Outcome, VbucketReport
from dcp.lake.tables.vbucket_state import LakeVbucketState, RollbackOrder
from dcp.protocol.position import Position
from dcp.types import FailoverLog

_LEAST_SHARE: Final = 0.005
"""Half a percent of the time; smaller shares are not reported."""


@dataclass(slots=True)
class StreamResult:
    """One vbucket in one task of a round. `TaskReceiver` sets the fields while its streams run."""

    plan: StreamPlan
    position_of: Callable[[int], Position]
    """The consumer's method; only the consumer keeps a vbucket's position."""
    failover_log: FailoverLog | None = None
    purge_seqno: int | None = None
    start_seqno: int | None = None
    node: NodeAddress | None = None
    brought_rows: bool = False
    brought_collections: bool = False
    """A collection began, or was flushed or dropped."""
    dropped: set[int] = field(default_factory=set)
    """The ids of dropped collections."""
    window_full: float = 0.0
    """The share of the task's time in which a full window kept the node from sending."""
    bottleneck: str = ""
    """The stage that the full window waited for most of that time."""
    order: RollbackOrder | None = None
    outcome: Outcome | None = None
    """Once set, the vbucket gets no more rows in this round."""
    reason: str = ""
    detail: str = ""

    @property
    def position(self) -> Position:
        """The position after the last row that was taken."""
        return self.position_of(self.plan.vbucket)

    def state(self, round_number: int) -> LakeVbucketState:
        begun = self.plan.state
        caught_up = None
        if self.outcome in (Outcome.REACHED, Outcome.CAUGHT_UP):
            # Not the target: a failed over node may have lost it, and reuse its seqnos.
            caught_up = max(self.position.complete_seqno, begun.caught_up_seqno)
        if self.start_seqno is not None:
            begun = replace(begun, start_seqno=self.start_seqno)
        state = begun.advanced(
            round_number,
            self.position,
            brought_rows=self.brought_rows,
            brought_collections=self.brought_collections,
            failover_log=self.failover_log,
            caught_up_seqno=caught_up,
            purge_seqno=self.purge_seqno,
        )
        return state if self.order is None else state.ordered(self.order)

    def report(self, counts: Mapping[str, int]) -> VbucketReport:
        assert self.outcome is not None, "it is over"
        is_told = self.window_full >= _LEAST_SHARE
        return VbucketReport(
            self.plan.vbucket,
            self.outcome,
            **counts,
            seqno=self.position.seqno,
            complete_seqno=self.position.complete_seqno,
            target_seqno=self.plan.target_seqno,
            reason=self.reason,
            detail=self.detail,
            window_full=round(self.window_full, 3) if is_told else 0.0,
            bottleneck=self.bottleneck if is_told else "",
            rollback_seqno=None if self.order is None else self.order.to_seqno,
        )

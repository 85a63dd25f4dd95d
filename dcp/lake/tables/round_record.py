"""The record of a committed round: for each vbucket its state, and its stream's outcome."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import pyarrow as pa

from dcp.errors import LakeError
from dcp.lake.config.memory import DOCUMENT_BYTES
from dcp.lake.tables.schema import CHANGES, RowKind
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart
from dcp.records import Record, brief, read, row_of

UNDECODABLE: Final = (
    "values cannot be decoded and are as they were sent: datatype is above 1 there, "
    "row_history.detail says why"
)
"""The number of values precedes this text in messages."""


class Outcome(StrEnum):
    """The reason why a vbucket's part of a round ended. A ``status`` row stores it."""

    REACHED = "reached"
    """The stream reached its target seqno and the end of that snapshot."""
    CAUGHT_UP = "caught_up"
    """The stream ended at a snapshot's end below the target; the node has no more."""
    BUDGET = "budget"
    """The task used up its limit of bytes or seconds; the next round continues.

    If the round brought nothing, ``reason`` and ``detail`` say why.
    """
    ROLLBACK = "rollback"
    """The producer ordered a rollback; the next round begins a new epoch."""
    STOPPED = "stopped"
    """The source failed; ``reason`` and ``detail`` say how."""
    LEFT_OUT = "left_out"
    """It was behind but could not be streamed; ``reason`` and ``detail`` say why."""


class StuckReason(StrEnum):
    """The reason why a run or a comparison cannot go on with a vbucket.

    The client has further reasons (`dcp.client.consumer_events.StopReason`).
    """

    NO_ACTIVE_NODE = "no active node"
    """The cluster map names none, or no node that answers holds the vbucket."""
    NODE_UNREACHABLE = "node unreachable"
    NO_HIGH_SEQNO = "no high seqno"
    """The node did not tell its high seqno, or its branch."""
    NO_STREAM = "no stream"
    """The round ended before a stream was open."""
    WAITING_FOR_TURN = "waiting for its turn"
    """The node reads its disk for other vbuckets first."""
    WAITING_FOR_DATA = "waiting for data"
    WAITING_FOR_SNAPSHOT_END = "waiting for snapshot end"
    NO_PROGRESS = "no progress"
    """Several rounds brought nothing of it."""
    NODE_CONTRADICTS_ITSELF = "node contradicts itself"
    ROLLBACK = "rollback"
    """The node ordered a rollback, which no epoch has followed. It comes before a backfill."""
    ROLLBACK_WITHOUT_PROGRESS = "rollback without progress"
    NO_REPLICA = "no replica vbucket"
    REPLICA_BEHIND = "replica vbucket behind"
    REPLICA_ON_ANOTHER_BRANCH = "replica vbucket on another branch"
    STALE = "stale"
    """A table shows old rows of it, until a round streams it whole."""
    DELETIONS_PURGED = "deletions purged"
    """The source forgot deletions that a comparison needs."""


@dataclass(frozen=True, slots=True)
class VbucketReport(Record):
    """A vbucket's result in a round. If the vbucket was left out, it has only a reason."""

    vbucket: int
    outcome: Outcome
    rows: int = 0
    frame_bytes: Annotated[int, "bytes"] = 0
    largest_bytes: int = DOCUMENT_BYTES
    seqno: int = 0
    complete_seqno: int = 0
    target_seqno: int = 0
    reason: str = ""
    """A `StuckReason` or the client's; empty if the vbucket advanced."""
    detail: str = ""
    escaped_keys: int = 0
    undecodable_values: int = 0
    window_full: float = 0.0
    bottleneck: str = ""
    rollback_seqno: int | None = None
    """The seqno of the node's rollback order; None without an order."""

    @property
    def failed(self) -> bool:
        return self.outcome in (Outcome.ROLLBACK, Outcome.STOPPED, Outcome.LEFT_OUT)

    @classmethod
    def parse(cls, vbucket: int, status: str) -> "VbucketReport":
        return read(cls, json.loads(status) | {"vbucket": vbucket})

    def status(self) -> str:
        """Return the JSON for ``detail`` of the status row, whose column has the vbucket."""
        told = brief(self)
        del told["vbucket"]
        return json.dumps(told)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    states: Mapping[int, LakeVbucketState]
    """Every vbucket's state after the round."""
    reports: tuple[VbucketReport, ...]
    """The reports of the vbuckets that the round streamed, or should have streamed."""

    @property
    def largest_bytes(self) -> int:
        """The size of the round's largest document; the upper limit if it is unknown."""
        return max((report.largest_bytes for report in self.reports), default=DOCUMENT_BYTES)


BEFORE_THE_FIRST: Final = RoundRecord({}, ())
"""Round 0, in which no vbucket has a state."""


def states_to_batch(
    states: Collection[LakeVbucketState], round_number: int, restarts: Iterable[Restart] = ()
) -> pa.RecordBatch:
    """Return a round's ``position`` rows, behind a ``rollback`` row for each of its restarts.

    The state of each restarted vbucket has the epoch that begins.
    """
    epochs = {state.vbucket: state.epoch for state in states}
    forks = [
        {
            "round": round_number,
            "epoch": epochs[restart.vbucket],
            "vbucket": restart.vbucket,
            "kind": RowKind.ROLLBACK,
            "seqno": restart.seqno,
            "detail": restart.reason,
        }
        for restart in restarts
    ]
    positions = [
        {
            "round": round_number,
            "epoch": state.epoch,
            "vbucket": state.vbucket,
            "kind": RowKind.POSITION,
            "seqno": state.position.seqno,
            "vb_uuid": state.position.vb_uuid,
            "position": row_of(state),
        }
        for state in states
    ]
    return pa.RecordBatch.from_pylist([*forks, *positions], schema=CHANGES)


def states_from_rows(rows: Iterable[Mapping[str, Any]]) -> dict[int, LakeVbucketState]:
    """Return the states of ``position`` rows, by vbucket.

    Raises:
        LakeError: a vbucket has two rows.
    """
    states: dict[int, LakeVbucketState] = {}
    for row in rows:
        state = read(LakeVbucketState, {**row, **row["position"]})
        if state.vbucket in states:
            raise LakeError(
                f"changes: found two position rows of vbucket {state.vbucket} in one round, "
                "expected one"
            )
        states[state.vbucket] = state
    return states

"""The plan of a round: the streams of each task, as text and as JSON. It holds no secret."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from dcp.client.addresses import NodeAddress
from dcp.lake.config.flow_control_settings import WindowPlan
from dcp.lake.config.settings import RollbackPolicy
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.document_filter import EVERYTHING, DocumentFilter
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart, RestartReason
from dcp.printable import Shown, number_ranges, printable
from dcp.protocol.position import Position
from dcp.records import SPREAD, UNSTORED, Record


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """Vbuckets that the lake will read from seqno 0, because their nodes order a rollback to 0."""

    vbuckets: tuple[int, ...]
    documents: int
    """The most documents that they hold."""
    bytes: float | None
    """Their estimated size, by the mean of the tables' rows; None without rows."""
    policy: RollbackPolicy

    def __str__(self) -> str:
        about = "" if self.bytes is None else f", about {self.bytes / 1e6:,.1f} MB"
        then = "their rows stay as they are until all of it is read"
        if self.policy is RollbackPolicy.FAIL:
            then = "they stay as they are, and a run ends with code 5"
        return (
            f"ordered back, to be read from seqno 0: vbuckets {number_ranges(self.vbuckets)}: "
            f"at most {self.documents:,} documents{about}; policy.rollback is {self.policy}: {then}"
        )


@dataclass(frozen=True, slots=True)
class Outlook:
    read_again: ReadAgain | None = None
    written_anew: tuple[str, ...] = ()
    """Tables that the next apply rewrites with other typed columns."""
    without_effect: tuple[str, ...] = ()
    """Settings without effect at this bucket, with the reason for each."""
    paused: str = ""
    """Who paused the lake; empty if nobody did."""

    @property
    def lines(self) -> list[str]:
        again = [] if self.read_again is None else [f"  {self.read_again}"]
        tables = (
            f"  {table}: the next apply writes all rows anew, with other typed columns"
            for table in self.written_anew
        )
        settings = (f"  {setting}" for setting in self.without_effect)
        return [*again, *tables, *settings, *pause_lines(self.paused)]


_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class BackfillNodes:
    reads_replicas: bool
    """If false, it reads from the nodes in the settings."""
    bytes_per_second: float | None = None
    """The limit for all tasks together; None: no limit."""

    def shared_by(self, tasks: int) -> "BackfillNodes":
        rate = self.bytes_per_second
        return self if rate is None or not tasks else replace(self, bytes_per_second=rate / tasks)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    state: Annotated[LakeVbucketState, UNSTORED]
    node: NodeAddress
    target_seqno: int
    """The least seqno to reach. If the lake has it already, the stream only asks the node to
    confirm the branch.
    """
    restart: Annotated[Restart | None, UNSTORED] = None
    """The round begins a new epoch with this restart; ``state`` includes it."""
    is_backfill: bool = False
    """A backfill reads it. The target is its own node's high seqno, which may lag."""

    @property
    def vbucket(self) -> Annotated[int, "vbucket"]:
        return self.state.vbucket

    @property
    def epoch(self) -> Annotated[int, "epoch"]:
        return self.state.epoch

    @property
    def position(self) -> Annotated[Position, SPREAD]:
        return self.state.position

    @property
    def restart_reason(self) -> Annotated[RestartReason | None, "restart"]:
        return None if self.restart is None else self.restart.reason

    @property
    def least_complete_seqno(self) -> int:
        """The least complete seqno at which a budget may end the stream; 0: it may end anywhere.

        After fruitless rollbacks it must reach its target (`dcp.lake.rounds.rollback_plan`).
        """
        must_reach_target = self.state.fruitless_rollbacks > 0 and self.state.complete_seqno == 0
        return self.target_seqno if must_reach_target else 0

    @property
    def backlog(self) -> int:
        """The seqnos between position and target: the most rows that the lake can lack."""
        return max(0, self.target_seqno - self.position.seqno)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One Spark task: its streams, and its share of the states that the round only copies."""

    index: int
    streams: tuple[StreamPlan, ...]
    unstreamed: Annotated[tuple[LakeVbucketState, ...], UNSTORED]
    """States of vbuckets that no task streams; the task writes them to the log."""
    windows: WindowPlan
    left_out: Annotated["tuple[LeftOut, ...]", UNSTORED] = ()
    """The vbuckets in `unstreamed` that should have a stream, each with the reason."""
    applied: Annotated[tuple[AppliedVersion, ...], UNSTORED] = ()
    """Versions of replica tables that the log does not list; the task writes them."""
    backfill: BackfillNodes | None = None
    """Set if all its streams belong to a backfill; its rate is this task's part."""
    seeds: Annotated[tuple[NodeAddress, ...], UNSTORED] = ()
    """The cluster's nodes when the round was planned. The task may ask them for a newer map."""
    document_filter: Annotated[DocumentFilter, UNSTORED] = EVERYTHING
    """The lake gets only documents that pass this filter."""

    @property
    def nodes(self) -> Annotated[tuple[NodeAddress, ...], "nodes"]:
        return tuple(sorted({stream.node for stream in self.streams}))

    @property
    def unstreamed_count(self) -> Annotated[int, "unstreamed"]:
        return len(self.unstreamed)

    @property
    def backlog(self) -> int:
        return sum(stream.backlog for stream in self.streams)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A vbucket that is or may be behind, and cannot be streamed."""

    vbucket: int
    reason: str
    """A `StuckReason`, a `StopReason` of the client, or an `Outcome`."""
    detail: str


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """The limits at which a task ends its streams."""

    target_bytes: int
    target_seconds: float


@dataclass(frozen=True, slots=True)
class RoundPlan(Record, Shown):
    """One round. Its tasks write the state of every vbucket, streamed or not."""

    lake_id: Annotated[str, "lake"]
    round: int
    tasks: tuple[TaskPlan, ...]
    left_out: tuple[LeftOut, ...]
    budget: Annotated[TaskBudget, SPREAD]
    """The budget of each task."""
    outlook: Annotated[Outlook | None, SPREAD] = None
    """Set if the caller asked for it (`dcp.lake.run.preview`)."""

    @property
    def streams(self) -> tuple[StreamPlan, ...]:
        streams = (stream for task in self.tasks for stream in task.streams)
        return tuple(sorted(streams, key=lambda stream: stream.vbucket))

    @property
    def backlog(self) -> int:
        return sum(task.backlog for task in self.tasks)

    def listing(self, applied: Sequence[AppliedVersion]) -> "RoundPlan":
        count = len(self.tasks)
        tasks = (replace(task, applied=tuple(applied[task.index :: count])) for task in self.tasks)
        return replace(self, tasks=tuple(tasks))

    def __str__(self) -> str:
        head = (
            f"round {self.round}: {len(self.streams)} vbuckets, {self.backlog:,} seqnos behind, "
            f"{len(self.tasks)} tasks of at most {self.budget.target_bytes:,} bytes "
            f"and {self.budget.target_seconds:g} s each"
        )
        windows = dict.fromkeys(f"  {task.windows}" for task in self.tasks)
        lines = [head, *windows, *map(_task_text, self.tasks), *_epoch_lines(self.streams)]
        return "\n".join(
            [*lines, *left_out_lines(self.left_out), *(self.outlook.lines if self.outlook else ())]
        )


@dataclass(frozen=True, slots=True)
class Idle(Record, Shown):
    """There is no round: no vbucket needs a stream, or none can have one."""

    lake_id: Annotated[str, "lake"]
    latest_round: int
    left_out: tuple[LeftOut, ...]
    outlook: Annotated[Outlook | None, SPREAD] = None
    delayed: Annotated[frozenset[int], UNSTORED] = frozenset()
    """Vbuckets that are behind but may wait (`dcp.lake.rounds.delayed_vbuckets`)."""
    round: None = None
    """So JSON shows ``round: null``, which a plan never has."""

    def __str__(self) -> str:
        lines = [f"no round: after round {self.latest_round} "]
        if self.delayed:
            lines[0] += "no vbucket needs one yet"
            vbuckets = number_ranges(self.delayed)
            lines.append(f"  delayed: vbuckets {vbuckets}: their last rounds brought no rows")
        else:
            lines[0] += "nothing can be streamed" if self.left_out else "no vbucket is behind"
        return "\n".join(
            [*lines, *left_out_lines(self.left_out), *(self.outlook.lines if self.outlook else ())]
        )


def _epoch_lines(streams: Sequence[StreamPlan]) -> list[str]:
    begins: dict[str, list[int]] = {}
    for stream in streams:
        if stream.restart is not None:
            position = stream.position
            text = f"epoch {stream.epoch} begins at seqno {position.seqno}"
            text += f" (branch {position.vb_uuid:016x})" if position.seqno else ""
            text += f": {stream.restart.reason}"
            begins.setdefault(text, []).append(stream.vbucket)
    return [f"  vbuckets {number_ranges(each)}: {text}" for text, each in begins.items()]


def pause_lines(paused: str) -> list[str]:
    if not paused:
        return []
    return [f"the lake is {paused}: no further round begins until dcplake resume"]


def _task_text(task: TaskPlan) -> str:
    by_node = [
        f"{node}: vbuckets "
        + number_ranges(stream.vbucket for stream in task.streams if stream.node == node)
        for node in task.nodes
    ]
    backfill = "" if task.backfill is None else f"{_backfill_text(task.backfill)}; "
    return f"  task {task.index}: {task.backlog:,} seqnos; {backfill}" + "; ".join(by_node)


def _backfill_text(nodes: BackfillNodes) -> str:
    told = "backfill from replica vbuckets" if nodes.reads_replicas else "backfill"
    if nodes.bytes_per_second is None:
        return told
    return f"{told}, at most {nodes.bytes_per_second / 1e6:,.3g} MB/s"


def left_out_lines(left_out: tuple[LeftOut, ...], what: str = "left out") -> list[str]:
    by_reason: dict[tuple[str, str], list[int]] = {}
    for left in left_out:
        by_reason.setdefault((left.reason, left.detail), []).append(left.vbucket)
    lines = [
        f"  {what}: vbuckets {number_ranges(vbuckets)}: {reason} ({printable(detail)})"
        for (reason, detail), vbuckets in by_reason.items()
    ]
    more = len(lines) - _LISTED
    return [*lines[:_LISTED], f"  … and {more} more reasons"] if more > 0 else lines

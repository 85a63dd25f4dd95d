"""Decides when a vbucket ends in a round: target reached, budget used, caught up or stuck.

Silence proves nothing: a node that died, hangs, or prepares a backfill is as silent as a node
without news. So after some silence the task asks the vbucket's node for its high seqnos, over the
connection of the streams. Only the answer ends a vbucket as caught up: everything up to that high
seqno is here. A vbucket is stopped at ``deadline_seconds`` if its node does not answer, or if it
stays short of the node's high seqno; the reason says which. Without an open stream the consumer
decides by its own attempts (``stream_keeper.py``).

Each vbucket has its own deadline. Progress of other vbuckets extends it in one case only: a node
reads its disk for one vbucket after the other (``backfill_order``, docs/reference/negotiation.md).
So a vbucket may wait for its turn while others get snapshots from disk. Each part of those
snapshots begins its deadline anew.

    the vbucket is                         may be waiting for its turn
    between two snapshots                  yes
    inside one, nothing came since open    yes: markers of all snapshots may come first
    inside one, something came             no: it has its turn

Streams from memory take turns message by message; nobody waits that long for those.

Silence counts only while the task listens: not while Spark holds its batches, whose bytes may fill
the window. It counts at most ``LONGEST_WAIT_SECONDS`` of a single wait: a longer one, as of a
machine that slept, has left data unread. Parts of a large document are no silence either.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.consumer_events import StopReason
from dcp.lake.rounds.round_plan import TaskBudget
from dcp.lake.rounds.stream_result import StreamResult
from dcp.lake.tables.round_record import Outcome, StuckReason
from dcp.wire.vocabulary import SnapshotFlag

LONGEST_WAIT_SECONDS: Final = 0.25
"""The longest wait of a task for a delivery. It may notice a deadline this much later."""


_SHORT_ROUNDS: Final = 3
"""After this many rounds without news a vbucket is named, however short they were."""


UNLIMITED: Final = TaskBudget(target_bytes=2**62, target_seconds=7 * 86400.0)
"""For reads that are all or nothing: they end with their targets, or with a failure."""


@dataclass(frozen=True, slots=True)
class VbucketStop:
    vbucket: int
    outcome: Outcome
    reason: str = ""
    detail: str = ""


@dataclass(slots=True)
class _Stream:
    """An open stream, and its news. Times count only while the task listened."""

    opened_at: float
    heard_at: float
    has_moved: bool = False
    is_from_disk: bool = False
    """True if its newest snapshot comes from disk."""


@dataclass(slots=True)
class _Node:
    """A node, and its answers. Times count only while the task listened."""

    asked_at: float = -inf
    unanswered_since: float = inf
    answered_at: float = -inf
    high_seqnos: Mapping[int, int] | None = None
    disk_heard_at: float = -inf
    """When it last sent anything from its disk."""
    part_heard: tuple[int, float] | None = None


class StopPolicy:
    """Decides for one task; the caller gives ``now``, of ``time.monotonic``."""

    def __init__(self, budget: TaskBudget, quiet_seconds: float, deadline_seconds: float) -> None:
        """The node of a silent vbucket is asked after ``quiet_seconds``."""
        self.began_at = self.ends_at = inf
        self._budget = budget
        self._ask_after_seconds = min(
            quiet_seconds, deadline_seconds / 2, budget.target_seconds / 2
        )
        self._deadline_seconds = deadline_seconds
        self._reads_since = inf
        self._listened_seconds = 0.0
        self._judges_at = 0.0
        self._streams: dict[int, _Stream] = {}
        self._nodes: dict[NodeAddress, _Node] = {}

    # What happened

    def begin(self, now: float) -> None:
        self.began_at = now
        self.ends_at = now + self._budget.target_seconds
        self._reads_since = now

    def listened(self, now: float) -> None:
        waited_seconds = now - self._reads_since
        self._listened_seconds += min(waited_seconds, LONGEST_WAIT_SECONDS)
        self._reads_since = now

    def resumed_reading(self, now: float) -> None:
        """Note that until ``now`` the thread waited for Spark or the rate limit, and did not
        read.
        """
        self._reads_since = now

    def opened(self, node: NodeAddress, vbucket: int) -> None:
        self._nodes.setdefault(node, _Node())
        self._streams[vbucket] = _Stream(self._listened_seconds, self._listened_seconds)

    def snapshot_started(self, vbucket: int, flags: int) -> None:
        stream = self._streams.get(vbucket)
        if stream is not None:
            stream.heard_at = self._listened_seconds
            stream.is_from_disk = bool(flags & SnapshotFlag.DISK)

    def moved(self, node: NodeAddress, vbuckets: Iterable[int]) -> None:
        for vbucket in vbuckets:
            if vbucket in self._streams:
                self._streams[vbucket].has_moved = True
                self._hear(node, vbucket)

    def answered(self, node: NodeAddress, seqnos: Mapping[int, int]) -> None:
        told = self._nodes[node]
        told.answered_at, told.high_seqnos = self._listened_seconds, seqnos
        told.unanswered_since = inf
        self._judges_at = self._listened_seconds

    def _hear(self, node: NodeAddress, vbucket: int) -> None:
        stream = self._streams[vbucket]
        stream.heard_at = self._listened_seconds
        if stream.is_from_disk:
            self._nodes[node].disk_heard_at = self._listened_seconds

    # What follows

    def out_of_budget(
        self, results: Iterable[StreamResult], consumer: Consumer, round_number: int
    ) -> Iterator[VbucketStop]:
        """Yield the end of each open vbucket when the budget is used up.

        A vbucket that the round did not advance gets a reason after a long silence, or after
        several rounds without news.
        """
        for result in results:
            vbucket = result.plan.vbucket
            reason = detail = ""
            if trouble := consumer.trouble(vbucket):
                reason, detail = StuckReason.NO_STREAM, trouble
            elif result.position.seqno == result.plan.position.seqno:
                is_silent = self._silent_seconds(vbucket) >= self._ask_after_seconds
                rounds = round_number - (result.plan.state.last_data_round or 0)
                if is_silent or rounds > _SHORT_ROUNDS or self._waits_for_turn(result):
                    reason, detail = self._standstill(result)
            yield VbucketStop(vbucket, Outcome.BUDGET, reason, detail)

    def stops(self, results: Iterable[StreamResult], consumer: Consumer) -> Iterator[VbucketStop]:
        """Yield the vbuckets that end at this moment; ask the nodes of silent ones for their high
        seqnos.

        It may be called after each delivery: it looks only after an interval, or after an answer.
        """
        if self._listened_seconds < self._judges_at:
            return
        self._judges_at = self._listened_seconds + LONGEST_WAIT_SECONDS
        for node, told in self._nodes.items():
            part = consumer.part_heard(node)
            if part is not None and part != told.part_heard and part[0] in self._streams:
                told.part_heard = part
                self._hear(node, part[0])
        asked_nodes: dict[NodeAddress, None] = {}
        for result in results:
            vbucket = result.plan.vbucket
            if result.node is None or not consumer.is_streaming(vbucket):
                continue
            silent_seconds = self._silent_seconds(vbucket)
            if silent_seconds < self._ask_after_seconds:
                continue
            if self._is_caught_up(result):
                yield VbucketStop(vbucket, Outcome.CAUGHT_UP)
            elif silent_seconds < self._deadline_seconds or self._waits_for_turn(result):
                asked_nodes[result.node] = None
            else:
                yield VbucketStop(vbucket, Outcome.STOPPED, *self._standstill(result))
        for node in asked_nodes:
            self._ask(node, consumer)

    def _is_caught_up(self, result: StreamResult) -> bool:
        assert result.node is not None, "it has a stream"
        stream, position = self._streams[result.plan.vbucket], result.position
        node_seqno = (self._told(result) or {}).get(result.plan.vbucket)
        return (
            node_seqno is not None
            and self._nodes[result.node].answered_at >= stream.heard_at
            and position.is_complete
            and position.complete_seqno >= node_seqno
        )

    def _told(self, result: StreamResult) -> Mapping[int, int] | None:
        """Return the node's high seqnos, if it sent them since the stream opened."""
        assert result.node is not None, "it has a stream"
        node = self._nodes[result.node]
        if node.answered_at < self._streams[result.plan.vbucket].opened_at:
            return None
        return node.high_seqnos

    def _silent_seconds(self, vbucket: int) -> float:
        return self._listened_seconds - self._streams[vbucket].heard_at

    def _waits_for_turn(self, result: StreamResult) -> bool:
        """Return whether the node may be reading its disk for others first."""
        assert result.node is not None, "it has a stream"
        is_inside = not result.position.is_complete
        if is_inside and self._streams[result.plan.vbucket].has_moved:
            return False
        disk_silent_seconds = self._listened_seconds - self._nodes[result.node].disk_heard_at
        return disk_silent_seconds < self._deadline_seconds

    def _standstill(self, result: StreamResult) -> tuple[str, str]:
        assert result.node is not None, "it has a stream"
        node, position = result.node, result.position
        if self._waits_for_turn(result):
            return StuckReason.WAITING_FOR_TURN, f"{node} reads its disk for other vbuckets first"
        silent_seconds = self._silent_seconds(result.plan.vbucket)
        nothing = f"{node} sent nothing of it for {silent_seconds:.1f} s at seqno {position.seqno}"
        unanswered_seconds = self._listened_seconds - self._nodes[node].unanswered_since
        if unanswered_seconds >= self._ask_after_seconds:
            return StopReason.NODE_UNAVAILABLE, f"{nothing}, and does not answer what it holds"
        holds = _holds(result.plan.vbucket, self._told(result))
        if position.is_complete:
            return StuckReason.WAITING_FOR_DATA, f"{nothing}, and {holds}"
        snapshot = f"of a snapshot that ends at {position.snap_end}"
        return StuckReason.WAITING_FOR_SNAPSHOT_END, f"{nothing} {snapshot}, and {holds}"

    def _ask(self, node: NodeAddress, consumer: Consumer) -> None:
        """Ask again only after the time for an answer: answers may wait behind data."""
        asked = self._nodes[node]
        since_seconds = self._listened_seconds - asked.asked_at
        if since_seconds >= self._ask_after_seconds and consumer.request_high_seqnos(node):
            asked.asked_at = self._listened_seconds
            asked.unanswered_since = min(asked.unanswered_since, asked.asked_at)


def _holds(vbucket: int, seqnos: Mapping[int, int] | None) -> str:
    if seqnos is None:
        return "did not say what it holds"
    node_seqno = seqnos.get(vbucket)
    holds = "nothing of it" if node_seqno is None else f"seqnos up to {node_seqno}"
    return f"says that it holds {holds}"

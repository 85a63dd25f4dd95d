"""Decides when a vbucket ends in a round: target reached, budget used, caught up or stuck.

Silence proves nothing: a node that died, hangs, or prepares a backfill is as silent as one that has
no more for us. So a node that was silent for a while is asked for its high seqnos, over the very
connection that carries the streams, and only its answer ends a vbucket as caught up: everything up
to the high seqno that it told is here. A vbucket whose node does not answer, or that stays short of
what the node says it holds, is stopped with that reason at ``deadline_seconds``. Where no stream is
open the consumer decides by its own attempts (``stream_keeper.py``).

Silence is counted only while we listen: not while Spark holds our batches, whose bytes may fill the
window. Parts of a large document are no silence either.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from dcp.client.addresses import NodeAddress
from dcp.lake.rounds.stream_result import StreamResult
from dcp.lake.tables.round_record import Outcome


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """The most that one task may receive: bytes and seconds."""

    target_bytes: int
    target_seconds: float


UNLIMITED: Final = TaskBudget(target_bytes=2**62, target_seconds=7 * 86400.0)
"""For readings that are all or nothing: they end with their targets, or with what goes wrong."""


class ConsumerStreams(Protocol):
    """The consumer's interface for the stop policy."""

    def is_streaming(self, vbucket: int) -> bool:
        """Return whether the vbucket has an open stream."""

    def trouble(self, vbucket: int) -> str:
        """Return why a vbucket has no stream; empty where it has one, or none was tried."""

    def data_heard_at(self, node: NodeAddress) -> float:
        """Return when the node last sent data, even part of a message (``time.monotonic``)."""

    def request_high_seqnos(self, node: NodeAddress) -> bool:
        """Ask for the node's high seqnos; False where there is no connection to ask over."""


@dataclass(frozen=True, slots=True)
class VbucketStop:
    """The end of a vbucket's stream in this round, and the reason."""

    vbucket: int
    outcome: Outcome
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The high seqnos by vbucket that a node answered, and when."""

    at: float
    seqnos: Mapping[int, int]


class StopPolicy:
    """Decides for one task; times are seconds of ``time.monotonic``, given by the caller."""

    def __init__(self, budget: TaskBudget, quiet_seconds: float, deadline_seconds: float) -> None:
        """Prepare; a silent node will be asked after ``quiet_seconds``."""
        self.began_at = self.ends_at = inf
        self._budget = budget
        self._ask_after_seconds = min(quiet_seconds, deadline_seconds / 2)
        self._deadline_seconds = deadline_seconds
        self._listening_since = -inf
        self._heard_at: dict[NodeAddress | None, float] = {}
        self._asked_at: dict[NodeAddress, float] = {}
        self._answers: dict[NodeAddress, _Answer] = {}

    # What happened

    def begin(self, now: float) -> None:
        """Note that the task begins to receive."""
        self.began_at = now
        self.ends_at = now + self._budget.target_seconds
        self._listening_since = now

    def received(self, node: NodeAddress | None, frame_bytes: int, now: float) -> None:
        """Note a delivery; answers, which carry no data, are no progress."""
        if frame_bytes:
            self._heard_at[node] = now

    def answered(self, node: NodeAddress, seqnos: Mapping[int, int], now: float) -> None:
        """Note the high seqnos that a node told."""
        self._answers[node] = _Answer(now, seqnos)

    def resumed_reading(self, now: float) -> None:
        """Note that the thread was busy with Spark until ``now`` and did not read."""
        self._listening_since = now

    # What follows

    def out_of_budget(
        self, vbuckets: Collection[int], streams: ConsumerStreams
    ) -> Iterator[VbucketStop]:
        """Yield the end of what is still open when the budget is used up."""
        for vbucket in vbuckets:
            trouble = streams.trouble(vbucket)
            yield VbucketStop(vbucket, Outcome.BUDGET, "no stream" if trouble else "", trouble)

    def stops(
        self, results: Collection[StreamResult], streams: ConsumerStreams, now: float
    ) -> Iterator[VbucketStop]:
        """Yield the vbuckets that end now; ask the nodes that are silent whether they have more."""
        silent_nodes: dict[NodeAddress, None] = {}
        for result in results:
            node = result.node
            if node is None or not streams.is_streaming(result.plan.vbucket):
                continue
            if self._is_caught_up(result, node):
                yield VbucketStop(result.plan.vbucket, Outcome.CAUGHT_UP)
                continue
            silent_seconds = now - self._progress_at(result, node, streams)
            if silent_seconds >= self._deadline_seconds:
                yield self._stuck(result, node, silent_seconds)
            elif silent_seconds >= self._ask_after_seconds:
                silent_nodes[node] = None
        for node in silent_nodes:
            self._ask(node, streams, now)

    def _is_caught_up(self, result: StreamResult, node: NodeAddress) -> bool:
        held_seqno = self._held_seqno(result, node)
        position = result.position
        return (
            held_seqno is not None
            and position.is_complete
            and position.complete_seqno >= held_seqno
        )

    def _held_seqno(self, result: StreamResult, node: NodeAddress) -> int | None:
        """Return what the node holds of a vbucket, if it said so since the stream opened."""
        answer = self._answers.get(node)
        if answer is None or answer.at < result.opened_at:
            return None
        return answer.seqnos.get(result.plan.vbucket)

    def _progress_at(
        self, result: StreamResult, node: NodeAddress, streams: ConsumerStreams
    ) -> float:
        return max(
            result.opened_at,
            self._listening_since,
            self._heard_at.get(node, -inf),
            streams.data_heard_at(node),
        )

    def _stuck(self, result: StreamResult, node: NodeAddress, silent_seconds: float) -> VbucketStop:
        vbucket, position = result.plan.vbucket, result.position
        answer = self._answers.get(node)
        if answer is None or answer.at < self._asked_at.get(node, -inf):
            return VbucketStop(
                vbucket,
                Outcome.STOPPED,
                "node unavailable",
                f"{node} sent nothing for {silent_seconds:.1f} s and does not answer what it holds",
            )
        if not position.is_complete:
            return VbucketStop(
                vbucket,
                Outcome.STOPPED,
                "waiting for snapshot end",
                f"{node} sent nothing for {silent_seconds:.1f} s at seqno {position.seqno} of a "
                f"snapshot that ends at {position.snap_end}",
            )
        held_seqno = self._held_seqno(result, node)
        holds = "nothing of it" if held_seqno is None else f"seqnos up to {held_seqno}"
        return VbucketStop(
            vbucket,
            Outcome.STOPPED,
            "waiting for data",
            f"{node} sent nothing for {silent_seconds:.1f} s at seqno {position.seqno}, and says "
            f"that it holds {holds}",
        )

    def _ask(self, node: NodeAddress, streams: ConsumerStreams, now: float) -> None:
        """Ask again only when the time to answer is over: answers may wait behind data."""
        since = now - self._asked_at.get(node, -inf)
        if since >= self._ask_after_seconds and streams.request_high_seqnos(node):
            self._asked_at[node] = now

"""Tracks a run that ends: the seqnos to reach, and the vbuckets it gives up. No Spark.

It wants the seqnos that the cluster held at its start, lowered where a failover lost some of them.
It gives up vbuckets that make no progress, so that it ends whatever a node does.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dcp.lake.rounds.round_plan import LeftOut, RoundPlan
from dcp.lake.tables.round_record import Outcome
from dcp.lake.tables.vbucket_state import RestartReason

if TYPE_CHECKING:
    from dcp.client.probe import ClusterView
    from dcp.lake.rounds.round_report import RoundReport

_FRUITLESS_ROUNDS: Final = 3
"""After so many rounds in a row without any progress, the vbuckets that are behind are given up."""

_AGREEMENTS: Final = 3
"""A node that agrees with us and tells something else is asked again so often."""

_EPOCHS_MOST: Final = 30
"""More than a failover log has entries: so many rollbacks of a vbucket in one run lead nowhere."""


class BoundedRun:
    """``goals`` are seqnos by vbucket; ``given_up`` says why a vbucket is not tried again."""

    def __init__(self, cluster: "ClusterView") -> None:
        self.goals: dict[int, int] = dict(cluster.high_seqnos)
        self.given_up: dict[int, LeftOut] = {}
        self._agreed: Counter[int] = Counter()
        self._begun: Counter[int] = Counter()
        self._fruitless = 0

    def learn(self, plan: RoundPlan, report: "RoundReport") -> None:
        progress = _progress(plan, report)
        self._fruitless = 0 if any(progress.values()) else self._fruitless + 1
        self._give_up_what_stands_still(plan, report, progress)
        self._give_up_what_contradicts_itself(plan, report)
        # A node that proved to hold less than it did: a failover lost the rest. A replica does not.
        backfill = _backfill_vbuckets(plan)
        self.goals |= {
            each.vbucket: each.complete_seqno
            for each in report.vbuckets
            if each.outcome is Outcome.CAUGHT_UP and each.vbucket not in backfill
        }

    def update(self, cluster: "ClusterView") -> None:
        known = cluster.high_seqnos
        lowered = {vb: min(goal, known.get(vb, goal)) for vb, goal in self.goals.items()}
        self.goals = {**known, **lowered}

    def _give_up_what_stands_still(
        self, plan: RoundPlan, report: "RoundReport", progress: Mapping[int, bool]
    ) -> None:
        everything = self._fruitless >= _FRUITLESS_ROUNDS
        backfill = _backfill_vbuckets(plan)  # which has its own patience
        for each in report.vbuckets:
            if each.vbucket in backfill or progress[each.vbucket]:
                continue
            if each.failed or (everything and each.outcome is Outcome.BUDGET):
                reason = each.reason or "no progress"
                detail = each.detail or f"{_FRUITLESS_ROUNDS} rounds brought nothing of it"
                self.given_up[each.vbucket] = LeftOut(each.vbucket, reason, detail)

    def _give_up_what_contradicts_itself(self, plan: RoundPlan, report: "RoundReport") -> None:
        """Give up vbuckets whose node says one thing and does another, again and again.

        It agreed, but told a lower high seqno or another branch; such vbuckets are asked for even
        at their target (`dcp.lake.rounds.round_planner.is_elsewhere`). Or it ordered one rollback
        after another.
        """
        not_asked = {each.vbucket for each in report.vbuckets if each.outcome is Outcome.BUDGET}
        for stream in plan.streams:
            vbucket = stream.vbucket
            if stream.is_backfill or vbucket in not_asked:
                continue
            if stream.restart is not None:
                self._begun[vbucket] += stream.restart.reason is RestartReason.ROLLBACK
            elif stream.target_seqno <= stream.state.complete_seqno:
                self._agreed[vbucket] += 1
            detail = ""
            if self._agreed[vbucket] >= _AGREEMENTS:
                detail = "it told of another branch or a lower seqno, and went on from ours"
            elif self._begun[vbucket] >= _EPOCHS_MOST:
                detail = f"it ordered {self._begun[vbucket]} rollbacks in this run"
            if detail:
                self.given_up[vbucket] = LeftOut(vbucket, "node contradicts itself", detail)


def _backfill_vbuckets(plan: RoundPlan) -> frozenset[int]:
    return frozenset(stream.vbucket for stream in plan.streams if stream.is_backfill)


def _progress(plan: RoundPlan, report: "RoundReport") -> dict[int, bool]:
    """Return for each streamed vbucket whether the round advanced it.

    A rollback does: each leads further back, or the plan reports it
    (`dcp.lake.rounds.rollback_plan`).
    """
    before = {each.vbucket: each.state.position.seqno for each in plan.streams}
    return {
        each.vbucket: each.seqno > before[each.vbucket]
        or each.outcome in (Outcome.REACHED, Outcome.CAUGHT_UP, Outcome.ROLLBACK)
        for each in report.vbuckets
    }

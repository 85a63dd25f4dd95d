"""Tracks a run that ends: the seqnos to reach, and the vbuckets that it gives up. No Spark.

The goals are the cluster's high seqnos at the start of the run; a failover lowers them. Vbuckets
without progress are given up, so that the run ends whatever a node does.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dcp.lake.rounds.round_plan import LeftOut, RoundPlan
from dcp.lake.tables.round_record import Outcome, StuckReason
from dcp.lake.tables.vbucket_state import RestartReason

if TYPE_CHECKING:
    from dcp.client.probe import ProbedCluster
    from dcp.lake.rounds.round_report import RoundReport

_FRUITLESS_ROUNDS: Final = 3
"""After this many rounds in a row without progress the run gives up the vbuckets that are
behind.
"""

_AGREEMENTS: Final = 3
"""After this many accepted streams the run gives up a vbucket whose node still reports another
seqno or branch.
"""

_EPOCHS_MOST: Final = 30
"""More rollbacks of one vbucket than a failover log has entries: the run gives it up."""


class BoundedRun:
    """``goals`` are seqnos by vbucket; ``given_up`` holds the reason for each vbucket that is not
    tried again.
    """

    def __init__(self, cluster: "ProbedCluster") -> None:
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
        # If a vbucket catches up with its active node below the goal, a failover lost the rest. A
        # replica vbucket may just lag.
        backfill = _backfill_vbuckets(plan)
        self.goals |= {
            each.vbucket: each.complete_seqno
            for each in report.vbuckets
            if each.outcome is Outcome.CAUGHT_UP and each.vbucket not in backfill
        }

    def update(self, cluster: "ProbedCluster") -> None:
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
                reason = each.reason or StuckReason.NO_PROGRESS
                detail = each.detail or f"{_FRUITLESS_ROUNDS} rounds brought nothing of it"
                self.given_up[each.vbucket] = LeftOut(each.vbucket, reason, detail)

    def _give_up_what_contradicts_itself(self, plan: RoundPlan, report: "RoundReport") -> None:
        """Give up vbuckets whose node contradicts itself again and again.

        Such a node accepts a stream, but reports a lower high seqno or another branch
        (`dcp.lake.rounds.round_planner.is_elsewhere`). Or it orders one rollback after another.
        """
        not_asked = {each.vbucket for each in report.vbuckets if each.outcome is Outcome.BUDGET}
        for stream in plan.streams:
            vbucket = stream.vbucket
            if stream.is_backfill or vbucket in not_asked:
                continue
            if stream.restart is not None:
                self._begun[vbucket] += stream.restart_reason is RestartReason.ROLLBACK
            elif stream.target_seqno <= stream.state.complete_seqno:
                self._agreed[vbucket] += 1
            detail = ""
            if self._agreed[vbucket] >= _AGREEMENTS:
                detail = "it told of another branch or a lower seqno, and went on from ours"
            elif self._begun[vbucket] >= _EPOCHS_MOST:
                detail = f"it ordered {self._begun[vbucket]} rollbacks in this run"
            if detail:
                reason = StuckReason.NODE_CONTRADICTS_ITSELF
                self.given_up[vbucket] = LeftOut(vbucket, reason, detail)


def _backfill_vbuckets(plan: RoundPlan) -> frozenset[int]:
    return frozenset(stream.vbucket for stream in plan.streams if stream.is_backfill)


def _progress(plan: RoundPlan, report: "RoundReport") -> dict[int, bool]:
    """Return for each streamed vbucket whether the round advanced it.

    A rollback counts as progress: each goes further back, or the plan gives the vbucket up
    (`dcp.lake.rounds.rollback_plan`).
    """
    before = {each.vbucket: each.position.seqno for each in plan.streams}
    return {
        each.vbucket: each.seqno > before[each.vbucket]
        or each.outcome in (Outcome.REACHED, Outcome.CAUGHT_UP, Outcome.ROLLBACK)
        for each in report.vbuckets
    }

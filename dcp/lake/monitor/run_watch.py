"""Notes a run's progress from its observer's events, for health checks."""

from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Final

from dcp.lake.change_log.last_contact import LastContact
from dcp.lake.config.settings import RoundSettings
from dcp.lake.monitor.figures_reader import NOTHING_UNDER_WAY
from dcp.lake.monitor.lake_figures import Health
from dcp.lake.rounds.observer import NEXT_ROUND, Observer, StreamProgress, Wait

if TYPE_CHECKING:
    from dcp.lake.rounds.backfill_plan import BackfillReport
    from dcp.lake.rounds.observer import RoundProgress
    from dcp.lake.rounds.round_plan import Idle, RoundPlan
    from dcp.lake.rounds.round_report import RoundReport
    from dcp.lake.tables.applied_version import AppliedVersion

_NOTHING: Final = Wait("", is_trouble=False)


class RunWatch(Observer):
    """Passes events on, and reports from any thread how the run stands."""

    def __init__(
        self, inner: Observer, rounds: RoundSettings, clock: Callable[[], float] = monotonic
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._rounds = rounds
        self._moved_at = clock()
        self._wait = Wait("its first round", is_trouble=False)
        self._progress: RoundProgress | None = None
        self._done = StreamProgress()
        self.under_way = NOTHING_UNDER_WAY
        """The running round's target seqnos, and the run's last contact with the cluster."""

    def health(self) -> Health:
        if self._progress is not None and (done := self._progress.total()) != self._done:
            self._done, self._moved_at = done, self._clock()
        quiet_seconds = self._clock() - self._moved_at
        limit_seconds = self._rounds.stall_seconds
        in_time = quiet_seconds < limit_seconds
        is_well = in_time and not self._wait.is_trouble
        return Health(is_well, self._wait.reason, round(quiet_seconds, 1), limit_seconds)

    def planned(self, plan: "RoundPlan", progress: "RoundProgress | None") -> None:
        targets = {stream.vbucket: stream.target_seqno for stream in plan.streams}
        self.under_way = targets, self._contact(plan.backlog)
        self._progress, self._done = progress, StreamProgress()
        self._inner.planned(plan, progress)

    def committed(self, report: "RoundReport") -> None:
        """Note progress; the lake has the round's open seqnos now."""
        self.under_way, self._progress = ({}, self.under_way[1]), None
        self._move()
        self._inner.committed(report)

    def applied(self, version: "AppliedVersion") -> None:
        self._move()
        self._inner.applied(version)

    def erased(self, request_id: str, detail: str) -> None:
        self._move()
        self._inner.erased(request_id, detail)

    def idle(self, idle: "Idle") -> None:
        self.under_way = {}, self._contact(0)
        self._move()
        self._inner.idle(idle)

    def backfill(self, report: "BackfillReport") -> None:
        self._inner.backfill(report)

    def ended(self) -> None:
        self._inner.ended()

    def waiting(self, seconds: float, wait: Wait) -> None:
        """Note a wait. One without trouble, such as a pause, counts as progress."""
        if not wait.is_trouble:
            self._move()
        if wait != NEXT_ROUND:
            self._wait = wait
        self._inner.waiting(seconds, wait)

    def _contact(self, behind: int) -> LastContact:
        return LastContact.now(datetime.now(UTC), self._rounds, behind)

    def _move(self) -> None:
        self._moved_at = self._clock()
        self._wait = _NOTHING

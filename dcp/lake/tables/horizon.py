"""The rollback horizon: how long versions and changes stay, and what a shorter time would cost.

Delta counts the age of a data file from the commit that removed it, and the age of a version from
its *creation*: log cleanup forgets a version that was superseded a second ago. So files are kept
for the horizon H, the log for 2 H, and the newest version is made anew with the same rows once it
is older than H/4 (`dcp.lake.maintain.horizon_guard`): what was current within H is then never older
than 2 H. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from dcp.lake.tables.history import TableCommit

HOUR_SECONDS: Final = 3600

FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
LOG_RETENTION: Final = "delta.logRetentionDuration"

RECORDED: Final = "dcplake.horizonSeconds"
"""Property of ``changes``: the horizon that the newest run kept."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """The rollback horizon: any positive time here, an hour or more in settings."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"horizon: found {self.seconds} seconds, expected more than 0")

    @classmethod
    def of_hours(cls, hours: float) -> "Horizon":
        return cls(hours * HOUR_SECONDS)

    @property
    def heartbeat_seconds(self) -> float:
        """At this age of its newest version a table gets a new one."""
        return self.seconds / 4

    def start(self, now: datetime) -> datetime:
        """Return the moment since which every state must stay readable."""
        return now - timedelta(seconds=self.seconds)

    @property
    def recorded(self) -> str:
        return str(float(self.seconds))

    def properties(self) -> dict[str, str]:
        return {FILE_RETENTION: _interval(self.seconds), LOG_RETENTION: _interval(2 * self.seconds)}

    def differing(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return those of `properties` that a table lacks.

        An interval in other words differs: delta-rs does not understand each of them.
        """
        wanted = self.properties().items()
        return {name: value for name, value in wanted if properties.get(name) != value}

    def __str__(self) -> str:
        return duration(self.seconds)


def duration(seconds: float) -> str:
    if seconds < HOUR_SECONDS:
        return f"{seconds:g} seconds"
    return f"{seconds / HOUR_SECONDS:g} hours"


def _interval(seconds: float) -> str:
    """Return an interval as Delta writes and reads it, exact to a millisecond."""
    milliseconds = max(1, round(seconds * 1000))
    if milliseconds % 1000:
        return f"interval {milliseconds} milliseconds"
    return f"interval {milliseconds // 1000} seconds"


def version_at(commits: Sequence[TableCommit], moment: datetime) -> TableCommit | None:
    """Return the newest of the commits, newest first, at ``moment``; None if all are later."""
    return next((commit for commit in commits if commit.time <= moment), None)


@dataclass(frozen=True, slots=True)
class HorizonLoss:
    """The versions that a shorter time than the horizon would lose, oldest first."""

    table: str
    versions: tuple[TableCommit, ...]

    def __str__(self) -> str:
        first, last = self.versions[0], self.versions[-1]
        words = f"{len(self.versions)} versions of {self.table} ({first.version} to {last.version}"
        rounds = [int(commit.ours["to_round"]) for commit in self.versions if commit.is_apply]
        return words + (f", rounds {rounds[0]} to {rounds[-1]})" if rounds else ")")


def loss(
    table: str, commits: Sequence[TableCommit], horizon: Horizon, kept_seconds: float, now: datetime
) -> HorizonLoss | None:
    """Return the versions that a rollback would miss if only ``kept_seconds`` were kept.

    They were superseded within the horizon, and before that shorter time.
    """
    begin, end = horizon.start(now), now - timedelta(seconds=kept_seconds)
    lost = [
        older for newer, older in pairwise(commits) if begin < newer.time <= end
    ]  # commits are newest first: each is superseded by the one before it
    return HorizonLoss(table, tuple(reversed(lost))) if lost else None

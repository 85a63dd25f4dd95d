"""The rollback horizon H: how long versions and changes stay, and what a shorter time would lose.

Delta's log cleanup counts a version's age from its creation, not from its replacement. Files
are kept for H, the Delta log for 2 H, and a heartbeat renews a version older than H/4
(`dcp.lake.maintain.horizon_guard`). So no version that was current within H is older than 2 H.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from dcp.lake.store.file_commit import DELTA_LOG_RETENTION
from dcp.lake.tables.history import TableCommit

HOUR_SECONDS: Final = 3600

FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"

RECORDED: Final = "dcplake.horizonSeconds"
"""The property of ``changes`` with the horizon of the newest run."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """The rollback horizon. It may be any positive time; settings allow an hour or more."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"horizon: found {self.seconds} seconds, expected more than 0")

    @classmethod
    def of_hours(cls, hours: float) -> "Horizon":
        return cls(hours * HOUR_SECONDS)

    @property
    def heartbeat_seconds(self) -> float:
        """A table whose newest version is older than this gets a new one with the same rows."""
        return self.seconds / 4

    def start(self, now: datetime) -> datetime:
        return now - timedelta(seconds=self.seconds)

    @property
    def recorded(self) -> str:
        return str(float(self.seconds))

    def properties(self) -> dict[str, str]:
        return {
            FILE_RETENTION: _interval(self.seconds),
            DELTA_LOG_RETENTION: _interval(2 * self.seconds),
        }

    def differing(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the wanted properties that a table lacks, or writes in other words.

        delta-rs does not parse every spelling of an interval.
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
    """Return an interval in the spelling of Delta, exact to a millisecond."""
    milliseconds = max(1, round(seconds * 1000))
    if milliseconds % 1000:
        return f"interval {milliseconds} milliseconds"
    return f"interval {milliseconds // 1000} seconds"


def version_at(commits: Sequence[TableCommit], moment: datetime) -> TableCommit | None:
    return next((commit for commit in commits if commit.time <= moment), None)


def loss_text(
    table: str, commits: Sequence[TableCommit], horizon: Horizon, kept_seconds: float, now: datetime
) -> str:
    """Name the versions that a rollback would miss if only ``kept_seconds`` were kept.

    They were replaced within the horizon, but longer ago than ``kept_seconds``. The text is empty
    if there are none. ``commits`` come newest first.
    """
    begin, end = horizon.start(now), now - timedelta(seconds=kept_seconds)
    # A version is replaced at the time of the next newer commit.
    lost = [older for newer, older in pairwise(commits) if begin < newer.time <= end]
    if not lost:
        return ""
    words = f"{len(lost)} versions of {table} ({lost[-1].version} to {lost[0].version}"
    rounds = [int(commit.ours["to_round"]) for commit in lost if commit.is_apply]
    return words + (f", rounds {rounds[-1]} to {rounds[0]})" if rounds else ")")

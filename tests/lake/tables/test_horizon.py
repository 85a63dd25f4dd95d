"""The horizon's arithmetic: intervals, the version that was current, what a shorter time costs."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.tables.history import TableCommit
from dcp.lake.tables.horizon import (
    FILE_RETENTION,
    LOG_RETENTION,
    Horizon,
    interval_seconds,
    loss,
    version_at,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def apply(version: int, hours_ago: float, to_round: int) -> TableCommit:
    return TableCommit(
        version, ago(hours_ago), "MERGE", {"from_round": 0, "to_round": to_round, "writer": "w"}
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 604800 seconds", 604800.0),
        ("interval 1 week", 604800.0),
        ("INTERVAL 7 DAYS", 604800.0),
        ("2 hours 30 minutes", 9000.0),
        ("interval 1 day 1 hour 1 minute 1 second 500 milliseconds", 90061.5),
        ("interval 1500 milliseconds", 1.5),
        ("interval 250000 microseconds", 0.25),
        ("interval 0 hours", 0.0),
        ("interval 1 month", None),
        ("interval hours", None),
        ("7", None),
        ("", None),
    ],
)
def test_intervals_are_read_as_delta_reads_them(text: str, seconds: float | None) -> None:
    assert interval_seconds(text) == seconds


@given(st.floats(min_value=0.001, max_value=24 * 3650 * 3600))
def test_what_is_written_is_read_back(seconds: float) -> None:
    horizon = Horizon(seconds)
    properties = horizon.properties()
    files, log = (interval_seconds(properties[name]) for name in (FILE_RETENTION, LOG_RETENTION))
    assert files == pytest.approx(seconds, abs=6e-4)
    assert log == pytest.approx(2 * seconds, abs=6e-4)
    assert horizon.differing(properties) == {}


def test_only_what_differs_in_time_differs() -> None:
    horizon = Horizon.of_hours(168)
    assert horizon.properties()[FILE_RETENTION] == "interval 604800 seconds"
    same = {FILE_RETENTION: "interval 7 days", LOG_RETENTION: "interval 2 weeks"}
    assert horizon.differing(same) == {}
    lowered = same | {FILE_RETENTION: "interval 1 hour"}
    assert horizon.differing(lowered) == {FILE_RETENTION: "interval 604800 seconds"}
    assert set(horizon.differing({})) == {FILE_RETENTION, LOG_RETENTION}


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_no_time_at_all_is_no_horizon(seconds: float) -> None:
    with pytest.raises(ValueError, match="expected more than 0"):
        Horizon(seconds)


def test_the_version_that_was_current() -> None:
    commits = [apply(5, 1, 9), apply(4, 3, 7), apply(3, 9, 4)]
    assert [
        None if (found := version_at(commits, ago(hours))) is None else found.version
        for hours in (0, 1, 2, 3, 8.9, 9, 9.1)
    ] == [5, 5, 4, 4, 3, 3, None]


def test_what_a_shorter_time_would_cost() -> None:
    commits = [apply(6, 1, 9), apply(5, 3, 7), apply(4, 5, 6), apply(3, 30, 4), apply(2, 40, 3)]
    # Version 3 was replaced 5 hours ago, 4 three hours ago; 5 was still current 2 hours ago.
    lost = loss("docs", commits, Horizon.of_hours(24), 2 * 3600, NOW)
    assert lost is not None
    assert [commit.version for commit in lost.versions] == [3, 4]
    assert str(lost) == "2 versions of docs (3 to 4, rounds 4 to 6)"
    assert loss("docs", commits, Horizon.of_hours(24), 6 * 3600, NOW) is None
    assert loss("docs", commits[:1], Horizon.of_hours(24), 0, NOW) is None

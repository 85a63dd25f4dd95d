"""The horizon's arithmetic: intervals, the version that was current, what a shorter time costs."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.store.file_commit import DELTA_LOG_RETENTION
from dcp.lake.tables.history import TableCommit
from dcp.lake.tables.horizon import (
    FILE_RETENTION,
    Horizon,
    loss_text,
    version_at,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def apply(version: int, hours_ago: float, to_round: int) -> TableCommit:
    return TableCommit(
        version, ago(hours_ago), "MERGE", {"from_round": 0, "to_round": to_round, "writer": "w"}
    )


_UNIT_SECONDS = {"seconds": 1.0, "milliseconds": 1e-3}


@given(st.floats(min_value=0.001, max_value=24 * 3650 * 3600))
def test_intervals_are_exact_to_a_millisecond_or_a_second(seconds: float) -> None:
    horizon = Horizon(seconds)
    properties = horizon.properties()
    words = (properties[name].split() for name in (FILE_RETENTION, DELTA_LOG_RETENTION))
    files, log = (float(count) * _UNIT_SECONDS[unit] for _, count, unit in words)
    assert files == pytest.approx(seconds, abs=6e-4)
    assert log == pytest.approx(2 * seconds, abs=6e-4)
    assert horizon.differing(properties) == {}


def test_an_interval_in_other_words_differs() -> None:
    horizon = Horizon.of_hours(168)
    ours = {
        FILE_RETENTION: "interval 604800 seconds",
        DELTA_LOG_RETENTION: "interval 1209600 seconds",
    }
    assert horizon.properties() == ours
    for other in ("interval 7 days", "interval 1 hour"):
        found = ours | {FILE_RETENTION: other}
        assert horizon.differing(found) == {FILE_RETENTION: "interval 604800 seconds"}
    assert horizon.differing({}) == ours


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
    lost = loss_text("docs", commits, Horizon.of_hours(24), 2 * 3600, NOW)
    assert lost == "2 versions of docs (3 to 4, rounds 4 to 6)"
    assert loss_text("docs", commits, Horizon.of_hours(24), 6 * 3600, NOW) == ""
    assert loss_text("docs", commits[:1], Horizon.of_hours(24), 0, NOW) == ""

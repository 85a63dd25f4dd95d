"""Days and times read at once are those that are read one by one."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dcp.lake.apply.date_arrays import days_of, require_partial_days, times_of
from dcp.lake.apply.json_documents import (
    FIRST_SECOND,
    LAST_SECOND,
    day_of,
    micros_of,
    partial_day_of,
)

_PARTS = st.sampled_from(
    [
        *("2026", "0001", "0000", "9999", "-", "01", "02", "12", "13", "28", "29", "31", "32"),
        *("T", "t", " ", "00", "10", "23", "24", "59", "60", ":", ".", ".5", ".123456"),
        *(".1234567", "Z", "z", "+", "+01", "+0130", "-01:30", "+24:00", "+23:59", "+01:60"),
        *("\n", "\u0662"),
    ]
)
_TEXTS = st.lists(_PARTS, min_size=1, max_size=14).map("".join) | st.from_regex(
    r"[0-9]{4}-?[01][0-9]-?[0-3][0-9]([Tt ][0-2][0-9]:?[0-6][0-9](:?[0-6][0-9](\.[0-9]{1,9})?)?"
    r"([Zz]|[+-][0-2][0-9](:?[0-6][0-9])?)?)?",
    fullmatch=True,
)


def one_by_one(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError:
        return None


def at_once(read: Callable[[pa.StringArray], Any], text: str) -> Any:
    """What is read between two texts that are missing."""
    try:
        found = read(pa.array([None, text, None], pa.string()))
    except ValueError:
        return None
    return text if found is None else found[1]


@given(_TEXTS)
@example("20260131T101500.25+0100")
@example("2026-01-31t10:15z")
@example("2026-01-31 10:15:00-01")
@example("2026-01-31T10:15:00.1234567Z")
def test_times(text: str) -> None:
    found, expected = at_once(times_of, text), one_by_one(micros_of, text)
    if found is None:
        return  # it is read alone
    seconds = found.value // 1_000_000
    beyond = not FIRST_SECOND <= seconds <= LAST_SECOND
    assert found.value == expected or (beyond and expected is None)


@pytest.mark.parametrize(
    "text",
    ["20260131T101500.25+0100", "20260131t101500", "2026-01-31t10:15:00z", "2026-01-31 10:15-0130"],
)
def test_usual_times_are_not_read_alone(text: str) -> None:
    assert at_once(times_of, text).value == micros_of(text)


@given(_TEXTS)
@example("20260131")
@example("2026-02-29")
def test_days(text: str) -> None:
    found, expected = at_once(days_of, text), one_by_one(day_of, text)
    # pyarrow knows the year 0; Python's dates begin with the year 1.
    assert text.startswith("0000") or (None if found is None else found.as_py()) == expected


@given(_TEXTS)
@example("2026")
@example("2026-02")
@example("2024-02-29")
@example("2023-02-29")
@example("0000-02-29")
def test_partial_days(text: str) -> None:
    assert at_once(require_partial_days, text) == one_by_one(partial_day_of, text)

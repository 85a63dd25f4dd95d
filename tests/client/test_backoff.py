"""Delays stay between half the doubled value and the cap, whatever the random source says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.client.backoff import Backoff


@given(
    attempt=st.integers(0, 10_000),
    fraction=st.floats(0, 1, exclude_max=True),
    first=st.floats(0.001, 10),
    times=st.floats(1, 1000),
)
def test_delay_is_within_its_bounds(
    attempt: int, fraction: float, first: float, times: float
) -> None:
    cap = first * times
    delay = Backoff(first, cap, lambda: fraction).delay_seconds(attempt)
    doubled = min(cap, first * 2.0 ** min(attempt, 62))
    assert doubled / 2 <= delay <= cap


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(0.1, 1.0, lambda: 1.0 - 2**-53)
    assert [round(backoff.delay_seconds(n), 3) for n in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize(("first", "cap"), [(0, 1), (-1, 1), (2, 1)])
def test_refuses_bounds_out_of_order(first: float, cap: float) -> None:
    with pytest.raises(ValueError, match="0 < first <= cap"):
        Backoff(first, cap, lambda: 0.5)


def test_refuses_a_negative_attempt() -> None:
    with pytest.raises(ValueError, match="-1"):
        Backoff(1, 2, lambda: 0.5).delay_seconds(-1)

"""The window policies: bounds and sums whatever comes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import ConfigError, LocalProtocolError
from dcp.protocol.window_policies import (
    SharedWindows,
    WindowPolicy,
    WindowPolicySettings,
    as_float32,
    window_of_each,
)
from dcp.types import U32_MAX
from tests.protocol.named_windows import NamedWindows

MIB = 1024 * 1024


def policies(policy: WindowPolicy, quota_bytes: int = 100 * MIB) -> NamedWindows:
    return NamedWindows(WindowPolicySettings(policy), quota_bytes)


def test_the_defaults_are_those_of_the_server() -> None:
    expected = WindowPolicySettings(WindowPolicy.AGGRESSIVE, 10 * MIB, 50 * MIB, 1, 10, 5, 0.05, 0)
    assert WindowPolicySettings() == expected


def test_those_who_stay_get_more_when_others_go_and_are_told_once() -> None:
    windows = policies(WindowPolicy.AGGRESSIVE, 1_200_000_000)
    assert windows.connect("a") == {"a": 50 * MIB}
    assert windows.connect("b") == {"a": 30_000_000, "b": 30_000_000}
    assert windows.disconnect("b") == {"a": 50 * MIB}
    assert windows.disconnect("a") == {}


def test_a_resize_to_the_same_size_is_none() -> None:
    windows = policies(WindowPolicy.AGGRESSIVE)
    windows.connect("a")
    assert windows.connect("b") == {"b": 10 * MIB}


def test_a_connection_joins_once_and_leaves_once() -> None:
    windows = SharedWindows(WindowPolicySettings(WindowPolicy.STATIC), 100 * MIB)
    with pytest.raises(LocalProtocolError, match="found an unknown connection"):
        windows.leave(print)
    windows.join(print)
    with pytest.raises(LocalProtocolError, match="found a connection that has joined"):
        windows.join(print)


@pytest.mark.parametrize(("quota_bytes", "size"), [(40 * 100, 50), (49 * 100, 50), (60 * 100, 10)])
def test_a_least_window_above_the_largest_is_what_the_engine_makes_of_it(
    quota_bytes: int, size: int
) -> None:
    settings = WindowPolicySettings(
        WindowPolicy.DYNAMIC, size_bytes=50, most_bytes=10, threshold_percent=100
    )
    assert NamedWindows(settings, quota_bytes).connect("a") == {"a": size}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"size_bytes": -1}, "size_bytes: found -1"),
        ({"most_bytes": U32_MAX + 1}, "most_bytes: found 4294967296"),
        ({"override_bytes": 1.5}, "override_bytes: found 1.5"),
        ({"percent": 101}, "percent: found 101"),
        ({"threshold_percent": -1}, "threshold_percent: found -1"),
        ({"ratio": float("nan")}, "ratio: found nan"),
    ],
)
def test_numbers_that_are_no_share_are_refused(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        WindowPolicySettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("quota", [-1, 2**64, 1.0, True])
def test_a_quota_that_is_no_amount_is_refused(quota: int) -> None:
    with pytest.raises(ValueError, match="quota_bytes: found"):
        SharedWindows(WindowPolicySettings(), quota)


changes = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.integers(0, 9)),
        st.tuples(st.just("disconnect"), st.integers(0, 9)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("policy", WindowPolicy)
@given(quota=st.integers(0, 2**40), steps=changes)
def test_sizes_are_within_bounds_and_what_changed_is_told(
    policy: WindowPolicy, quota: int, steps: list[tuple[str, int]]
) -> None:
    windows, seen = policies(policy, quota), dict[str, int]()
    for what, number in steps:
        name = str(number)
        if what == "connect" and name not in seen:
            seen.update(windows.connect(name))
        elif what == "disconnect" and name in seen:
            del seen[name]
            seen.update(windows.disconnect(name))
        assert windows.sizes == seen, "who follows what is returned knows all sizes"
        assert windows.total_bytes == sum(seen.values())
        assert all(0 <= size <= U32_MAX for size in seen.values())
        if policy is WindowPolicy.NONE:
            assert windows.total_bytes == 0
        elif policy is WindowPolicy.RATIO:
            assert windows.total_bytes <= as_float32(0.05) * quota
            assert len(set(seen.values())) <= 1
        else:
            assert all(10 * MIB <= size <= 50 * MIB for size in seen.values())
        if policy is WindowPolicy.AGGRESSIVE:
            assert len(set(seen.values())) <= 1


@pytest.mark.parametrize("policy", WindowPolicy)
@given(
    st.integers(0, 2**36),
    st.integers(1, 30),
    st.fixed_dictionaries(
        {
            "size_bytes": st.integers(0, 2**30),
            "most_bytes": st.integers(0, 2**30),
            "percent": st.floats(0, 100),
            "threshold_percent": st.floats(0, 100),
            "aggressive_percent": st.floats(0, 100),
            "ratio": st.floats(0, 1),
            "override_bytes": st.sampled_from([0, 7]),
        }
    ),
)
def test_the_window_of_each_is_what_the_last_of_so_many_gets(
    policy: WindowPolicy, quota: int, consumers: int, numbers: dict[str, Any]
) -> None:
    settings = WindowPolicySettings(policy, **numbers)
    windows = NamedWindows(settings, quota)
    for number in range(consumers):
        windows.connect(str(number))
    found = window_of_each(settings, quota, consumers)
    assert windows.sizes[str(consumers - 1)] == found
    assert policy is WindowPolicy.DYNAMIC or set(windows.sizes.values()) == {found}


@given(quota=st.integers(0, 2**40), consumers=st.integers(1, 30))
def test_dynamic_grants_more_than_the_least_only_below_its_threshold(
    quota: int, consumers: int
) -> None:
    windows = policies(WindowPolicy.DYNAMIC, quota)
    for number in range(consumers):
        [(_, size)] = windows.connect(str(number)).items()
        assert size == 10 * MIB or windows.total_bytes <= 0.1 * quota

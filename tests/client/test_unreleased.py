"""What the application gives back of a connection's deliveries: once, in parts, and too late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.client.unreleased import Unreleased
from dcp.errors import LocalProtocolError
from dcp.protocol.credits import Credits


def held() -> tuple[Unreleased, Credits]:
    account = Credits("handover", 100, 50)
    return Unreleased(account), account


def test_a_delivery_comes_back_in_parts_and_then_the_rest() -> None:
    unreleased, account = held()
    serial = unreleased.add(100, {1: 60, 2: 40})
    unreleased.release_part(serial, 30, {1: 30})
    assert unreleased.collect() == (30, {1: 30})
    unreleased.release(serial)
    assert unreleased.collect() == (70, {1: 30, 2: 40})
    assert unreleased.collect() == (0, {})
    assert account.second_releases == 0


def test_the_reader_is_told_once_until_it_collects() -> None:
    unreleased, _ = held()
    serials = [unreleased.add(100, {}) for _ in range(4)]
    told = []
    for serial in serials[:3]:
        unreleased.release(serial)
        told.append(unreleased.must_be_told(100))
    unreleased.collect()
    unreleased.release(serials[3])
    told.append(unreleased.must_be_told(99))
    unreleased.collect()
    unreleased.release(unreleased.add(5, {1: 5}))
    told.append(unreleased.must_be_told(99))
    assert told == [False, True, False, True, True]


def test_a_second_release_changes_nothing_and_is_counted() -> None:
    unreleased, account = held()
    serial = unreleased.add(100, {})
    for _ in range(3):
        unreleased.release(serial)
    assert unreleased.collect()[0] == 100
    assert account.second_releases == 2
    with pytest.raises(LocalProtocolError, match="found 1 bytes, expected 0 to 0"):
        unreleased.release_part(serial, 1, {})
    assert account.second_releases == 3


@pytest.mark.parametrize("part", [-1, 71])
def test_a_part_beyond_what_is_left_is_refused_and_counted(part: int) -> None:
    unreleased, account = held()
    serial = unreleased.add(100, {})
    unreleased.release_part(serial, 30, {})
    with pytest.raises(LocalProtocolError, match=f"found {part} bytes, expected 0 to 70"):
        unreleased.release_part(serial, part, {})
    assert (unreleased.collect()[0], account.second_releases) == (30, 1)


def test_a_stream_gets_back_no_more_than_it_was_charged() -> None:
    """It had no window for the first of these messages, or none at all."""
    unreleased, _ = held()
    serial = unreleased.add(100, {1: 20})
    unreleased.release_part(serial, 50, {1: 30, 2: 20})
    unreleased.release(serial)
    assert unreleased.collect() == (100, {1: 20})


def test_what_comes_back_after_the_end_is_given_to_nobody_and_is_no_mistake() -> None:
    unreleased, account = held()
    first, second = unreleased.add(100, {1: 100}), unreleased.add(10, {})
    unreleased.release(first)
    unreleased.end()
    unreleased.release_part(second, 5, {})
    unreleased.release(second)
    assert unreleased.collect() == (0, {})
    assert account.second_releases == 0
    unreleased.release(second)
    assert account.second_releases == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.booleans()), max_size=40))
def test_all_comes_back_once_whatever_is_asked(steps: list[tuple[int, int, bool]]) -> None:
    unreleased, account = held()
    left = {unreleased.add(100, {}): 100 for _ in range(6)}
    serials, collected, mistakes = list(left), 0, 0
    for which, amount, is_part in steps:
        serial = serials[which]
        if is_part and amount <= left.get(serial, 0):
            unreleased.release_part(serial, amount, {})
            left[serial] -= amount
        elif not is_part:
            mistakes += serial not in left
            left.pop(serial, None)
            unreleased.release(serial)
        collected += unreleased.collect()[0]
        assert collected == 600 - sum(left.values())
    assert account.second_releases == mistakes

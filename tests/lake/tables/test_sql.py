"""Conditions that Delta prunes files by: exact, and of few ranges."""

import sqlite3

from hypothesis import example, given
from hypothesis import strategies as st

from dcp.lake.store.sql import one_of


@example(set())
@example({3, 500, 1023})
@example(set(range(1024)))
@example(set(range(0, 1024, 2)))
@given(st.sets(st.integers(0, 1023)))
def test_a_condition_on_numbers_is_exact_and_has_few_ranges(numbers: set[int]) -> None:
    condition = one_of("v", numbers)
    with sqlite3.connect(":memory:") as database:
        every = ", ".join(f"({number})" for number in range(1024))
        found = database.execute(f"WITH t(v) AS (VALUES {every}) SELECT v FROM t WHERE {condition}")
        assert {row[0] for row in found} == numbers
    assert condition.count(" OR ") < 16


def test_ranges_leave_out_the_widest_gaps() -> None:
    assert one_of("v", [9, 3, 4, 5]) == "(v BETWEEN 3 AND 5 OR v = 9)"
    many = one_of("v", [*range(0, 200, 2), 1000])
    assert "OR v = 1000) AND v IN (0, 2, " in many

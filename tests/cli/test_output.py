"""Plain tables and the demo's documents."""

from decimal import Decimal

from dcp.cli.demo_data import airports, changes, documents
from dcp.cli.output import table


def test_numbers_stand_right_and_texts_left() -> None:
    text = table(["name", "n"], [("a", 1), ("long", 12345), (None, Decimal(7))])
    assert text.splitlines() == [
        "name      n",
        "----  -----",
        "a         1",
        "long  12345",
        "NULL      7",
    ]


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    assert table(["v"], [(b"ab\xff",)]).splitlines()[-1] == "ab\\xff"


def test_the_demo_changes_distinct_airports_and_the_same_ones_for_a_seed() -> None:
    source = airports()
    assert len(documents(source)) == len(source) > 28_000
    day = changes(source, updates=400, deletes=150, expiries=12, seed=1)
    assert day == changes(source, updates=400, deletes=150, expiries=12, seed=1)
    assert day != changes(source, updates=400, deletes=150, expiries=12, seed=2)
    keys = {key for key, _ in day.updated} | {*day.deleted} | {*day.expiring}
    assert len(keys) == 400 + 150 + 12

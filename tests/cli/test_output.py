"""Plain tables and the demo's documents."""

import json
from decimal import Decimal

import pytest

from dcp.cli.demo.demo_data import airports, changes, documents
from dcp.cli.terminal.output import json_text, unique_names
from dcp.cli.terminal.table import table


def test_numbers_stand_right_and_texts_left() -> None:
    text = table(["name", "n"], [("a", 1), ("long", 12345), (None, Decimal(7))])
    assert text.splitlines() == [
        "name      n",
        "----- -----",
        "a         1",
        "long  12345",
        "NULL      7",
    ]


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    assert table(["v"], [(b"ab\xff",)]).splitlines()[-1] == "ab\\xff"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("18446744073709551615"), "18446744073709551615"),
        (Decimal("99999999999999999999999999999999999999"), "9" * 38),
        (Decimal("2.00"), "2"),
        ([Decimal("1.5"), {"d": Decimal("1.50")}], '[1.5,{"d":1.50}]'),
        (Decimal("0.12345678901234567890123"), "0.12345678901234567890123"),
        (Decimal("-1E-10"), "-0.0000000001"),
        (Decimal("1E+3"), "1000"),
        ([float("nan"), float("inf"), -float("inf"), 0.1], "[null,null,null,0.1]"),
        ({1: True, "é": None}, r'{"1":true,"\u00e9":null}'),
        ([b"text", b"\xff"], '["text",{"base64":"/w=="}]'),
    ],
)
def test_values_become_exact_json(value: object, text: str) -> None:
    assert json_text(value) == text
    json.loads(text, parse_constant=pytest.fail)


def test_repeated_names_are_numbered_and_take_no_others_place() -> None:
    assert unique_names(["a", "b", "a", "a"]) == ["a", "b", "a_2", "a_3"]
    assert unique_names(["a", "a", "a_2", "a_2"]) == ["a", "a_3", "a_2", "a_2_2"]


def test_the_demo_changes_distinct_airports_and_the_same_ones_for_a_seed() -> None:
    source = airports()
    assert len(documents(source)) == len(source) > 28_000
    day = changes(source, updates=400, deletes=150, expiries=12, seed=1)
    assert day == changes(source, updates=400, deletes=150, expiries=12, seed=1)
    assert day != changes(source, updates=400, deletes=150, expiries=12, seed=2)
    keys = {key for key, _ in day.updated} | {*day.deleted} | {*day.expiring}
    assert len(keys) == 400 + 150 + 12

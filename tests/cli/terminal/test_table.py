"""Plain tables."""

from decimal import Decimal

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

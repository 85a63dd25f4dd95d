"""Plain tables."""

from decimal import Decimal

from pyspark.sql import Row

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


def test_a_column_without_values_stands_left() -> None:
    assert table(["comment"], [(None,), (None,)]).splitlines()[2:] == ["NULL", "NULL"]


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    assert table(["v"], [(b"ab\xff",)]).splitlines()[-1] == "ab\\xff"


def test_structs_lists_and_maps_are_shown_as_json() -> None:
    struct = Row("a", "a", "größe")(1, {"k": [None, "x\ny"]}, Decimal("1.50"))
    [row] = table(["v", "w"], [(struct, [struct])]).splitlines()[2:]
    text = '{"a":1,"a_2":{"k":[null,"x\\ny"]},"größe":1.50}'
    assert row.split() == [text, f"[{text}]"]
    assert table(["v"], [({"\xa0": "\xad"},)]).splitlines()[-1] == r'{"\u00a0":"\u00ad"}'

"""JSON texts for tests, valid and not, and columns of which they fill some."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

from tests.lake.document_types import document_type

PATHS = {
    "$.flag": "boolean",
    "$.small": "int",
    "$.whole": "bigint",
    "$.number": "double",
    "$.money": "decimal(6,2)",
    "$.large": "decimal(38,10)",
    "$.text": "string",
    "$.day": "date",
    "$.time": "timestamp",
    "$.ms": "timestamp_ms",
    "$.born": "partial_date",
    "$['a b']": {"as": "a_b", "type": "int"},
    "$.Text": {"as": "text_2", "type": "string"},
    "$.in": {"as": "inside"},
    "$.in.day": "date",
    "$.in.list[*]": "int",
    "$.list[*].number": "double",
    "$.list[*].time": "timestamp",
    "$.list[*].ms": "timestamp_ms",
    "$.list[*].born": {"as": "was", "type": "partial_date"},
    "$.list[*]['']": {"as": "empty", "type": "string"},
}
DOCUMENT = document_type(PATHS)
WITH_MAP = document_type(
    PATHS | {"$.map.*.day": {"as": "on", "type": "date"}, "$.maps[*].*": "int"}
)
NAMES = [
    *("flag", "small", "sm\\u0061ll", "whole", "number", "money", "large", "text", "day", "time"),
    *("in", "list", "map", "maps", "new", "ms", "born", "a b", "Text", "inside", "", "a_b"),
]

TOKENS = [
    *("null", "true", "false", "{}", "[]", "[null]", '{"new":null}', '{"day":"2026-01-31"}'),
    *("0", "-0", "1", "-1", "2147483647", "2147483648", "-2147483649", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775808", "1.0", "1.5", "1e2", "1E-2", "0e5", "0e999"),
    *("99.999", "9999.99", "9999.994", "9999.995", "12345.6", "1e999", "-1e999", "1e-999"),
    *(
        "1e99999999999999999999",
        "1.7976931348623159e308",
        "NaN",
        "Infinity",
        "-Inf",
        "01",
        "1.",
        "+1",
    ),
    *("253402300799", "253402300800", "-62135596800", "-62135596801", "9" * 5000, "0." + "3" * 50),
    *("9" * 28, "9" * 29, "1" + "0" * 37, "9" * 38, "1" + "0" * 38, "17" * 19 + ".5", "9" * 39),
    *('""', '"x"', '"1"', '"1.25"', '"+1.25"', '".5"', '"5."', '"."', '"1e1"', '" 1"', '"1,5"'),
    *('"Infinity"', '"NaN"', '"1_0"', '"\\u0663"', '"\u0663"', '"\u00e9"', '"\\u0000"', '"\\n"'),
    *('"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00x"', '"\\x"', '"\t"', '"\n"', '"a', '"\\"'),
    *('"2026-01-31"', '"2026-02-30"', '"0000-01-01"', '"0001-01-01"', '"9999-12-31"', '"2026-1-1"'),
    *('"+10000-01-01"', '"20260131"', '"2026-W01-1"', '"2026-01-31T10"', '"2026-01-31T10:00"'),
    *('"2026-01-31 10:00:01.25Z"', '"2026-01-31T10:00:00.123456789Z"', '"2026-01-31T10:00+01"'),
    *('"2026-01-31T24:00Z"', '"2026-01-31T10:60Z"', '"2026-01-31T10:00:60Z"', '"2026-01-31t10:00"'),
    *('"2026-01-31T10:00-0130"', '"2026-01-31T10:00+24:00"', '"2026-01-31T10:00+23:59"'),
    *(
        '"2026"',
        '"2026-02"',
        '"2026-13"',
        '"0000"',
        '"0000-01"',
        '"2026-2"',
        '"2026-01-32"',
        '"20260230"',
    ),
    *(
        '"20260131T101500.25Z"',
        '"20260131t10+0100"',
        '"20260131T10:00"',
        '"20260131 10"',
        '"202601"',
    ),
    *('"2026-01-31t10:00:00z"', "253402300799999", "253402300800000", "-62135596800000"),
    *("-62135596800001", "9223372036854775", '"\\u0662026"', '"2026\\n"', '"20260131\\n"'),
    *('"2026-01-31T10:00z"', '"2026-01-31T10:00:00."', '"2026-01-31T"', '"2026-01-31Z"'),
    *('"0001-01-01T00:00:00+00:01"', '"9999-12-31T23:59:59.999999Z"', '"2026-01-31T1000"'),
    *('"9999-12-31T23:59:59-00:01"', '"2026-01-31T10:00:00,5Z"', '"2026-01-31 10:00:00 Z"'),
]
values = st.recursive(
    st.sampled_from(TOKENS) | st.floats(allow_nan=False).map(repr) | st.text().map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda some: f"[{', '.join(some)}]")
        | st.lists(st.tuples(st.sampled_from(NAMES), inner), max_size=3).map(
            lambda some: "{" + ",".join(f'"{name}": {value}' for name, value in some) + "}"
        )
    ),
    max_leaves=6,
)
objects = st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=4).map(
    lambda some: "{" + ", ".join(f'"{name}":{value}' for name, value in some) + "}"
)
noise = st.sampled_from(["", " ", "\n", "\r\n", "\t", "\f", "\ufeff", "{}", ",", "}", "x", "//"])
documents = (
    st.tuples(noise, objects, noise).map("".join).map(str.encode)
    | st.tuples(objects.map(str.encode), st.integers(0, 200), st.binary(max_size=2)).map(
        lambda made: made[0][: made[1]] + made[2] + made[0][made[1] :]
    )
    | st.tuples(objects.map(str.encode), st.integers(0, 200)).map(lambda made: made[0][: made[1]])
)


@contextmanager
def at_once(size: int) -> Iterator[None]:
    """Read so many documents together: what one of them tells is expected of the next ones."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dcp.lake.apply.typed_documents._AT_ONCE", size)
        yield

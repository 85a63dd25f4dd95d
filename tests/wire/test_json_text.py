"""JSON checks, against Python's ``json``; nothing is asserted on time, but on steps and memory."""

import json
import tracemalloc
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.wire.json_text import MOST_DEPTH, is_json, is_json_text, json_steps


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _reads(value: bytes) -> bool:
    """Whether Python's ``json`` takes it for JSON; it must not be deep."""
    try:
        text = value.decode()
        json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse).decode(text)
    except ValueError:
        return False
    return True


def _steps(value: bytes) -> int:
    return sum(1 for _ in json_steps(value))


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
FRAGMENTS = [
    *(bytes((each,)) for each in b'[]{},:"\\ \n\t\r-+.eE019ux\x00\x1f\x7f\xff'),
    b"true",
    b"false",
    b"null",
    b"NaN",
    b"-Infinity",
    b'"a"',
    b'"a":',
    b"\\u00e9",
    b"\\ud800",
    b"\\udc00",
    b"\\u12",
    "é\u20ac\U0001f600".encode(),
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"1e5",
    b"[[[[",
    b"]]]]",
    b'{"":{"":{"":',
    b"}}}",
    b'"' + b"x" * 2000 + b'"',
    b'"' + b"\\n" * 40 + b'"',
    b"1" * 5000,
    b"0," * 100,
    b'"":0,' * 100,
    b" " * 300,
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(b"".join))
def test_what_json_is_of_any_fragments(value: bytes) -> None:
    assert is_json_text(value) is is_json(value) is _reads(value)


@given(trees, st.booleans(), st.sampled_from([None, 1]))
def test_what_json_is_of_any_tree(tree: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(tree, ensure_ascii=ascii_only, indent=indent)
    value = text.encode(errors="surrogatepass")
    assert is_json_text(value) is is_json(value) is _reads(value)


@given(trees, st.sampled_from([1, 200]), st.data())
def test_what_json_is_of_a_damaged_tree(tree: object, times: int, data: st.DataObject) -> None:
    value = bytearray(json.dumps([tree] * times).encode())
    at = data.draw(st.integers(0, len(value) - 1))
    if data.draw(st.booleans()):
        del value[at]
    else:
        value[at : at + data.draw(st.integers(0, 1))] = data.draw(st.sampled_from(FRAGMENTS))
    assert is_json_text(bytes(value)) is is_json(bytes(value)) is _reads(bytes(value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"a":1,"a":2}', True),
        (b'"\\ud800"', True),
        (b"9" * 100_000, True),
        (b"NaN", False),
        (b"[-Infinity]", False),
        (b"\xef\xbb\xbf{}", False),
        (b"\xff", False),
        (b"", False),
        (b"[" * MOST_DEPTH + b"]" * MOST_DEPTH, True),
        (b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1), False),
        (b'{"":' * MOST_DEPTH + b"1" + b"}" * MOST_DEPTH, True),
        (b'{"":' * MOST_DEPTH + b"{}" + b"}" * MOST_DEPTH, False),
        (b"[" * MOST_DEPTH, False),
        (b"[" * 10_000_000, False),
        (b"[" + b"[]," * 100_000 + b"[]]", True),
        (b"[" + b"[]," * 100_000 + b"]", False),
        (b'"' + b"\\n" * 100_000 + b'"', True),
        (b'"' + b"\\n" * 100_000 + b'\n"', False),
    ],
)
def test_the_edges_of_json(value: bytes, expected: bool) -> None:
    assert is_json(value) is is_json_text(value) is expected


def test_what_is_read_in_one_step_takes_little_memory() -> None:
    value = b"[" + b'{"":0},' * (64 * 1024 // 7 - 1) + b"0]"
    tracemalloc.start()
    try:
        assert is_json(value)
        assert tracemalloc.get_traced_memory()[1] < 2 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert is_json(json.dumps([{"": 0}] * 5000).encode()[:-1]) is False


LARGE_BYTES = 1024 * 1024 // 4
MATCHED_AT_ONCE = json.dumps([[[[0] * 32] * 8] * 4] * 32, separators=(",", ":")).encode()
LARGE = [
    b"[" + b"[]," * (LARGE_BYTES // 3) + b"0]",
    b"[" + b"[[[[[]]]]]," * (LARGE_BYTES // 11) + b"0]",
    b'{"":' * 900 + b"[" + b"0," * (LARGE_BYTES // 2) + b"0]" + b"}" * 900,
    b"{" + b'"":{"":{"":{}}},' * (LARGE_BYTES // 16) + b'"":0}',
    b'"' + b"\\u1234" * (LARGE_BYTES // 6) + b'"',
    b'"' + b"x" * LARGE_BYTES + b'"',
]


@pytest.mark.parametrize("value", LARGE)
def test_long_ones_take_steps_and_no_memory(value: bytes) -> None:
    tracemalloc.start()
    try:
        assert is_json(value)
        assert tracemalloc.get_traced_memory()[1] < LARGE_BYTES
    finally:
        tracemalloc.stop()
    assert _steps(value) > LARGE_BYTES // 65_536


@pytest.mark.parametrize("end", [b"]", b",]", b""])
def test_as_many_small_values_as_are_matched_at_once_take_bounded_memory(end: bytes) -> None:
    tracemalloc.start()
    try:
        assert is_json(MATCHED_AT_ONCE[:-1] + end) is (end == b"]")
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()

"""JSON of others: what is read, what is refused, and that nothing else can happen."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.wire.json_tree import MOST_TREE_BYTES, MOST_TREE_DEPTH, is_deeper, json_tree

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_what_json_writes_is_read(value: object) -> None:
    assert json_tree(json.dumps(value)) == value
    assert json_tree(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.text('[]{}",:\\1 '))
def test_any_text_is_read_as_python_does_or_a_value_error(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):
            json_tree(text)
    else:
        assert json_tree(text) == expected


def nested(depth: int, opening: str = "[", closing: str = "]", inner: str = "") -> str:
    return opening * depth + inner + closing * depth


@pytest.mark.parametrize(("opening", "inner"), [("[", ""), ('{"a":', "1"), ('[{"":', "[]")])
def test_depth(opening: str, inner: str) -> None:
    closing = "".join({"[": "]", "{": "}"}[each] for each in reversed(opening) if each in "[{")
    levels = opening.count("[") + opening.count("{")
    most = MOST_TREE_DEPTH // levels - (1 if "[" in inner else 0)
    json_tree(nested(most, opening, closing, inner))
    for depth in (MOST_TREE_DEPTH // levels + 1, 200_000):
        with pytest.raises(ValueError, match=f"found more than {MOST_TREE_DEPTH} levels"):
            json_tree(nested(depth, opening, closing, inner))
        with pytest.raises(ValueError, match="levels"):
            json_tree((opening * depth).encode())


def test_what_is_wide_or_in_strings_is_not_deep() -> None:
    wide = [[[]] * 10_000, {"[" * 2_000: '{[\\"' * 2_000}]
    assert json_tree(json.dumps(wide)) == wide
    assert not is_deeper(b'"\\"' + b"[" * 2_000 + b'"', MOST_TREE_DEPTH)
    assert is_deeper(b'"\\\\"' + b"[" * 2_000, MOST_TREE_DEPTH)


def test_a_string_without_an_end_is_passed_over_once() -> None:
    text = "[" * 501 + '"' + '\\"' * 1_000_000
    with pytest.raises(ValueError):
        json_tree(text)
    with pytest.raises(ValueError):
        json_tree('"' + '\\"[' * 1_000_000)


def test_size_and_encoding() -> None:
    with pytest.raises(ValueError, match=f"found {MOST_TREE_BYTES + 1} bytes, expected at most"):
        json_tree(b" " * (MOST_TREE_BYTES + 1))
    with pytest.raises(ValueError, match="found 3 bytes, expected at most 2"):
        json_tree("[1]", 2)
    with pytest.raises(ValueError):
        json_tree(b'"\xff"')

"""Edits inside JSON texts, against the same edits of parsed documents."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.config.json_paths import FieldName, Step, Wildcard, json_path
from dcp.lake.receive.json_editor import Edit, JsonEditor

NAMES = ("email", "user", "a b", 'q"', "é", "x\\y")
GONE = object()


def drop(_: bytes) -> None:
    return None


def mark(value: bytes) -> bytes:
    return json.dumps(["edited", json.loads(value)]).encode()


def path(text: str) -> tuple[Step, ...]:
    steps = json_path(text)
    assert steps is not None
    return steps


def edited(document: Any, steps: tuple[Step, ...], edit: Edit) -> Any:
    """Return a parsed document with one edit, `GONE` if it is dropped."""
    if not steps:
        text = edit(json.dumps(document).encode())
        return GONE if text is None else json.loads(text)
    step, below = steps[0], steps[1:]
    if isinstance(document, dict) and step is not Wildcard.ELEMENTS:
        chosen = {step.name} if isinstance(step, FieldName) else set(document)
        members = {
            name: edited(value, below, edit) if name in chosen else value
            for name, value in document.items()
        }
        return {name: value for name, value in members.items() if value is not GONE}
    if isinstance(document, list):
        elements = document
        if step is Wildcard.ELEMENTS:
            elements = [edited(each, below, edit) for each in elements]
        if step is not Wildcard.ELEMENTS or below:
            elements = [each if each is GONE else edited(each, steps, edit) for each in elements]
        return [each for each in elements if each is not GONE]
    return document


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([1.5, "email", "é", '"email"', ""]),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(NAMES), below, max_size=4)
    ),
    max_leaves=12,
)
STEPS = st.lists(
    st.sampled_from([*map(FieldName, NAMES), Wildcard.ELEMENTS, Wildcard.VALUES])
    | st.sampled_from(list(map(FieldName, ("email", "user")))),
    min_size=1,
    max_size=3,
).map(tuple)
DUMPS: list[Callable[[Any], str]] = [
    json.dumps,
    lambda document: json.dumps(document, ensure_ascii=False, separators=(",", ":")),
    lambda document: json.dumps(document, indent=1),
]


@given(DOCUMENTS, STEPS, st.sampled_from([drop, mark]), st.sampled_from(DUMPS))
def test_an_edit_of_a_text_is_that_of_the_document(
    document: Any, steps: tuple[Step, ...], edit: Edit, dumps: Callable[[Any], str]
) -> None:
    found = JsonEditor({steps: edit}).edited(dumps(document).encode())
    assert found is not None
    assert json.loads(found) == edited(document, steps, edit)


@given(DOCUMENTS, st.lists(st.sampled_from(["$.email", "$.user", "$.é"]), unique=True, min_size=2))
def test_several_edits_of_a_text(document: Any, paths: list[str]) -> None:
    edits: dict[tuple[Step, ...], Edit] = {
        path(each): (drop, mark)[number % 2] for number, each in enumerate(paths)
    }
    expected = document
    for steps, edit in edits.items():
        expected = edited(expected, steps, edit)
    found = JsonEditor(edits).edited(json.dumps(document).encode())
    assert found is not None
    assert json.loads(found) == expected


CASES = [
    # What stays is as it was, byte for byte.
    (["$.a"], b'{ "a" : 1 , "b": 1.50e2}', b'{ "b": 1.50e2}'),
    (["$.b"], b'{"a": 1 , "b" :[ 2 ]\n}', b'{"a": 1 \n}'),
    (["$.a", "$.b"], b'{"a":1,"b":2}', b"{}"),
    (["$.a", "$.c"], b'{"a":1,"b":2,"c":3}', b'{"b":2}'),
    (["$.u.a"], b'{"u":{"a":1}}', b'{"u":{}}'),
    (["$.c"], b'{"a":1,"b":2}', b'{"a":1,"b":2}'),
    # A name that is there twice, or is written otherwise, hides nothing.
    (["$.a"], b'{"a":1,"a":2}', b"{}"),
    (["$.u.a"], b'{"u":{"a":1},"u":{}}', b'{"u":{}}'),
    (["$.u.a"], b'{"u":{},"u":{"a":1}}', b'{"u":{}}'),
    (["$.a"], b'{"\\u0061":1}', b"{}"),
    (["$.a"], b'{"b":"\\u0022","a":1}', b'{"b":"\\u0022"}'),
    (["$.a"], b'{"b":"a","c":{"a":1}}', b'{"b":"a","c":{"a":1}}'),
    # Arrays on the way.
    (["$.u.a"], b'{"u":[{"a":1},[{"a":2,"b":3}],4]}', b'{"u":[{},[{"b":3}],4]}'),
    (["$.u[*].a"], b'{"u":[{"a":1}]}', b'{"u":[{}]}'),
    (["$.a"], b'[{"a":1},2]', b"[{},2]"),
    (["$.u[*]"], b'{"u":[1,2]}', b'{"u":[]}'),
    (["$.u.*"], b'{"u":{"x":1,"y":{"z":2}}}', b'{"u":{}}'),
    # The whole covers its parts.
    (["$.u", "$.u.a"], b'{"u":{"a":1},"b":2}', b'{"b":2}'),
    (["$.a"], b"12345678901234567890123", b"12345678901234567890123"),
    (["$.a"], b'{"a":1,"n":12345678901234567890123}', b'{"n":12345678901234567890123}'),
]


@pytest.mark.parametrize(("paths", "text", "expected"), CASES)
def test_what_is_dropped(paths: list[str], text: bytes, expected: bytes) -> None:
    assert JsonEditor({path(each): drop for each in paths}).edited(text) == expected


def test_a_whole_text_is_dropped() -> None:
    assert JsonEditor({(): drop}).edited(b"[1]") is None


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b'{"a":1}x', b"{'a':1}", b'{"a":NaN}', b"nul", b"[" * 100_000, b'{"a":"\\ud800"}'],
)
@pytest.mark.parametrize("steps", ["$.a", "$.a[*]", "$"])
def test_what_is_no_json_is_refused(text: bytes, steps: str) -> None:
    with pytest.raises(ValueError, match="found no JSON that can be read"):
        JsonEditor({path(steps): mark}).edited(text)

"""Edits inside JSON texts, against the same edits of parsed documents."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.config.json_paths import FieldName, Step, Wildcard, json_path
from dcp.lake.receive.json_editor import Edit, JsonEditor

NAMES = ("email", "user", "a b", 'q"', "é", "x\\y", ",", ", ", "]", ":")
GONE = object()
ELEMENTS = (Wildcard.ELEMENTS,)


def drop(_: bytes) -> None:
    return None


def mark(value: bytes) -> bytes:
    return json.dumps(["edited", json.loads(value)]).encode()


def path(text: str) -> tuple[Step, ...]:
    steps = json_path(text)
    assert steps is not None
    return steps


def edited(document: Any, edits: Mapping[tuple[Step, ...], Edit]) -> Any:
    """Return a parsed document with the edits, `GONE` if it is dropped.

    Each value is edited once: all paths go down together.
    """
    if not isinstance(document, list):  # the only element of itself
        while more := {path[1:]: edit for path, edit in edits.items() if path[:1] == ELEMENTS}:
            rest = {path: edit for path, edit in edits.items() if path[:1] != ELEMENTS}
            edits = more | rest
    if (edit := edits.get(())) is not None:
        text = edit(json.dumps(document).encode())
        return GONE if text is None else json.loads(text)
    if isinstance(document, dict):
        members = {}
        for name, value in document.items():
            here = (FieldName(name), Wildcard.VALUES)
            below = {path[1:]: edit for path, edit in edits.items() if path[0] in here}
            members[name] = edited(value, below)
        return {name: value for name, value in members.items() if value is not GONE}
    if isinstance(document, list):
        below = {path[1:]: edit for path, edit in edits.items() if path[:1] == ELEMENTS}
        elements = [edited(each, below | dict(edits)) for each in document]
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
    assert json.loads(found) == edited(document, {steps: edit})


@given(DOCUMENTS, st.lists(st.sampled_from(["$.email", "$.user", "$.é"]), unique=True, min_size=2))
def test_several_edits_of_a_text(document: Any, paths: list[str]) -> None:
    edits: dict[tuple[Step, ...], Edit] = {
        path(each): (drop, mark)[number % 2] for number, each in enumerate(paths)
    }
    found = JsonEditor(edits).edited(json.dumps(document).encode())
    assert found is not None
    assert json.loads(found) == edited(document, edits)


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
    (["$.u[*].a"], b'{"u":{"a":1,"b":2}}', b'{"u":{"b":2}}'),
    (["$.u[*]"], b'{"u":1,"b":2}', b'{"b":2}'),
    # Names that may stand behind another text.
    (["$[',']"], b'{"k":"x",",":"S"}', b'{"k":"x"}'),
    (["$[', ']"], b'{"a": "", ", ": 1}', b'{"a":""}'),
    # The whole covers its parts.
    (["$.u", "$.u.a"], b'{"u":{"a":1},"b":2}', b'{"b":2}'),
    (["$.a"], b"12345678901234567890123", b"12345678901234567890123"),
    (["$.a"], b'{"a":1,"n":12345678901234567890123}', b'{"n":12345678901234567890123}'),
]


@pytest.mark.parametrize(("paths", "text", "expected"), CASES)
def test_what_is_dropped(paths: list[str], text: bytes, expected: bytes) -> None:
    assert JsonEditor({path(each): drop for each in paths}).edited(text) == expected


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        (["$.l[*].e"], b'{"l":[[{"e":"S"}]]}'),
        (["$[*].e"], b'[[[{"e":"S"}]]]'),
        (["$.*.e", "$.u.e"], b'{"u":{"e":"S"}}'),
        (["$.l[*].e", "$.l.e"], b'{"l":[{"e":"S"}]}'),
    ],
)
def test_each_value_is_edited_once(paths: list[str], text: bytes) -> None:
    found = JsonEditor({path(each): mark for each in paths}).edited(text)
    assert found == text.replace(b'"S"', mark(b'"S"'))


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

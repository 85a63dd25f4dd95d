"""Edits inside JSON texts, one by one and in columns, against those of parsed documents."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.config.json_paths import FieldName, Step, Wildcard, json_path
from dcp.lake.receive.column_editor import ColumnEditor
from dcp.lake.receive.json_editor import Edit, drop, text_editor

NAMES = ("email", "user", "a b", 'q"', "é", "x\\y", ",", ", ", "]", ":")
GONE = object()
ELEMENTS = (Wildcard.ELEMENTS,)


def mark(values: Sequence[bytes]) -> list[bytes]:
    return [json.dumps(["edited", json.loads(value)]).encode() for value in values]


def path(text: str) -> tuple[Step, ...]:
    steps = json_path(text)
    assert steps is not None
    return steps


def edited_text(edits: Mapping[tuple[Step, ...], Edit], text: bytes) -> bytes | None:
    """Edit a text as a task does: in a column if that goes, else by itself."""
    columns = ColumnEditor.of(edits)
    if columns is not None:
        texts, is_left = columns.edited(pa.array([text], pa.binary()))
        if not is_left[0]:
            found: bytes = texts[0].as_py()
            return found
        assert texts[0].as_py() == text
    return text_editor(edits)(text)


def edited(document: Any, edits: Mapping[tuple[Step, ...], Edit]) -> Any:
    """Return a parsed document with the edits, `GONE` if it is dropped.

    Each value is edited once: all paths go down together.
    """
    if not isinstance(document, list):  # the only element of itself
        while more := {path[1:]: edit for path, edit in edits.items() if path[:1] == ELEMENTS}:
            rest = {path: edit for path, edit in edits.items() if path[:1] != ELEMENTS}
            edits = more | rest
    if (edit := edits.get(())) is not None:
        [text] = edit([json.dumps(document).encode()])
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
    text = dumps(document).encode()
    for found in (edited_text({steps: edit}, text), text_editor({steps: edit})(text)):
        assert (GONE if found is None else json.loads(found)) == edited(document, {steps: edit})


@given(DOCUMENTS, st.lists(st.sampled_from(["$.email", "$.user", "$.é"]), unique=True, min_size=2))
def test_several_edits_of_a_text(document: Any, paths: list[str]) -> None:
    edits: dict[tuple[Step, ...], Edit] = {
        path(each): (drop, mark)[number % 2] for number, each in enumerate(paths)
    }
    text = json.dumps(document).encode()
    for found in (edited_text(edits, text), text_editor(edits)(text)):
        assert found is not None
        assert json.loads(found) == edited(document, edits)


class Spelled(str):
    """A text with its JSON, which may have other escapes than needed."""

    json: str

    def __new__(cls, letters: Iterable[str]) -> "Spelled":
        told = "".join(letters)
        found = super().__new__(cls, json.loads(f'"{told}"'))
        found.json = f'"{told}"'
        return found


LETTERS = ["\\\\", '\\"', "\\n", "\\u0022", "\\u005c", "\\u00e9", "\\/", "/", "u", ":", ",", "{"]
TEXTS = st.lists(
    st.sampled_from([*LETTERS, "email", "\\u0065mail", '\\"email\\":', '\\"email', 'email\\"']),
    max_size=6,
).map(Spelled)
SPELLED_NAMES = ["\\u0065mail", "a\\/b", "\\u00e9", '\\"email', "email\\n", "us\\u0065r"]
MEMBER_NAMES = st.sampled_from(
    ["email", "user", "a", "}", "é", "a/b", "", *map(Spelled, SPELLED_NAMES)]
)
# Objects are tuples of members, whose names may be there twice.
MEMBERS = st.recursive(
    st.sampled_from([None, True, -1.5, 12, "", "email", "a text", "x,:{", "[", 'q"', "\\"]) | TEXTS,
    lambda below: (
        st.lists(below, max_size=2)
        | st.lists(st.tuples(MEMBER_NAMES, below), max_size=4).map(tuple)
    ),
    max_leaves=12,
)
MEMBER_PATHS = st.sampled_from(["email", "user.email", "user", "a", "é", "user.a", "a.user.email"])
MEMBER_PATHS = MEMBER_PATHS.map("$.{}".format) | st.sampled_from(["$['a/b']", "$['']"])


def wrap(values: Sequence[bytes]) -> list[bytes]:
    return [b'["edited",%b]' % value for value in values]


def written(value: Any, space: str) -> str:
    if isinstance(value, tuple):
        members = (f"{written(name, '')}{space}:{space}{written(v, space)}" for name, v in value)
        return "{" + space + f"{space},{space}".join(members) + space + "}"
    if isinstance(value, list):
        return "[" + f"{space},".join(written(each, space) for each in value) + space + "]"
    return value.json if isinstance(value, Spelled) else json.dumps(value)


def plain(value: Any, edits: Mapping[tuple[Step, ...], Edit]) -> Any:
    """Return what `MEMBERS` makes, with edits of members that have no array on their way."""
    if not isinstance(value, tuple):
        return value
    members = []
    for name, each in value:
        below = {path[1:]: edit for path, edit in edits.items() if path[:1] == (FieldName(name),)}
        if () not in below:
            members.append((name, plain(each, below)))
        elif below[()] is not drop:
            members.append((name, ["edited", each]))
    return tuple(members)


@given(
    st.lists(
        st.tuples(MEMBERS, st.sampled_from(["", " ", "\r\n\t ", " " * 70]))
        | st.sampled_from(
            [b"", b"{", b'{"email":"a"', b'{"a":NaN}', b'"email"', b'{"a":1}{"a":1}']
        ),
        min_size=1,
        max_size=6,
    ),
    st.dictionaries(MEMBER_PATHS.map(path), st.sampled_from([drop, wrap]), min_size=1, max_size=4),
    st.integers(1, 300),
    st.integers(1, 3),
)
def test_a_column_is_edited_as_its_texts_are(
    texts: list[Any], edits: dict[tuple[Step, ...], Edit], block_bytes: int, rows_at_once: int
) -> None:
    editor = ColumnEditor.of(edits)
    assert editor is not None
    rows = [each if isinstance(each, bytes) else written(*each).encode() for each in texts]
    column = pa.array([b"before", *rows, b"behind"], pa.binary())[1:-1]
    with (
        patch("dcp.lake.receive.column_editor._BLOCK_BYTES", block_bytes),
        patch("dcp.lake.receive.column_editor._ROWS_AT_ONCE", rows_at_once),
    ):
        found, is_left = editor.edited(column)
    found.validate(full=True)
    unchanging = ColumnEditor.of(dict.fromkeys(edits, list))
    assert unchanging is not None
    assert unchanging.edited(column)[0].equals(column)
    for text, row, edited_row, left in zip(texts, rows, found.to_pylist(), is_left, strict=True):
        alone, is_left_alone = editor.edited(pa.array([row], pa.binary()))
        assert (alone[0].as_py(), is_left_alone[0]) == (edited_row, left)
        if left:
            assert edited_row == row
            continue
        assert not isinstance(text, bytes) or not text
        by_itself = text_editor(edits)(row)
        assert by_itself is not None
        assert json.loads(edited_row) == json.loads(by_itself)
        assert json.loads(edited_row, object_pairs_hook=tuple) == plain(text[0], edits)
        if not text[1]:
            assert edited_row == written(plain(text[0], edits), "").replace("], ", "],").encode()


def test_a_column_leaves_only_what_needs_a_look() -> None:
    texts = {
        b'{"a":{"e":"x"},"e":1}': True,  # a name twice
        b'{"a":{"e":"x"},"b":"e","c":"a"}': False,
        b'{"a":{"e":1.5e3},"b":2}': False,
        b'{"a":[{"e":1}]}': True,
        b'{"a":null}': True,
        b'{"b":"\\"}': True,
        b'{"b":"\\"a\\":","a":{"e":"\\\\"},"c":"\\\\\\"e\\":"}': False,
        b'{"b":"\\u0065\\/","\\n\\"e":"\\u0065"}': False,
        b'{"b":"\\u0065","\\u0065" :1}': True,
        b'{"b":{"a":{"e":1}}}': False,
        b"{}": False,
    }
    editor = ColumnEditor.of({path("$.a.e"): wrap})
    assert editor is not None
    found, is_left = editor.edited(pa.array(texts, pa.binary()))
    assert dict(zip(texts, is_left.tolist(), strict=True)) == texts
    assert found[1].as_py() == b'{"a":{"e":["edited","x"]},"b":"e","c":"a"}'
    assert found[2].as_py() == b'{"a":{"e":["edited",1.5e3]},"b":2}'
    assert b'{"b":{"a":{"e":1}}}' in found.to_pylist()
    assert b'{"b":"\\"a\\":","a":{"e":["edited","\\\\"]},"c":"\\\\\\"e\\":"}' in found.to_pylist()


def test_what_is_between_dropped_members_stays() -> None:
    rows = [
        b'{"x": 0 , "a": 1, "b":2 ,\n"c" : 3 }',
        b'{"a": 1, "b":2 , "x": 0, "c" : 3 }',
        b'{"x": 0, "u": {"a" :1 }, "b":2}',
        b'{ "c":1 }',
        b'{"a":1,"b":2,"x":0}',
    ]
    editor = ColumnEditor.of({path(f"$.{each}"): drop for each in "abc"})
    assert editor is not None
    found, is_left = editor.edited(pa.array(rows, pa.binary()))
    assert not is_left.any()
    assert found.to_pylist() == [
        b'{"x": 0   }',
        b'{"x": 0 }',
        b'{"x": 0, "u": {"a" :1 }}',
        b"{ }",
        b'{"x":0}',
    ]


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
    (["$.u.a"], b'{"u":{},"u":{"a":1}}', b'{"u":{},"u":{}}'),
    (["$.u.a"], b'{"u":{"a":1},"u":{"a":2}}', b'{"u":{}}'),
    (["$.a"], b'{"\\u0061":1}', b"{}"),
    (["$.a"], b'{"\\u0061":1,"u":{"a":1}}', b'{"u":{"a":1}}'),
    (["$.u.a"], b'{"\\u0075":{"a":1},"u":{}}', b'{"u":{}}'),
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
    assert edited_text({path(each): drop for each in paths}, text) == expected


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
    found = edited_text({path(each): mark for each in paths}, text)
    assert found == text.replace(b'"S"', mark([b'"S"'])[0])


def test_a_whole_text_is_dropped() -> None:
    assert text_editor({(): drop})(b"[1]") is None


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b'{"a":1}x', b"{'a':1}", b'{"a":NaN}', b"nul", b"[" * 100_000, b'{"a":"\\ud800"}'],
)
@pytest.mark.parametrize("steps", ["$.a", "$.a[*]", "$"])
def test_what_is_no_json_is_refused(text: bytes, steps: str) -> None:
    with pytest.raises(ValueError, match="found no JSON that can be read"):
        edited_text({path(steps): mark}, text)

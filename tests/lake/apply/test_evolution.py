"""The fields that become columns, and the numbers for which columns widen, by documents alone."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dcp.lake.apply.column_growth import MOST_COLUMNS, grown
from dcp.lake.apply.json_documents import parse_object
from dcp.lake.apply.seen_values import Seen
from dcp.lake.apply.typed_documents import see_documents
from dcp.lake.config.contracts import Contract, ContractMode
from dcp.lake.tables.typed_columns import (
    TypedColumns,
    document_type_of,
    fingerprint_of,
    scalars_of,
    table_type,
)
from dcp.wire.vocabulary import Datatype
from tests.lake.apply.json_texts import WITH_MAP, at_once, documents
from tests.lake.document_types import document_type

NONE = pa.struct([])


def evolved(known: pa.StructType, *documents: bytes) -> pa.StructType:
    columns = TypedColumns(known, "", ContractMode.FREEZE)
    flags = pa.array([int(Datatype.JSON)] * len(documents), pa.int32())
    rows = {"datatype": flags, "value": pa.array(documents, pa.binary())}
    return grown(known, see_documents(columns, [pa.RecordBatch.from_pydict(rows)]))


def one_by_one(known: pa.StructType, *documents: bytes) -> pa.StructType:
    seen = Seen().expect(known)
    for document in documents:
        seen.add(parse_object(document))
    return grown(known, seen)


@given(
    documents=st.lists(documents, min_size=1, max_size=5),
    known=st.sampled_from([NONE, WITH_MAP]),
    size=st.sampled_from([1, 256]),
)
@example(documents=[b'{"a": 1}', b'{"a": 2, "b": {}}', b'{"a": "x"}'], known=NONE, size=1)
@example(documents=[b'{"a": [null]}', b'{"a": [{"b": null}]}', b'{"a": [0]}'], known=NONE, size=1)
def test_read_together_they_say_what_they_say_one_by_one(
    documents: list[bytes], known: pa.StructType, size: int
) -> None:
    with at_once(size):
        assert evolved(known, *documents) == one_by_one(known, *documents)


@pytest.mark.parametrize(
    ("known", "values", "wanted"),
    [
        (None, "1 -2147483649", "bigint"),
        (None, "1 9223372036854775808", "decimal(38,0)"),
        (None, "1 0.5", "double"),
        (None, "1.0", "double"),
        (None, "1" + "0" * 38, "double"),
        (None, '1 "x"', "string"),
        (None, "[] 1", "string"),
        (None, '"2026-01-31T10:00:00Z"', "string"),
        (None, "null []", None),
        ("int", "2147483647 null", "int"),
        ("int", '2147483648 "x"', "bigint"),
        ("int", "1.0", "double"),
        ("bigint", "-9223372036854775809", "decimal(38,0)"),
        ("decimal(6,2)", '9999.99 1.500 "1.255"', "decimal(6,2)"),
        ("decimal(6,2)", "10000", "decimal(38,2)"),
        ("decimal(6,2)", "0.001", "decimal(38,3)"),
        ("decimal(6,2)", "1e37", "double"),
        ("double", "1e999", "double"),
        ("string", "1", "string"),
    ],
)
@pytest.mark.parametrize("step", [".y", "[*]", ".*"])
def test_types_for_what_was_seen(
    known: str | None, values: str, wanted: str | None, step: str
) -> None:
    if step == ".*" and known is None:
        return  # a contract says so, or nobody
    columns = NONE if known is None else document_type({f"$.x[*]{step}": known})
    one = "[%s]" if step == "[*]" else '{"y": %s}'
    texts = [b'{"x": [%s]}' % (one % value).encode() for value in values.split()]
    expected = NONE if wanted is None else document_type({f"$.x[*]{step}": wanted})
    assert evolved(columns, b"{}", *texts) == expected


def test_half_a_surrogate_pair_in_a_name_is_no_character() -> None:
    document = rb'{"\ud83d": 1, "\ud83d\ude00": [{"x\uDE00": true}], "\\ud83d": "a"}'
    kind = evolved(NONE, document)
    assert kind.names == [r"\ud83d", "\ufffd", "\U0001f600"]
    assert evolved(kind, document) == kind
    assert kind.field("\U0001f600").type == pa.list_(pa.struct([("x\ufffd", pa.bool_())]))


def test_a_document_that_is_no_json_says_nothing_of_the_columns() -> None:
    """The server's flag may be wrong."""
    known = document_type({"$.n": "int"})
    texts = [b'{"n": 1}', b'{"n": 2, "new": true}', b'{"n": ', b"[1]", b"", b'{"n": 3e9, }']
    assert evolved(known, *texts) == document_type({"$.n": "int", "$.new": "boolean"})


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (['{"\u00b5g": 1}', '{"\u03bcg": 2}', '{"\u00b5g": 3, "\u03bcg": 4}'], ["\u00b5g"]),
        (['{"a": 1, "A": 2}', '{"a": 1}'], ["a"]),
        (['{"A": 1}', *['{"a": 1}'] * 40], ["a"]),
        ([*['{"a": 1}'] * 40, '{"A": 1}', '{"A": 1}'], ["a"]),
        (['{"A": {}}', '{"A": {}}', '{"a": 1}'], ["a"]),
        (['{"\u0130": 1}', '{"i": 1}', '{"i": 1}', '{"\u0131": 1}'], ["i"]),
        (['{"\u212a": 1, "\u00df": 1}', '{"k": 1, "ss": 1}', '{"k": 1}'], ["k", "ss", "\u00df"]),
        ([r'{"a\u0000": 1, "b\u007f": 1, "c\u0085": 1, "d": 1}'], ["d"]),
        (
            ['{"unit\u00a0price": 2, "soft\u00adhyphen": 1}'],
            ["soft\u00adhyphen", "unit\u00a0price"],
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 16, 256])
def test_names_that_spark_takes_for_one_become_one_column_the_most_frequent(
    texts: list[str], names: list[str], size: int
) -> None:
    with at_once(size):
        kind = evolved(NONE, *map(str.encode, texts))
        inner = evolved(NONE, *(f'{{"o": {text}}}'.encode() for text in texts))
    assert kind.names == names
    assert inner.field("o").type.names == names


def _objects(*levels: str, fields: int) -> dict[str, Any]:
    content: dict[str, Any] = {f"f{number}": 1 for number in range(fields)}
    for name in reversed(levels):
        content = {name: content}
    return content


def _evolved(content: dict[str, Any]) -> pa.StructType:
    return evolved(NONE, json.dumps(content).encode())


@pytest.mark.parametrize("levels", [(), ("a",), ("a", "b", "c")])
@pytest.mark.parametrize("over", [0, 1])
def test_as_many_fields_become_columns_at_any_depth(levels: tuple[str, ...], over: int) -> None:
    found = _evolved(_objects(*levels, fields=MOST_COLUMNS + over))
    assert len(scalars_of(found)) == MOST_COLUMNS


def test_what_is_in_a_field_that_gets_no_column_takes_no_room() -> None:
    found = _evolved({"a b": _objects(fields=MOST_COLUMNS), **_objects(fields=MOST_COLUMNS)})
    assert len(scalars_of(found)) == MOST_COLUMNS
    assert found.get_field_index("a b") < 0


def test_an_object_whose_names_are_data_leaves_others_their_columns() -> None:
    found = _evolved({"m": _objects(fields=MOST_COLUMNS + 100), "n": 1})
    assert found.field("n").type == pa.int64()
    assert found.field("m").type.num_fields == MOST_COLUMNS - 1


def test_of_names_that_are_data_so_many_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcp.lake.apply.seen_values.MOST_FIELDS", 10)
    known = document_type({"$.z": "int", "$.map.*": "int"})
    content = {
        **{f"f{number}": number for number in range(20)},
        "map": {"a": 1, "b": 0.5},
        "z": 0.5,
    }
    found = evolved(known, json.dumps(content).encode())
    assert found.field("z").type == found.field("map").type.item_type == pa.float64()
    assert found.num_fields == 10


def test_columns_of_other_names_leave_new_fields_theirs() -> None:
    known = document_type(
        {
            "$.a b": {"as": "a_b", "type": "int"},
            "$.o": {"as": "in"},
            "$.o.A": {"as": "other", "type": "int"},
        }
    )
    found = evolved(known, b'{"a b": 0.5, "a_b": 1, "A_B": 1, "o": {"A": 1, "a": "x"}, "in": 2}')
    kind = pa.struct([("other", pa.int32()), ("a", pa.string())])
    assert table_type(found) == pa.struct([("a_b", pa.float64()), ("in", kind)])
    assert document_type_of(table_type(found), known) == found


def test_the_order_of_a_contracts_columns_does_not_matter() -> None:
    def fingerprint(*fields: tuple[str, pa.DataType]) -> str:
        within = pa.list_(pa.map_(pa.string(), pa.struct(fields)))
        document = pa.struct([("a", within), *fields])
        return fingerprint_of(Contract("s.c", ContractMode.FREEZE, document, "here"))

    x, y = ("x", pa.int32()), ("y", pa.string())
    assert fingerprint(x, y) == fingerprint(y, x) != fingerprint(x)

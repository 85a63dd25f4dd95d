"""Typed columns of documents: read together by pyarrow they are what the rules make of each one."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dcp.lake.apply import typed_documents
from dcp.lake.apply.json_documents import MOST_NESTED, parse_object
from dcp.lake.apply.typed_documents import MOST_VIOLATIONS, Rules, see_documents, typed_arrays
from dcp.lake.config.contracts import ContractMode
from dcp.lake.tables.typed_columns import TypedColumns, table_type
from dcp.wire.vocabulary import Datatype
from tests.lake.apply.json_texts import DOCUMENT, NAMES, TOKENS, WITH_MAP, at_once, documents
from tests.lake.document_types import document_type

FREEZE, QUARANTINE = ContractMode.FREEZE, ContractMode.QUARANTINE


def typed(columns: TypedColumns, *documents: bytes) -> tuple[list[Any], list[Any]]:
    flags = pa.array([int(Datatype.JSON)] * len(documents), pa.int32())
    doc, violations = typed_arrays(columns, flags, pa.array(documents, pa.binary()))
    assert doc.type == table_type(columns.document)
    doc.validate(full=True)
    return doc.to_pylist(), violations.to_pylist()


def by_rules(columns: TypedColumns, *documents: bytes) -> tuple[list[Any], list[Any]]:
    rules = Rules(columns)
    made, told = zip(
        *(rules.of_document(each, parse_object(each)) for each in documents), strict=True
    )
    return pa.array(made, table_type(columns.document)).to_pylist(), list(told)


@given(
    documents=st.lists(documents, min_size=1, max_size=5),
    strict=st.booleans(),
    kind=st.sampled_from([DOCUMENT, WITH_MAP]),
    size=st.sampled_from([1, 256]),
)
@example(documents=[b'{"in":{}', b"{}", b"{}{}"], strict=False, kind=DOCUMENT, size=256)
@example(documents=[b'{"text":"}', b'{"text":"}"}', b"{}{}"], strict=False, kind=DOCUMENT, size=256)
@example(
    documents=[b'{"new":[{"x":null}]}', b'{"new":[{"x":1}]}'], strict=True, kind=DOCUMENT, size=1
)
@example(documents=[b'{"in":null}', b'{"list":[null,{}]}'], strict=True, kind=DOCUMENT, size=256)
def test_read_together_they_are_what_the_rules_make_of_each(
    documents: list[bytes], strict: bool, kind: pa.StructType, size: int
) -> None:
    columns = TypedColumns(kind, "", FREEZE if strict else QUARANTINE)
    with at_once(size):
        assert typed(columns, *documents) == by_rules(columns, *documents)


PLACES = [f'"{name}":%s' for name in NAMES]
PLACES += ['"in":{"day":%s}', '"in":{"list":[1,%s]}', '"in":{"new":%s}', '"list":[{"time":%s}]']
PLACES += ['"list":[{},{"number":%s}]', '"list":[{"new":[%s]}]', "%s"]
PLACES += ['"map":{"a":{},"b":%s}', '"map":{"a":{"new":%s}}']


def test_each_kind_of_value_at_each_place() -> None:
    for place in PLACES:
        kind = WITH_MAP if "map" in place else DOCUMENT
        columns = TypedColumns(kind, "", FREEZE if "new" in place else QUARANTINE)
        for token in TOKENS:
            document = ("{" + place % token + "}").encode()
            assert typed(columns, document) == by_rules(columns, document), document


@pytest.mark.parametrize(
    ("kind", "text", "made"),
    [
        (
            "string",
            '{"b": [1.10, 1E30, true, null, "\\u00e9\\n"]}',
            '{"b":[1.10,1E30,true,null,"é\\n"]}',
        ),
        ("string", '"\\ud83d\\ude00\\ud83d"', "\U0001f600\ufffd"),
        ("bigint", "-0", 0),
        ("bigint", "9223372036854775808", None),
        ("double", "1e999", None),
        ("double", "0.1", 0.1),
        ("decimal(6,2)", "1.005", Decimal("1.01")),
        ("decimal(6,2)", "9999.995", None),
        ("decimal(6,2)", '"1.5"', Decimal("1.50")),
        ("decimal(6,2)", '"1,5"', None),
        ("date", '"0001-01-01"', date(1, 1, 1)),
        ("date", '"0000-01-01"', None),
        ("date", '"20260131"', date(2026, 1, 31)),
        ("date", '"2026-01"', None),
        ("date", '"202601"', None),
        ("date", "20260131", None),
        ("partial_date", '"1944"', "1944"),
        ("partial_date", '"1944-11"', "1944-11"),
        ("partial_date", '"1944-11-17"', "1944-11-17"),
        ("partial_date", '"1944-13"', None),
        ("partial_date", '"1943-02-29"', None),
        ("partial_date", '"0000-01"', None),
        ("partial_date", '"19441117"', None),
        ("partial_date", '"1944-11-17T10:00:00Z"', None),
        ("partial_date", "1944", None),
        ("timestamp", '"2026-01-31t10:00:00.5z"', datetime(2026, 1, 31, 10, 0, 0, 500_000, UTC)),
        ("timestamp", '"20260131T101500+0100"', datetime(2026, 1, 31, 9, 15, tzinfo=UTC)),
        ("timestamp", '"20260131T10"', datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("timestamp", '"20260131"', datetime(2026, 1, 31, tzinfo=UTC)),
        ("timestamp", '"20260131T10:00"', None),
        ("timestamp", '"2026-01"', None),
        ("timestamp_ms", "1769853600250", datetime(2026, 1, 31, 10, 0, 0, 250_000, UTC)),
        ("timestamp_ms", "-1", datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        ("timestamp_ms", '"2026-01-31t10:00z"', datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("timestamp_ms", "-62135596800000", datetime(1, 1, 1, tzinfo=UTC)),
        ("timestamp_ms", "-62135596800001", None),
        ("timestamp_ms", "253402300799999", datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        ("timestamp_ms", "253402300800000", None),
        ("timestamp_ms", '"1769853600250"', None),
        ("timestamp_ms", "1.5", None),
        ("timestamp", '"2026-01-31"', datetime(2026, 1, 31, tzinfo=UTC)),
        (
            "timestamp",
            '"2026-01-31 10:00:00.1234567-01:30"',
            datetime(2026, 1, 31, 11, 30, 0, 123456, UTC),
        ),
        ("timestamp", "1.0", None),
        ("timestamp", "-62135596800", datetime(1, 1, 1, tzinfo=UTC)),
        ("timestamp", "-62135596801", None),
        ("timestamp", '"9999-12-31T23:59:59-00:01"', None),
    ],
)
def test_what_fits_a_type(kind: str, text: str, made: Any) -> None:
    columns = TypedColumns(document_type({"$.x": kind}), "", QUARANTINE)
    [doc], [told] = typed(columns, f'{{"x": {text}}}'.encode())
    assert doc == {"x": made}
    assert (told is None) == (made is not None)


def test_what_does_not_fit_takes_nothing_else_along() -> None:
    paths = {"$.list[*].n": "int", "$.map.*.n": "int", "$.o.a": "int", "$.o.b": "string"}
    columns = TypedColumns(document_type(paths), "", FREEZE)
    text = (
        '{"list": [{"n": 1}, {"n": 1.50}, {"n": "x"}, 7], "o": "here", "more": {"x": [1.0]}, '
        '"map": {"a": {"n": 1}, "b": {"n": [], "m": "y"}, "c": null}, "none": [null, {"x": null}]}'
    )
    [doc], [told] = typed(columns, text.encode())
    assert doc == {
        "list": [{"n": 1}, {"n": None}, {"n": None}, None],
        "map": [("a", {"n": 1}), ("b", {"n": None}), ("c", None)],
        "o": None,
    }
    assert [tuple(each.values()) for each in told] == [
        ("$.list[*].n", "1.50", "int"),
        ("$.map.*.n", "[]", "int"),
        ("$.map.*.m", "y", "no such field"),
        ("$.o.a", "here", "int"),
        ("$.o.b", "here", "string"),
        ("$.more", '{"x":[1.0]}', "no such field"),
    ]


def test_many_documents_stay_in_their_order() -> None:
    """Those that do not fit are read one by one, those that are no JSON not at all."""
    columns = TypedColumns(document_type({"$.n": "int", "$.day": "date"}), "", QUARANTINE)
    flag, deep = int(Datatype.JSON), b'{"n":' + b"[" * MOST_NESTED + b"]" * MOST_NESTED + b"}"
    odd = {
        3: (b"no JSON", flag, "no JSON"),
        260: (b'{"n": 1}', flag | int(Datatype.SNAPPY), "8 bytes that are no JSON"),
        270: (None, 0, "0 bytes that are no JSON"),
        300: (deep, flag, deep.decode()[:200]),
        301: (b'{"n": "\xff"}', flag, '{"n": "\ufffd"}'),
    }
    rows = [odd.get(n, (b'\n{"n":\n%d, "day": "2026-01-31"}' % n, flag, None)) for n in range(700)]
    rows[600] = (b'{"n": "x"}', flag, "x")
    values, flags, found = zip(*rows, strict=True)
    doc, told = typed_arrays(columns, pa.array(flags), pa.array(values, pa.binary()))
    day = date(2026, 1, 31)
    assert doc.to_pylist() == [
        None if n in odd else {"n": None if n == 600 else n, "day": None if n == 600 else day}
        for n in range(700)
    ]
    assert [each and each[0]["found"] for each in told.to_pylist()] == list(found)


def test_levels_are_those_of_objects_and_arrays() -> None:
    columns = TypedColumns(document_type({"$.n": "int"}), "", QUARANTINE)
    text = b'"' + rb"\\\"[" * MOST_NESTED + rb"\\" + b'"'
    deep = b"[" * (MOST_NESTED - 1) + b"]" * (MOST_NESTED - 1)
    document = b'{"n": 1, "text": %s, "deep": %s}'
    fits, deeper = document % (text, deep), document % (text, b"[%s]" % deep)
    assert typed(columns, fits) == ([{"n": 1}], [None]) == by_rules(columns, fits)
    [doc], [[told]] = typed(columns, deeper)
    assert (doc, told["path"], told["expected"]) == (None, "$", "a JSON object")


def test_of_a_document_so_many_violations_are_told() -> None:
    columns = TypedColumns(document_type({"$.n": "int"}), "", FREEZE)
    document = json.dumps({f"f{number}": 1 for number in range(MOST_VIOLATIONS + 1)}).encode()
    _, [told] = typed(columns, document)
    assert len({each["path"] for each in told}) == MOST_VIOLATIONS


@pytest.mark.parametrize(
    ("document", "most_alone"),
    [
        (b'{"n": %d, "new": {"x": 0.5}}', 0),
        (b'{"n": %d, "new": {"x": 0.5, "none": [null]}, "empty": {}}', 16),
        (b'{"n": %d, "new": {"x": "other"}}', 1024),
    ],
)
def test_what_documents_have_beside_the_columns_is_learnt_from_few(
    monkeypatch: pytest.MonkeyPatch, document: bytes, most_alone: int
) -> None:
    alone: list[bytes] = []
    together: list[int] = []

    def parse(each: bytes) -> Any:
        alone.append(each)
        return parse_object(each)

    def read(several: list[bytes], *arguments: Any) -> Any:
        together.append(len(several))
        return read_together(several, *arguments)

    read_together = typed_documents._read_together
    monkeypatch.setattr(typed_documents, "parse_object", parse)
    monkeypatch.setattr(typed_documents, "_read_together", read)
    known = document_type({"$.n": "int", "$.new.x": "double"})
    columns = TypedColumns(known, "", FREEZE)
    several = [document % number for number in range(1024)]
    typed(columns, *several)
    assert len(alone) == most_alone
    assert sum(together) <= 4 * 1024
    flags = pa.array([int(Datatype.JSON)] * 1024, pa.int32())
    rows = {"datatype": flags, "value": pa.array(several, pa.binary())}
    see_documents(columns, [pa.RecordBatch.from_pydict(rows)])
    assert len(alone) == 2 * most_alone

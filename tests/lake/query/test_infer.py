"""Proposed contracts: types by what most values are, and the number of those that would not fit."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dcp.lake.apply.json_documents import parse_object
from dcp.lake.apply.typed_documents import Rules
from dcp.lake.config.contracts import document_type, load_contracts
from dcp.lake.query.infer import propose_contract
from dcp.lake.tables.typed_columns import TypedColumns, has_names_twice, paths_of
from dcp.printable import printable_lines

DEEP = b'{"a": ' + b"[" * 100_000


def proposed(*documents: Any) -> dict[str, tuple[str, dict[str, int]]]:
    found = propose_contract("a.b", (json.dumps(each).encode() for each in documents))
    return {each.path: (each.kind, dict(each.misfits)) for each in found.columns}


@pytest.mark.parametrize(
    ("values", "kind", "misfits"),
    [
        ([1, 2, None], "bigint", {}),
        ([1, 2**63], "decimal(38,0)", {}),
        ([1, 2**63, 0.5], "double", {}),
        ([True, False], "boolean", {}),
        (["2026-01-31"], "date", {}),
        (["2026-01-31 10:00", "2026-01-31T10:00:00.5+01:00"], "timestamp", {}),
        ([1, 10**40], "double", {}),
        ([1, 10**400], "string", {}),
        ([*[0.5] * 19, 10**400], "double", {"number beyond a double": 1}),
        ([*["2026-01-31"] * 19, "2021-02-29"], "string", {}),
        (["0000-01-01"], "string", {}),
        (["9999-12-31T23:59:60Z"], "string", {}),
        (["2020-01-01T00:00:00+99:00"], "string", {}),
        (["2026-01-31", "soon"], "string", {}),
        ([*range(18), "x", True], "bigint", {"string": 1, "boolean": 1}),
        ([1, "x"], "string", {}),
        ([*[{"a": 1}] * 9, 5], None, {}),
        ([*[[1]] * 9, 5], None, {}),
        ([{"a": 1}, 5], "string", {}),
        ([None], None, {}),
        (["12.50", "7", "-0.125"], "decimal(38,3)", {}),
        (["12.50", 7, 1.25], "decimal(38,2)", {}),
        (["1e3", "1E-2"], "decimal(38,2)", {}),
        (["00501", "12"], "string", {}),
        (["+49", "12"], "string", {}),
        (["1e99", "1"], "string", {}),
        (["9" * 38, "0.5"], "string", {}),
        (["1,5", "12"], "string", {}),
        ([[], {}], "string", {}),
    ],
)
def test_a_type_that_most_values_have(values: list[Any], kind: str | None, misfits: Any) -> None:
    found = proposed(*({"x": value} for value in values))
    assert found.get("$.x") == (None if kind is None else (kind, misfits))


def test_nested_arrays_and_objects_whose_names_are_data() -> None:
    many = {f"id-{number}": {"price": number} for number in range(60)}
    found = proposed(
        *({"o": {"a": 1, "b": [[0.5]]}, "m": {name: value}} for name, value in many.items())
    )
    assert found == {
        "$.o.a": ("bigint", {}),
        "$.o.b[*][*]": ("double", {}),
        "$.m.*.price": ("bigint", {}),
    }


def test_what_is_printed_is_a_contract(tmp_path: Path) -> None:
    documents = [b'{"a": 1, "A": 2, "x y": 3, "it\'s": 4, "\xc3\xa9": 5, "a.b": 6}'] * 10
    found = str(
        propose_contract(
            "a.b", [*documents, b'{"a": "x"}', b"no JSON", b"[1]", b'{"a": NaN}', DEEP]
        )
    )
    assert "# From 15 documents; 4 of them are no JSON object." in found
    assert '"$.a" = "bigint"  # 11 values; 1 would not fit: 1 string' in found
    assert '# "$.A": no column, Spark takes the name for that of "$.a"' in found
    assert "# \"$['x y']\": no column, the name has ' ', which no column's name has" in found
    (tmp_path / "a.toml").write_text(found)
    [contract] = load_contracts(str(tmp_path)).values()
    assert {field.name for field in contract.document} == {"a", "é", "a.b", "it's"}


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(st.text(), _VALUES, max_size=4), min_size=1, max_size=4))
@example([{"unit\u00a0price": 2, "soft\u00adhyphen": "1.5", "del\x7f": 1, "\U000e0001": 1}])
@example([{"a": 1, "A": 2, "": 3, "it's": 4, 'say "x"\\': 5, "\u2028": 6}])
def test_a_contract_of_any_documents_is_read_from_what_is_printed(
    documents: list[dict[str, Any]],
) -> None:
    found = propose_contract("a.b", [json.dumps(each).encode() for each in documents])
    text = str(found)
    assert printable_lines(text) == text
    parsed = tomllib.loads(text)
    columns = {each.path: each.kind for each in found.columns}
    assert parsed["columns"] == columns
    kind = document_type(columns, "a test")
    assert not has_names_twice(kind)
    rules = Rules(TypedColumns(kind, ""))
    for each in documents:
        value = json.dumps(each).encode()
        _, violations = rules.of_document(value, parse_object(value))
        assert violations is None or any(each.misfits for each in found.columns)
    assert len(list(paths_of(kind))) == len(columns)

"""Proposed contracts: types by what most values are, and the number of those that would not fit."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dcp.errors import ConfigError
from dcp.lake.apply.json_documents import parse_object
from dcp.lake.apply.typed_documents import Rules
from dcp.lake.config.contracts import ContractMode, load_contracts
from dcp.lake.query.infer import ProposedContract, file_of_new_contract, propose_contract
from dcp.lake.tables.typed_columns import TypedColumns, has_names_twice, scalars_of, table_type
from dcp.printable import printable_lines
from tests.lake.document_types import document_type

DEEP = b'{"a": ' + b"[" * 100_000


def contract_of(*documents: Any) -> ProposedContract:
    texts = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in documents)
    return propose_contract("a.b", ((f"k{number}", text) for number, text in enumerate(texts)))


def proposed(*documents: Any) -> dict[str, tuple[str, dict[str, int]]]:
    found = contract_of(*documents)
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
        (["1944-11-17", "1944-11", "1950"], "partial_date", {}),
        (["1944-11", "0950"], "partial_date", {}),
        (["1950", "1951"], "decimal(38,0)", {}),
        ([*["1944-11"] * 19, "1944-13"], "string", {}),
        (["20260131T100000Z", "2026-01-31t10:00:00z"], "timestamp", {}),
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
    found = str(contract_of(*documents, b'{"a": "x"}', b"no JSON", b"[1]", b'{"a": NaN}', DEEP))
    assert "# From 15 documents; 4 of them are no JSON object." in found
    assert '"$.a" = "bigint"  # 11 values; 1 would not fit: 1 string' in found
    assert '"$.A" = { as = "A_2", type = "bigint" }  # 10 values' in found
    assert '"$[\'x y\']" = { as = "x_y", type = "bigint" }  # 10 values' in found
    told = '"$.a" has values of several kinds: 10 numbers, 1 text ("$.a" of the document "k10")'
    assert told in found
    (tmp_path / "a.toml").write_text(found)
    [contract] = load_contracts(str(tmp_path)).values()
    assert {field.name for field in contract.document} == {"a", "A", "x y", "é", "a.b", "it's"}


def test_each_field_gets_a_column_of_a_name_of_its_own() -> None:
    found = contract_of(
        {"": 1, "key": 2, "Key ": 3, "(seqno)": 4, "a b": {"c\x00": [{"d=": "x"}]}, "a_b": 5},
        {"a,b": [[True]], "a  b": {"x y": None}},
    )
    assert {each.path: each.entry for each in found.columns} == {
        "$['']": {"as": "field", "type": "bigint"},
        "$.key": "bigint",
        "$['Key ']": {"as": "Key_2", "type": "bigint"},
        "$.(seqno)": {"as": "seqno_2", "type": "bigint"},
        "$['a b']": {"as": "a_b_2"},
        "$['a b'].c\x00[*]": {"as": "c"},
        "$['a b'].c\x00[*].d=": {"as": "d", "type": "string"},
        "$.a_b": "bigint",
        "$.a,b[*][*]": {"as": "a_b_3", "type": "boolean"},
    }
    kind = document_type({each.path: each.entry for each in found.columns})
    assert table_type(kind).names == ["field", "key", "Key_2", "seqno_2", "a_b_2", "a_b", "a_b_3"]


def test_mixed_kinds_are_told_with_counts_and_an_example() -> None:
    found = contract_of(
        *({"a": [{"p": 1}]} for _ in range(9)), {"a": [{"p": 2}, {"p": "2.50"}, 7, {"p": [1]}]}
    )
    assert list(found.mixed) == [
        '# "$.a[*]" has values of several kinds: 12 objects, 1 number '
        '("$.a[2]" of the document "k9")',
        '# "$.a[*].p" has values of several kinds: 10 numbers, 1 numeric text '
        '("$.a[1].p" of the document "k9"), 1 array ("$.a[3].p" of the document "k9")',
    ]
    assert not contract_of({"a": 1}, {"a": 0.5}, {"a": None}, {"a": 10**400}).mixed
    assert not contract_of({"a": "x"}, {"a": "2026-01-31"}, {"a": "2026-01"}, {"a": "2026"}).mixed
    assert contract_of({"a": "x"}, {"a": "2026"}).mixed


def test_the_file_of_a_new_contract(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    assert file_of_new_contract(str(folder), "a.b") == folder / "a.b.toml"
    folder.mkdir()
    (folder / "a.b.toml").write_text('collection = "a.c"\nmode = "evolve"\n')
    with pytest.raises(ConfigError, match=r"a\.b\.toml: found this file, expected none yet"):
        file_of_new_contract(str(folder), "a.b")
    with pytest.raises(ConfigError, match=r"a\.b\.toml: found a contract for a\.c, expected none"):
        file_of_new_contract(str(folder), "a.c")
    with pytest.raises(ConfigError, match=r"apply\.contracts_folder: found none, expected the fo"):
        file_of_new_contract("", "a.b")


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
    found = contract_of(*documents)
    text = str(found)
    assert printable_lines(text) == text
    parsed = tomllib.loads(text)
    columns = {each.path: each.entry for each in found.columns}
    assert parsed["columns"] == columns
    kind = document_type(columns)
    assert not has_names_twice(table_type(kind))
    rules = Rules(TypedColumns(kind, "", ContractMode.QUARANTINE))
    for each in documents:
        value = json.dumps(each).encode()
        _, violations = rules.of_document(value, parse_object(value))
        assert violations is None or any(each.misfits for each in found.columns)
    assert len(scalars_of(kind)) == sum(1 for each in found.columns if each.kind)

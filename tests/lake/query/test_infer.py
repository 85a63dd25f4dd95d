"""Proposed contracts: types by what most values are, and the number of those that would not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from dcp.lake.config.contracts import load_contracts
from dcp.lake.query.infer import propose_contract

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
        ([1, 10**400], "double", {}),
        (["2026-01-31", "soon"], "string", {}),
        ([*range(18), "x", True], "bigint", {"string": 1, "boolean": 1}),
        ([1, "x"], "string", {}),
        ([*[{"a": 1}] * 9, 5], None, {}),
        ([*[[1]] * 9, 5], None, {}),
        ([{"a": 1}, 5], "string", {}),
        ([None], None, {}),
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
    assert '# "$.A": no column can have this name' in found
    assert "# \"$['x y']\": no column can have this name" in found
    (tmp_path / "a.toml").write_text(found)
    [contract] = load_contracts(str(tmp_path)).values()
    assert {field.name for field in contract.document} == {"a", "é", "a.b"}

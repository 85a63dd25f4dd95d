"""Contracts: their files, what is refused, and the types that they make."""

import re
from pathlib import Path

import pytest

from dcp.errors import ConfigError
from dcp.lake.config.contracts import ContractMode, load_contracts
from dcp.lake.tables.schema import spark_type
from dcp.lake.tables.typed_columns import (
    arrays_of,
    changed_arrays,
    document_type_of,
    fingerprint_of,
    table_type,
)

HEAD = 'collection = "a.b"\nmode = "freeze"\n'
DOCUMENTED = Path(__file__).parents[3] / "docs" / "howto" / "typed-columns.md"


def contract(folder: Path, text: str) -> str:
    (folder / "a.toml").write_text(text)
    [found] = load_contracts(str(folder)).values()
    kind = table_type(found.document)
    assert document_type_of(kind, found.document).equals(found.document, check_metadata=True)
    return spark_type(kind)


def test_the_documented_contract(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    assert contract(tmp_path, text) == (
        "STRUCT<`name`: STRING, `geo`: STRUCT<`lat`: DOUBLE>, `vacancy`: BOOLEAN, "
        "`reviews`: ARRAY<STRUCT<`rating`: INT>>, `public_likes`: ARRAY<STRING>, "
        "`prices`: MAP<STRING, DECIMAL(12,2)>, `check-in.at`: TIMESTAMP, `first_name`: STRING>"
    )


MILLIS = "STRUCT<`at`: TIMESTAMP, `on`: ARRAY<STRING>>"
SWAPPED = "STRUCT<`b`: INT, `a`: DATE>"
NESTED = "STRUCT<`in`: STRUCT<`e`: ARRAY<INT>>>"
LISTED = "STRUCT<`in`: ARRAY<STRUCT<`cas`: INT>>>"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ('"$.a[*][*]" = "bigint"', "STRUCT<`a`: ARRAY<ARRAY<BIGINT>>>"),
        ('"$.a.*.b" = "date"', "STRUCT<`a`: MAP<STRING, STRUCT<`b`: DATE>>>"),
        ('"$.a.x" = "int"\n"$.a.y" = "int"', "STRUCT<`a`: STRUCT<`x`: INT, `y`: INT>>"),
        ('"$[\'a.b`c\']" = "decimal(38, 0)"', "STRUCT<`a.b``c`: DECIMAL(38,0)>"),
        ('"$.at" = "timestamp_ms"\n"$.on[*]" = "partial_date"', MILLIS),
        ('"$.a" = { type = "int" }', "STRUCT<`a`: INT>"),
        ('"$.first name" = { as = "first_name", type = "string" }', "STRUCT<`first_name`: STRING>"),
        ('"$[\'\']" = { as = "none", type = "int" }', "STRUCT<`none`: INT>"),
        (r""""$['it\\'s \\\\']" = { as = "its", type = "int" }""", "STRUCT<`its`: INT>"),
        (r'''"$['it\\'s']" = "int"''', "STRUCT<`it's`: INT>"),
        ('"$.a" = "int"\n"$.A" = { as = "a_2", type = "int" }', "STRUCT<`a`: INT, `a_2`: INT>"),
        ('"$.a" = { as = "b", type = "int" }\n"$.b" = { as = "a", type = "date" }', SWAPPED),
        ('"$.a b" = { as = "in" }\n"$.a b.c d[*]" = { as = "e", type = "int" }', NESTED),
        ('"$.a b[*]" = { as = "in" }\n"$.a b[*].key" = { as = "cas", type = "int" }', LISTED),
    ],
)
def test_paths_become_types(tmp_path: Path, columns: str, expected: str) -> None:
    assert contract(tmp_path, f"{HEAD}[columns]\n{columns}") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "found no valid TOML"),
        (f'{HEAD}colums = 1\n[columns]\n"$.a" = "int"', "found 'colums' (did you mean 'columns'?)"),
        ('collection = "a"\nmode = "freeze"', "collection: found 'a', expected scope.collection"),
        ('collection = "a.b"\nmode = "frost"', "mode: found 'frost', expected one of evolve, fre"),
        (HEAD, "columns: found none, expected a table of JSON paths"),
        (f"{HEAD}columns = 1", "columns: found 1, expected a table"),
        (f'{HEAD}[columns]\n"a" = "int"', "columns: found 'a', expected a JSON path"),
        (f'{HEAD}[columns]\n"$" = "int"', "columns: found '$', expected a JSON path"),
        (f'{HEAD}[columns]\n"$[*]" = "int"', "expected a JSON path to a field"),
        (f'{HEAD}[columns]\n"$.a[0]" = "int"', "expected a JSON path to a field"),
        (f'{HEAD}[columns]\n"$.a{"[*]" * 50}" = "int"', "of 51 steps, expected no more than 50"),
        (f'{HEAD}[columns]\n"$.a b" = "int"', "expected a name for the column of 'a b', as in"),
        (f'{HEAD}[columns]\n"$.a b.c" = "int"', "the name has ' ', which no column's name has"),
        (f'{HEAD}[columns]\n"$.a" = {{ as = "x" }}', "found the name 'x' alone, expected a type"),
        (
            f'{HEAD}[columns]\n"$.a" = {{ as = 1, type = "int" }}',
            "$.a: as: found 1, expected a text",
        ),
        (f'{HEAD}[columns]\n"$.a" = {{}}', "$.a: found {}, expected the column's name, as in"),
        (f'{HEAD}[columns]\n"$.a" = {{ as = "x y", type = "int" }}', "found the alias 'x y', exp"),
        (f'{HEAD}[columns]\n"$.a" = {{ as = "", type = "int" }}', "the name is empty"),
        (f'{HEAD}[columns]\n"$.a" = {{ a = "x", type = "int" }}', "found 'a' (did you mean 'as'?)"),
        (f'{HEAD}[columns]\n"$.a" = {{ as = "x", type = "it" }}', "$.a: found 'it', expected one"),
        (
            f'{HEAD}[columns]\n"$.a" = {{ view = "x", type = "int" }}',
            "found a view, expected it for",
        ),
        (
            f'{HEAD}[columns]\n"$.a.*[*]" = {{ view = "x", type = "int" }}',
            "in no object whose name",
        ),
        (
            f'{HEAD}[columns]\n"$.a[*]" = {{ view = "Live", type = "int" }}',
            "found the view 'Live', e",
        ),
        (
            f'{HEAD}[columns]\n"$.a[*]" = {{ view = "x__s", type = "int" }}',
            "found the view 'x__s', expected a name of its own",
        ),
        (
            f'{HEAD}[columns]\n"$.a[*]" = {{ view = "_x", type = "int" }}',
            "found the view '_x', expe",
        ),
        (
            f'{HEAD}[columns]\n"$.a[*]" = {{ view = "x" }}',
            "found the name 'x' alone, expected a type",
        ),
        (
            f'{HEAD}[columns]\n"$.a[*]" = {{ view = "x", type = "int" }}\n'
            '"$.b[*]" = { view = "X", type = "int" }',
            "$.b[*]: found the view 'X', expected a name of its own",
        ),
        (
            f'{HEAD}[columns]\n"$.a" = {{ as = "x", type = "int" }}\n"$.X" = "int"',
            "found one column for the fields 'a' and 'X', expected names that differ",
        ),
        (
            f'{HEAD}[columns]\n"$.a" = {{ as = "x" }}\n"$.a[*]" = {{ as = "y", type = "int" }}',
            "$.a[*]: found the aliases 'x' and 'y', expected one name for the column of a field",
        ),
        (f'{HEAD}[columns]\n"$.a" = "long"', r"$.a: found 'long', expected one of boolean, int"),
        (f'{HEAD}[columns]\n"$.a" = 1', "$.a: found 1, expected one of"),
        (f'{HEAD}[columns]\n"$.a" = "decimal(39,0)"', "found 'decimal(39,0)', expected one of"),
        (f'{HEAD}[columns]\n"$.a" = "decimal(2,3)"', "found 'decimal(2,3)', expected one of"),
        (f'{HEAD}[columns]\n"$.a" = "int"\n"$.A" = "int"', "fields 'a' and 'A', expected names"),
        (
            f'{HEAD}[columns]\n"$.a" = "int"\n"$.a.b" = "int"',
            "found $.a and $.a.b, expected paths that agree what is there: a value or an object",
        ),
        (
            f'{HEAD}[columns]\n"$.a[*]" = "int"\n"$.a.*" = "int"',
            "found $.a[*] and $.a.*, expected paths that agree what is there: a map or an array",
        ),
    ],
)
def test_what_is_no_contract_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        contract(tmp_path, text)
    assert str(tmp_path / "a.toml") in str(caught.value)
    assert message in str(caught.value)


def test_another_alias_or_form_is_another_contract(tmp_path: Path) -> None:
    """Of one that has neither the fingerprint is in tables."""

    def fingerprint(columns: str) -> str:
        (tmp_path / "a.toml").write_text(f"{HEAD}[columns]\n{columns}")
        return fingerprint_of(load_contracts(str(tmp_path))["a.b"])

    assert fingerprint('"$.a[*].b" = "timestamp"') == "contract dd8c7e41204db6c9"
    told = [
        '"$.a[*].b" = "timestamp"',
        '"$.a[*].b" = "timestamp_ms"',
        '"$.a[*].b" = "string"',
        '"$.a[*].b" = "partial_date"',
        '"$.a[*].b" = { as = "c", type = "string" }',
        '"$.a[*].c" = { as = "b", type = "string" }',
        '"$.a[*].b" = "string"\n"$.a[*]" = { as = "c" }',
    ]
    assert len(set(map(fingerprint, told))) == len(told)


def test_arrays_with_views_have_the_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'collection = "a.b"\nmode = "evolve"\n[columns]\n'
        '"$.a b" = { as = "in" }\n"$.a b.x[*]" = { view = "xs" }\n"$.a b.x[*].n" = "int"\n'
        '"$.a b.y[*][*]" = { as = "cd", view = "ys", type = "string" }\n'
        '"$.new[*]" = { view = "new" }\n'
    )
    [found] = load_contracts(str(tmp_path)).values()
    assert found.arrays == {"xs": "$.in.x[*]", "ys": "$.in.cd[*][*]", "new": "$.new[*]"}
    properties = {"other": "1", "dcplake.array.old": "$.x[*]", "dcplake.array.xs": "$.x[*]"}
    changed = changed_arrays(properties, found)
    assert changed == {
        "dcplake.array.old": None,
        "dcplake.array.xs": "$.in.x[*]",
        "dcplake.array.ys": "$.in.cd[*][*]",
        "dcplake.array.new": "$.new[*]",
    }
    told = {**properties, **{key: path for key, path in changed.items() if path is not None}}
    told.pop("dcplake.array.old")
    assert not changed_arrays(told, found)
    assert list(arrays_of(told)) == ["new", "xs", "ys"]


def test_folders(tmp_path: Path) -> None:
    assert load_contracts(str(tmp_path)) == {}
    (tmp_path / "a.toml").write_text('collection = "a.b"\nmode = "evolve"\n')
    [found] = load_contracts(str(tmp_path)).values()
    assert (found.mode, found.document.num_fields) == (ContractMode.EVOLVE, 0)
    (tmp_path / "b.toml").write_text('collection = "a.b"\nmode = "evolve"\n')
    with pytest.raises(ConfigError, match=r"b.toml: found a contract for a.b, .*a.toml is another"):
        load_contracts(str(tmp_path))
    with pytest.raises(ConfigError, match="found no folder '/none'"):
        load_contracts("/none")

"""Contracts: their files, what is refused, and the types that they make."""

import re
from pathlib import Path

import pytest

from dcp.errors import ConfigError
from dcp.lake.config.contracts import ContractMode, load_contracts
from dcp.lake.tables.schema import spark_type

HEAD = 'collection = "a.b"\nmode = "freeze"\n'
DOCUMENTED = Path(__file__).parents[3] / "docs" / "typed-columns.md"


def contract(folder: Path, text: str) -> str:
    (folder / "a.toml").write_text(text)
    [found] = load_contracts(str(folder)).values()
    return spark_type(found.document)


def test_the_documented_contract(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    assert contract(tmp_path, text) == (
        "STRUCT<`name`: STRING, `geo`: STRUCT<`lat`: DOUBLE>, `vacancy`: BOOLEAN, "
        "`reviews`: ARRAY<STRUCT<`rating`: INT>>, `public_likes`: ARRAY<STRING>, "
        "`prices`: MAP<STRING, DECIMAL(12,2)>, `check-in.at`: TIMESTAMP>"
    )


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ('"$.a[*][*]" = "bigint"', "STRUCT<`a`: ARRAY<ARRAY<BIGINT>>>"),
        ('"$.a.*.b" = "date"', "STRUCT<`a`: MAP<STRING, STRUCT<`b`: DATE>>>"),
        ('"$.a.x" = "int"\n"$.a.y" = "int"', "STRUCT<`a`: STRUCT<`x`: INT, `y`: INT>>"),
        ('"$[\'a.b`c\']" = "decimal(38, 0)"', "STRUCT<`a.b``c`: DECIMAL(38,0)>"),
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
        (f'{HEAD}[columns]\n"$[\'a b\']" = "int"', "expected names without any of the characters"),
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

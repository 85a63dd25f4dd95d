"""The example of docs/howto/typed-columns.md: documents, contract, and what commands print."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from dcp.cli.main import main
from dcp.cli.terminal.table import table
from dcp.lake.adapters.opening import opened_lake
from dcp.lake.config.contracts import DEFAULT_COLLECTION, load_contracts, steps_of
from dcp.lake.query.answers import answer, head
from dcp.lake.query.infer import infer_contract
from dcp.lake.query.plain_names import show_for_queries
from dcp.lake.query.views_sql import documents_typed_sql, elements_sql
from dcp.lake.run.replicate import run
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.schema import REPLICA, U64, spark_type
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DOCS: Final = Path(__file__).parents[3] / "docs" / "howto"
PAGE: Final = (DOCS / "typed-columns.md").read_text(encoding="utf-8")
EXAMPLE: Final = PAGE.partition("\n## An example\n")[2].partition("\n## ")[0]
BLOCKS: Final = re.findall(r"```\w*\n(.*?)```", EXAMPLE, re.DOTALL)
COOKBOOK: Final = (DOCS / "cookbook.md").read_text(encoding="utf-8")
RECIPE: Final = COOKBOOK.partition("\n## The elements of an array\n")[2].partition("\n## ")[0]
COMMANDS: Final = dict(each.split("\n\n", 1) for each in BLOCKS if each.startswith("dcplake "))

ORDERS: Final = {
    b"order_1": {
        "customer": "ada",
        "lines": [{"sku": "A-1", "amount": 2}, {"sku": "B-7", "amount": 1}],
    },
    b"order_2": {"customer": "bob", "lines": [{"sku": "A-1", "amount": 3}, None]},
    b"order_3": {"customer": "cyd", "lines": []},
}


@pytest.fixture(scope="module")
def lake(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeTables]:
    folder = tmp_path_factory.mktemp("example")
    documents, contract, *_ = BLOCKS
    contracts = folder / "schemas"
    contracts.mkdir()
    (contracts / "people.toml").write_text(contract)
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=4, seed=3)) as cluster:
        settings = settings_for(
            cluster,
            folder,
            round={"quiet_seconds": 0.2},
            apply={"contracts_folder": str(contracts)},
        )
        (contracts / "orders.toml").write_text(re.findall(r"```toml\n(.*?)```", RECIPE, re.S)[0])
        cluster.create_scope("shop")
        cluster.create_collection("shop", "orders")
        for key, order in ORDERS.items():
            cluster.set(key, json.dumps(order).encode(), collection="shop.orders")
        for line in documents.splitlines():
            cluster.set(json.loads(line)["id"].encode(), line.encode())
        run(settings, once=True, spark=spark)
    with opened_lake(settings, spark) as tables:
        yield show_for_queries(tables)
    spark.sql("USE spark_catalog.default")


def test_there_are_commands() -> None:
    assert len(COMMANDS) == EXAMPLE.count("\ndcplake ") > 0


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_printed(command: str, lake: LakeTables) -> None:
    _, name, *words = shlex.split(command)
    if name == "schema":
        assert words[0] == "infer"
        printed = str(infer_contract(lake, DEFAULT_COLLECTION, 100))
    else:
        assert name == "sql"
        found = answer(lake.spark, words[-1])
        printed = table(found.columns, [tuple(row) for row in head(found, 100)])
    assert [line.rstrip() for line in printed.splitlines()] == COMMANDS[command].splitlines()


def test_the_elements_of_an_array_are_rows(lake: LakeTables) -> None:
    [recipe] = re.findall(r"```sql\n(.*?)```", RECIPE, re.DOTALL)
    assert [tuple(row) for row in lake.spark.sql(recipe).collect()] == [
        (None, None, 1, 0),
        ("A-1", 5, 2, 2),
        ("B-7", 1, 1, 0),
    ]


def test_views_begin_with_the_key_and_its_document(lake: LakeTables) -> None:
    begins = {
        "documents": ["key", "document", "document_null_reason", "value", "modified_at", "xattrs"],
        "documents_variant": ["key", "document", "document_null_reason", "value"],
        "documents_typed": ["key", "first_name", "born", "seen", "since", "lines", "violations"],
        "docs_lines": ["key", "position", "sku", "unit_price", "modified_at", "vbucket", "seqno"],
        "docs_live": ["key", "value", "modified_at", "xattrs"],
        "pending_changes": ["key", "value", "kind", "state", "table"],
        "row_history": ["key", "value", "kind", "is_live"],
        "rollbacks": ["key", "before", "after", "table"],
        "quarantine": ["key", "path", "found", "expected", "table", "vbucket", "seqno"],
    }
    end = ["vbucket", "seqno", "vb_uuid", "epoch"]
    for name, begin in begins.items():
        columns = lake.spark.table(name).columns
        assert columns[: len(begin)] == begin
        assert columns[-len(end) :] == end or name in ("docs_lines", "rollbacks", "quarantine")
        assert {*REPLICA.names} <= {*columns} or not name.startswith(("documents", "docs_live"))


def test_fields_with_the_names_of_other_columns_have_others_in_the_view(
    lake: LakeTables,
) -> None:
    fields = [("key", pa.int32()), ("doc_key", pa.int32()), ("Value", pa.int32()), ("a`b", U64)]
    table = (
        "(SELECT *, named_struct('key', 1, 'doc_key', 2, 'Value', 3, 'a`b', 4) AS doc "
        "FROM (SELECT * EXCEPT (doc) FROM docs))"
    )
    found = lake.spark.sql(documents_typed_sql(table, pa.struct(fields)))
    assert found.columns[:5] == ["key", "doc_doc_key", "doc_key", "doc_Value", "a`b"]
    assert [tuple(row)[1:5] for row in found.collect()] == [(1, 2, 3, 4)] * 3


@pytest.mark.parametrize(
    ("path", "columns", "rows"),
    [
        ("$.a[*]", ["key", "position", "doc_key", "list"], [(0, 1, [5, 6]), (1, 2, [])]),
        ("$.a[*].list[*]", ["key", "a_position", "position", "element"], [(0, 0, 5), (0, 1, 6)]),
        (
            "$.o.m[*][*]",
            ["key", "m_position", "position", "doc_position"],
            [(0, 0, "x"), (0, 1, "y"), (2, 0, "z")],
        ),
        ("$.o.n[*]", None, None),
        ("$.a[*].list[*][*]", None, None),
    ],
)
def test_elements_of_arrays_in_arrays(
    lake: LakeTables, path: str, columns: list[str] | None, rows: list[tuple[object, ...]] | None
) -> None:
    in_a = pa.struct([("key", pa.int32()), ("list", pa.list_(pa.int32()))])
    in_m = pa.list_(pa.struct([("position", pa.string())]))
    kind = pa.struct([("a", pa.list_(in_a)), ("o", pa.struct([("m", pa.list_(in_m))]))])
    value = (
        '{"a": [{"key": 1, "list": [5, 6]}, {"key": 2, "list": []}], '
        '"o": {"m": [[{"position": "x"}, {"position": "y"}], null, [{"position": "z"}]]}}'
    )
    table = (
        f"(SELECT key, vbucket, seqno, modified_at, from_json('{value}', '{spark_type(kind)}') "
        "AS doc FROM docs WHERE key = 'ada')"
    )
    sql = elements_sql(table, kind, steps_of(path, "a test"))
    if columns is None:
        assert sql is None
        return
    found = lake.spark.sql(str(sql))
    assert found.columns == [*columns, "modified_at", "vbucket", "seqno"]
    assert sorted(tuple(row)[1:-3] for row in found.collect()) == rows


def test_the_proposed_contract_is_written_once(
    lake: LakeTables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "schemas"
    options = ["--lake", str(lake.location), "--set", f"apply.contracts_folder={folder}"]
    assert main(["schema", "infer", *options, "--out"]) == 0
    file = folder / f"{DEFAULT_COLLECTION}.toml"
    assert capsys.readouterr().out.startswith(f"{file}: written; with the next apply all rows of ")
    assert load_contracts(str(folder)).keys() == {DEFAULT_COLLECTION}
    assert main(["schema", "infer", *options, "--out"]) == 2
    assert f"found a contract for {DEFAULT_COLLECTION}, expected none" in capsys.readouterr().err
    assert main(["schema", "infer", *options]) == 0
    printed = capsys.readouterr().out
    assert tomllib.loads(printed) == tomllib.loads(file.read_text(encoding="utf-8"))

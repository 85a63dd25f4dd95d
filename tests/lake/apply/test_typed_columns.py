"""Typed columns of real documents: what fits, what is told, and what a changed contract does.

That they are exact in every version over rollbacks is tested in ``test_apply_rollback.py``.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from dcp.errors import ConfigError, FencedError, StoppedError
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_plan import RowBudget
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.apply.typed_plan import ContractBook
from dcp.lake.change_log.changes import latest_round
from dcp.lake.config.contracts import DEFAULT_COLLECTION, MOST_LEVELS
from dcp.lake.config.settings import ApplySettings, ApplyWhen, Settings
from dcp.lake.query.infer import propose_contract
from dcp.lake.query.views import register_views
from dcp.lake.run.preview import preview
from dcp.lake.run.replicate import run
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import DOCS, LakeTables, replicas_in
from dcp.lake.tables.typed_columns import DOC
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.apply.known_documents import KNOWN
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import asked, source_rows, table_rows
from tests.lake.versions import version_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HOTEL = {
    "name": "Grand",
    "stars": 3,
    "vacancy": True,
    "geo": {"lat": 1.5, "alt": 7},
    "reviews": [{"rating": 1, "by": "x"}, {"rating": None}],
    "likes": ["u", "v"],
    "prices": {"eur": 1.5, "usd": 2},
    "built": "1999-12-31",
    "seen_at": "2026-01-31T10:00:00.25+01:00",
    "id": 2**63,
    "opened": "1999-05",
}
FIRST_SEEN = {"first seen": 1769853600250}
ANEW = "docs: the next apply writes all rows anew, with other typed columns"
CONTRACT = """
collection = "_default._default"
mode = "quarantine"
[columns]
"$.name" = "string"
"$.stars" = "int"
"$.vacancy" = "boolean"
"$.geo.lat" = "double"
"$.reviews[*].rating" = "int"
"$.likes[*]" = "string"
"$.prices.*" = "decimal(12,2)"
"$.built" = "date"
"$.seen_at" = "timestamp"
"$['id']" = "decimal(20,0)"
"$.opened" = "partial_date"
"$.first seen" = { as = "first_seen", type = "timestamp_ms" }
"""
BAD = {
    "name": {"first": 1},
    "stars": 4.5,
    "vacancy": "yes",
    "geo": "here",
    "reviews": [{"rating": 5}, {"rating": "good"}],
    "likes": "u",
    "prices": {"eur": "no"},
    "built": "yesterday",
    "seen_at": True,
    "id": "x",
    "opened": "1999-13",
    "first seen": "soon",
}
EMPTY_DOC = dict.fromkeys([*HOTEL, "first_seen"])
BAD_DOC = {
    **EMPTY_DOC,
    "name": '{"first":1}',  # a text holds whatever there is
    "reviews": [{"rating": 5}, {"rating": None}],
    "prices": {"eur": None},
}
TOLD = [
    ("$.stars", "4.5", "int"),
    ("$.vacancy", "yes", "boolean"),
    ("$.geo.lat", "here", "double"),
    ("$.reviews[*].rating", "good", "int"),
    ("$.likes[*]", "u", "string"),
    ("$.prices.*", "no", "decimal(12,2)"),
    ("$.built", "yesterday", "date"),
    ("$.seen_at", "true", "timestamp"),
    ("$.id", "x", "decimal(20,0)"),
    ("$.opened", "1999-13", "partial_date"),
    ("$['first seen']", "soon", "timestamp_ms"),
]


class Scene:
    """A bucket, its lake, and the contract of the default collection."""

    def __init__(self, spark: "SparkSession", cluster: ProducerCluster, folder: Path) -> None:
        self.spark, self.cluster = spark, cluster
        self.contract = folder / "schemas" / "default.toml"
        self.contract.parent.mkdir()
        apply = {"contracts_folder": str(self.contract.parent)}
        self.settings: Settings = settings_for(
            cluster, folder, round={"quiet_seconds": 0.2}, apply=apply
        )

    def put(self, **documents: Any) -> None:
        for key, content in documents.items():
            value = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.cluster.set(key.encode(), value)

    def run(self) -> AppliedVersion | None:
        applied = run(self.settings, once=True, spark=self.spark).applied
        return applied[-1] if applied else None

    def run_of_many(self) -> AppliedVersion | None:
        """Run as if the documents were more than the driver holds: tasks read them."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("dcp.lake.apply.applier.ROW_BUDGET", RowBudget(rows=0))
            return self.run()

    @property
    def lake(self) -> LakeTables:
        return lake_of(self.settings, self.spark)

    def rows(self) -> dict[str, tuple[Any, Any]]:
        """Each document's typed columns and violations, as another engine finds them."""
        found = version_in(self.lake, DOCS.name).select(["key", "doc", "violations"])
        return {
            row["key"]: (
                _naive(row["doc"]),
                row["violations"] and [tuple(each.values()) for each in row["violations"]],
            )
            for row in found.to_pylist(maps_as_pydicts="strict")
        }

    def rows_of_quarantine(self) -> dict[str, tuple[Any, Any]]:
        """The same, of which Spark's view `quarantine` must tell all violations."""
        rows = self.rows()
        told = asked(self.lake, "SELECT key, path, found, expected FROM quarantine").to_pylist()
        listed = [(key, *each) for key, (_, told) in rows.items() for each in told or ()]
        assert sorted(tuple(row.values()) for row in told) == sorted(listed)
        return rows


@pytest.fixture
def scene(spark: "SparkSession", tmp_path: Path) -> Iterator[Scene]:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=4, seed=11)) as cluster:
        yield Scene(spark, cluster, tmp_path)


def test_what_does_not_fit_is_told_and_fits_when_the_contract_is_mended(
    scene: Scene,
) -> None:
    scene.contract.write_text(CONTRACT)
    hotel = HOTEL | FIRST_SEEN
    scene.put(good=hotel, bad=BAD, empty={}, text=b"no JSON", items=[1], cut=b'{"stars": 1')
    scene.run_of_many()  # the tasks write the files
    rows = scene.rows()
    assert rows["good"] == (
        {
            **HOTEL,
            "geo": {"lat": 1.5},
            "reviews": [{"rating": 1}, {"rating": None}],
            "prices": {"eur": Decimal("1.50"), "usd": Decimal("2.00")},
            "built": datetime(1999, 12, 31, tzinfo=UTC).date(),
            "seen_at": datetime(2026, 1, 31, 9, 0, 0, 250_000, tzinfo=UTC).replace(tzinfo=None),
            "id": Decimal(2**63),
            "first_seen": _naive(datetime(2026, 1, 31, 10, 0, 0, 250_000, tzinfo=UTC)),
        },
        None,
    )
    assert rows["bad"] == (BAD_DOC, TOLD)
    assert rows["empty"] == (EMPTY_DOC, None)
    no_json = {"text": "7 bytes that are no JSON", "cut": "11 bytes that are no JSON"}
    for key, found in {**no_json, "items": "[1]"}.items():
        assert rows[key] == (None, [("$", found, "a JSON object")])

    # A document that is corrected fits; what tasks read for a MERGE is typed as well.
    scene.put(bad=hotel, more=BAD)
    made = scene.run_of_many()
    assert made is not None and (made.inserted, made.updated) == (1, 1)
    rows = scene.rows()
    assert (rows["bad"], rows["more"]) == (rows["good"], (BAD_DOC, TOLD))

    # The contract is mended: all rows are written anew, in one commit, fenced like any apply.
    mended = CONTRACT.replace('stars" = "int', 'stars" = "double')
    scene.contract.write_text(mended.replace('"quarantine"', '"freeze"'))
    lake, number = scene.lake, latest_round(scene.lake)
    contract = ContractBook(str(scene.contract.parent)).contract_of(lake, DOCS)
    stale = plan_merge(lake, DOCS, number, contract=contract)
    assert stale is not None and ANEW in str(preview(scene.settings))
    before = table_rows(scene.lake, None)
    made = scene.run()
    assert made is not None and (made.from_round, made.to_round) == (number, number)
    assert str(made).endswith("all 7 rows written anew, with other typed columns")
    with pytest.raises(FencedError, match="another driver applied to docs"):
        run_apply(lake, stale, "paused")
    assert table_rows(scene.lake, None) == before
    strange = [("$.geo.alt", "7", "no such field"), ("$.reviews[*].by", "x", "no such field")]
    rows = scene.rows_of_quarantine()
    assert rows["good"][1] == strange
    stars = {**BAD_DOC, "stars": 4.5}
    assert rows["more"] == (stars, [each for each in TOLD if each[0] != "$.stars"])
    assert scene.run() is None and ANEW not in str(preview(scene.settings)), "nothing is left to do"
    [detail] = scene.spark.sql(f"DESCRIBE DETAIL {lake.table_sql('docs')}").collect()
    told_id = detail.properties["dcplake.collectionId"]
    assert (detail.clusteringColumns, told_id) == (["vbucket", "key"], "0")

    # Nothing is told, and nothing is left of the columns when the contract is taken away.
    scene.contract.write_text(mended.replace('"quarantine"', '"ignore"'))
    scene.put(last=BAD)
    scene.run()
    assert scene.rows()["last"] == (stars, None)
    unnamed = replace(scene.settings, apply=ApplySettings())
    with pytest.raises(ConfigError, match="no folder, but the table docs has typed columns"):
        run(unnamed, once=True, spark=scene.spark)
    scene.contract.unlink()
    scene.run()
    assert "doc" not in scene.lake.table("docs").columns().names
    assert table_rows(scene.lake, None) == source_rows(scene.cluster)


def test_contracts_go_by_the_names_of_collections_in_a_catalog_too(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """The tables of both collections have the same name, but for the id."""
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=4, seed=11)) as cluster:
        scene = Scene(spark, cluster, tmp_path)
        place = replace(scene.settings.lake, schema="spark_catalog.typed_columns")
        scene.settings = replace(scene.settings, lake=place)
        cluster.create_scope("s")
        for name in ("a-b", "a_b"):
            collection = cluster.create_collection("s", name)
            cluster.set(b"k", b'{"n": 1, "l": [5, 6]}', collection=collection)
        text = 'collection = "s.a_b"\nmode = "quarantine"\n[columns]\n"$.n" = "int"\n'
        text += '"$.l[*]" = { view = "numbers", type = "bigint" }\n'
        scene.contract.write_text(text)
        run(scene.settings, once=True, spark=spark)
        scene.contract.write_text(text.replace('"int"', '"string"'))
        run(scene.settings, once=True, spark=spark)
        lake = scene.lake
        tables = {each.name: lake.table(each.name) for each in replicas_in(lake)}
        typed = ["doc" in each.columns().names for each in tables.values()]
        assert typed == [False, False, True]
        assert tables["docs__s__a_b__9"].rows("doc", "true") == [{"doc": {"n": "1", "l": [5, 6]}}]
        register_views(lake, replicas_in(lake))
        schema = "spark_catalog.typed_columns"
        views = {row.viewName for row in spark.sql(f"SHOW VIEWS IN {schema}").collect()}
        assert {"docs_numbers__s__a_b__9", "documents_typed__s__a_b__9"} <= views
        elements = spark.newSession().table(f"{schema}.docs_numbers__s__a_b__9")
        found = [(row.key, row.position, row.element) for row in elements.collect()]
        assert found == [("k", 0, 5), ("k", 1, 6)]
        with pytest.raises(ConfigError, match="no folder, but the table docs__s__a_b__9 has typed"):
            preview(replace(scene.settings, apply=ApplySettings()), spark)


def test_columns_evolve_in_the_commit_that_brings_the_documents(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.contract.write_text('collection = "_default._default"\nmode = "evolve"\n')
    scene.put(none={"a b": 1}, text=b"x")
    scene.run()
    said = [each for each in caplog.messages if "there are no typed columns yet" in each]
    assert len(said) == 1 and "found no field in the documents of '_default._default'" in said[0]
    assert scene.run() is None, "there is nothing to make columns of"
    assert ANEW not in str(preview(scene.settings))
    scene.cluster.delete(b"none")
    scene.cluster.delete(b"text")
    scene.put(one={"n": 1, "o": {"a": "x"}, "none": None, "list": [{"b": True}], "empty": []})
    scene.run()
    assert scene.rows() == {"one": ({"n": 1, "o": {"a": "x"}, "list": [{"b": True}]}, None)}

    # New columns: the MERGE adds them.
    content = {"none": [1, "x"], "o": {"c": 2}, "N": 5, "a b": 6, "list": [{"d": 0.5}]}
    scene.put(two=content | {"big": 2**64})
    scene.run_of_many()
    new = {"o": {"a": None, "c": 2}, "list": [{"b": None, "d": 0.5}], "none": ["1", "x"]}
    new_number = {"big": Decimal(2**64)}
    told = [("$.N", "5", "no such field"), ("$['a b']", "6", "no such field")]
    one = {"n": 1, "o": {"a": "x", "c": None}, "list": [{"b": True, "d": None}]}
    one |= {"none": None, "big": None}
    assert scene.rows() == {"one": (one, None), "two": ({"n": None, **new, **new_number}, told)}

    # Numbers widen, and the rows that are there with them, in one commit; none is rounded.
    widening = {"n": 1.5, "o": {"c": 2**64}, "big": 0.25, "huge": 2**64}
    scene.put(three=widening, four={"n": "text"})
    scene.run()
    rows = scene.rows()
    assert rows["one"][0] == {**one, "n": 1.0, "o": {"a": "x", "c": None}, "huge": None}
    assert rows["two"][1] == told, "of documents that did not change it is told as before"
    assert rows["four"][1] == [("$.n", "text", "double")]
    assert rows["three"][0]["n"] == 1.5
    assert rows["three"][0]["o"]["c"] == rows["three"][0]["huge"] == Decimal(2**64)
    assert (rows["two"][0]["big"], rows["three"][0]["big"]) == (Decimal(2**64), Decimal("0.25"))
    operations = [each.operation for each in history(scene.lake.table("docs"))]
    assert operations[:2] == ["CREATE OR REPLACE TABLE AS SELECT", "MERGE"]
    assert table_rows(scene.lake, None) == source_rows(scene.cluster)


def test_the_first_rows_bring_fields_that_came_after_a_driver_died(scene: Scene) -> None:
    """It had added the columns of its documents, and had not committed the rows."""
    scene.contract.write_text('collection = "_default._default"\nmode = "evolve"\n')
    scene.put(one={"n": 1})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dcp.lake.apply.commit.first_rows", Mock(side_effect=StoppedError("dead")))
        with pytest.raises(StoppedError, match="dead"):
            scene.run_of_many()
    assert history(scene.lake.table("docs"))[0].operation == "ADD COLUMNS"
    scene.put(two={"n": 2, "m": "new"})
    scene.run_of_many()
    one, two = {"n": 1, "m": None}, {"n": 2, "m": "new"}
    assert scene.rows() == {"one": (one, None), "two": (two, None)}


def test_columns_that_another_driver_added_first_fence_a_plan(scene: Scene) -> None:
    """Its files would have a field that the table's columns hide."""
    scene.contract.write_text('collection = "_default._default"\nmode = "evolve"\n')
    book = ContractBook(str(scene.contract.parent))
    scene.put(one={"n": 1, "m": "x"})
    applying = scene.settings
    scene.settings = replace(applying, apply=replace(applying.apply, when=ApplyWhen.NEVER))
    scene.run()
    lake = scene.lake
    plan = plan_merge(lake, DOCS, latest_round(lake), contract=book.contract_of(lake, DOCS))
    assert plan is not None and plan.typed.columns is not None
    other = replace(plan.typed.columns, document=pa.struct([("n", pa.int32())]))
    lake.table("docs").add_columns(other.schema, {DOC: other.fingerprint})
    with pytest.raises(FencedError, match=r"found doc of STRUCT<.* from another driver"):
        run_apply(lake, plan, "w")
    scene.settings = replace(
        scene.settings, apply=replace(scene.settings.apply, when=ApplyWhen.EVERY_ROUND)
    )
    scene.run()
    assert scene.rows() == {"one": ({"n": 1, "m": "x"}, None)}


def test_a_table_with_two_columns_that_spark_takes_for_one_gets_one_of_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.contract.write_text('collection = "_default._default"\nmode = "evolve"\n')
    scene.put(m1={"\u00b5g": 1}, m2={"\u03bcg": 2}, m3={"\u00b5g": 3, "\u03bcg": 4})
    with monkeypatch.context() as patched:
        for module in ("apply.seen_values", "apply.column_growth", "tables.typed_columns"):
            patched.setattr(f"dcp.lake.{module}.same_name_key", str)
        scene.run()
    document = scene.lake.table("docs").columns().field("doc").type
    assert document.names == ["\u00b5g", "\u03bcg"]
    assert "documents_typed" not in register_views(scene.lake)
    assert ANEW in str(preview(scene.settings))
    scene.put(m4={"\u00b5g": 5})
    scene.run()
    rows = scene.rows()
    assert [rows[key][0] for key in ("m1", "m3", "m4")] == [{"\u00b5g": n} for n in (1, 3, 5)]
    assert rows["m2"] == ({"\u00b5g": None}, [("$.\u03bcg", "2", "no such field")])
    table = scene.lake.table_sql("docs")
    assert scene.spark.sql(f"SELECT sum(doc.`\u03bcg`) AS n FROM {table}").collect()[0].n == 9
    assert scene.run() is None


def test_known_documents_are_kept_byte_for_byte_and_read_by_their_columns(scene: Scene) -> None:
    """Each kind has a field of its own, so that one contract has the columns of all."""
    kinds = list(enumerate(KNOWN.values()))
    texts = {
        f"{number} {place}": f'{{"k{number}":{text}}}'
        for number, known in kinds
        for place, text in enumerate(known.texts)
    }
    encoded = [(key, text.encode()) for key, text in texts.items()]
    proposed = propose_contract(DEFAULT_COLLECTION, encoded)
    columns = {
        f"$.k{number}{path[1:]}": kind
        for number, known in kinds
        for path, kind in known.columns.items()
    }
    assert {each.path: each.kind for each in proposed.columns} == columns
    scene.contract.write_text(str(proposed))
    first, *later = texts
    scene.put(**{first: texts[first].encode()})
    scene.run()  # makes the table; a MERGE brings the others
    scene.put(**{key: texts[key].encode() for key in later})
    scene.run()
    rows = scene.rows()
    for number, known in kinds:
        for place, doc in enumerate(known.docs):
            found, told = rows[f"{number} {place}"]
            assert found == {f"k{each}": None for each, _ in kinds} | {f"k{number}": _naive(doc)}
            assert not told
    raw = version_in(scene.lake, DOCS.name).select(["key", "value"]).to_pylist()
    assert {row["key"]: row["value"].decode() for row in raw} == texts
    read = asked(scene.lake, "SELECT key, document FROM documents").to_pylist()
    assert {row["key"]: row["document"] for row in read} == texts
    names = [*KNOWN].index("names of any characters")
    fields = (
        "`a.b`",
        "a.b",
        "a.`c.d`.`e/f`",
        "`a``b`",
        "`/`",
        "`.`",
        "s.`*`",
        "`$ref`",
        "`a[0]`",
    )
    listed = ", ".join(f"doc.k{names}.{each}" for each in fields)
    [row] = scene.spark.sql(
        f"SELECT {listed} FROM {scene.lake.table_sql('docs')} WHERE doc.k{names}.`a.b` = 1"
    ).collect()
    assert tuple(row) == (1, 2, 3, 5, 7, 8, 1, "x", 9)
    unread = "SELECT key, document_null_reason FROM documents_variant WHERE document IS NULL"
    digits = [*KNOWN].index("numbers of 1,200 digits")
    [row] = asked(scene.lake, unread).to_pylist()
    assert tuple(row.values()) == (f"{digits} 0", "no JSON that Spark reads")


def _naive(value: Any) -> Any:
    """Return it with its times in UTC, without a zone."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, list):
        return [_naive(each) for each in value]
    if isinstance(value, dict):
        return {name: _naive(each) for name, each in value.items()}
    return value


def test_a_document_of_many_levels_stops_nothing(scene: Scene) -> None:
    scene.contract.write_text('collection = "_default._default"\nmode = "evolve"\n')
    deep = json.loads('{"a": ' * 300 + "1" + "}" * 300)
    scene.put(deep=deep, plain={"n": 1})
    scene.run()
    # delta-rs reads no such schema: Spark does.
    found = scene.lake.table("docs").rows("key, doc, violations", "true")
    rows = {row["key"]: (row["doc"], row["violations"]) for row in found}
    assert rows["plain"] == ({"a": None, "n": 1}, None)
    below, violations = rows["deep"]
    for _ in range(MOST_LEVELS - 1):
        below = below["a"]
    assert (json.loads(below["a"])["a"], violations) == (deep_below(deep, MOST_LEVELS + 1), None)


def deep_below(document: dict[str, Any], levels: int) -> Any:
    for _ in range(levels):
        document = document["a"]
    return document

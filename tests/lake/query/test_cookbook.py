"""The recipes of docs/howto/cookbook.md, each as it stands there, on a lake of a known story."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from deltalake import DeltaTable

from dcp.cli.main import main
from dcp.lake.adapters.opening import lake_location, opened_lake
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.changes import latest_round
from dcp.lake.config.settings import ApplySettings, ApplyWhen, Settings
from dcp.lake.query.plain_names import show_for_queries
from dcp.lake.run.replicate import run
from dcp.lake.tables.lake_tables import ReplicaTable
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.commits_by_hand import write_to_disk
from tests.lake.memory_store import MemoryStore
from tests.lake.receiving import lake_of, settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PAGE: Final = (Path(__file__).parents[3] / "docs/howto/cookbook.md").read_text(encoding="utf-8")
RECIPES: Final = dict(
    re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```sql\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
)
ORDERS: Final = ReplicaTable("docs__shop__orders__8", 8)
LOST_NODE: Final = 1
"""It has the vbuckets 2 and 3 of 4: bob, hal, ivy, cyd, order_1, order_2, order_5."""

Row = dict[str, Any]


@dataclass
class Story:
    """The bucket, a clock that moves by a day, and what was written when."""

    cluster: ProducerCluster
    clock: list[float]

    def __post_init__(self) -> None:
        self.cas: dict[str, list[int]] = {}
        self.branches: dict[str, list[str]] = {}
        self.rounds: list[int] = []

    def write(self, **documents: str) -> None:
        """Store documents, by their keys; orders have a collection of their own."""
        for key, value in documents.items():
            name = key.encode()
            collection = "shop.orders" if key.startswith("order") else 0
            made = self.cluster.set(name, value.encode(), collection=collection)
            log = self.cluster.failover_log(self.cluster.vbucket_of(name))
            self.cas.setdefault(key, []).append(made.cas)
            self.branches.setdefault(key, []).append(f"{log.entries[0].vb_uuid:016x}")

    def time(self, key: str, number: int) -> datetime:
        """When the version of a document with that number was stored."""
        micros = self.cas[key][number] // 1000
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)

    def run(self, settings: Settings) -> None:
        self.rounds.append(run(settings, once=True).rounds[-1].round)
        self.clock[0] += 86400


@dataclass
class Lake:
    """The lake, and the story behind it."""

    settings: Settings
    story: Story
    spark: "SparkSession"

    def rows(self, statement: str) -> list[Row]:
        found = self.spark.sql(statement).toArrow().to_pylist()
        return [dict(row) for row in found]


def customer(name: str, city: str) -> str:
    return json.dumps({"name": name, "city": city})


def order(customer_key: str, total: int) -> str:
    return json.dumps({"customer": customer_key, "total": total})


ADA, ADA_MOVED = customer("Ada", "Rome"), customer("Ada", "Paris")
BOB, BOB_LOST, BOB_KEPT = (customer("Bob", city) for city in ("Oslo", "Nowhere", "Bergen"))
CYD, GUS, HAL, IVY = (customer(name, "Wien") for name in ("Cyd", "Gus", "Hal", "Ivy"))


@pytest.fixture(scope="module")
def lake(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Five days of a shop; the third is lost with a node, after it was published.

    They pass in memory; then the lake is written to a folder.
    """
    folder = tmp_path_factory.mktemp("cookbook")
    clock = [datetime(2026, 1, 1, tzinfo=UTC).timestamp()]
    chosen = ClusterSettings(nodes=2, vbuckets=4, replicas=1, seed=3, clock=lambda: clock[0])
    with ProducerCluster(chosen) as cluster, pytest.MonkeyPatch.context() as patch:
        store = MemoryStore()
        patch.setattr("dcp.lake.adapters.opening.SparkStore", lambda *_: store)
        story = Story(cluster, clock)
        settings = settings_for(cluster, folder, round={"quiet_seconds": 0.2})
        cluster.create_scope("shop")
        cluster.create_collection("shop", "orders")
        story.write(ada=ADA, bob=BOB, cyd=CYD, order_1=order("ada", 10), order_4=order("cyd", 40))
        story.run(settings)

        cluster.flush_collection("shop", "orders")
        cluster.delete(b"cyd")
        story.write(ada=ADA_MOVED, gus=GUS)
        story.write(order_1=order("ada", 11), order_2=order("bob", 20), order_3=order("gus", 30))
        story.run(settings)

        cluster.wait_until_replicated()
        cluster.pause_replication()
        story.write(bob=BOB_LOST, hal=HAL, order_2=order("hal", 99))
        story.run(settings)

        cluster.failover(LOST_NODE)
        cluster.resume_replication()
        story.write(bob=BOB_KEPT)
        story.run(settings)

        story.write(ivy=IVY, order_5=order("ivy", 50))
        story.run(replace(settings, apply=ApplySettings(when=ApplyWhen.NEVER)))
        tables = lake_of(settings)
        plan = plan_merge(tables, ORDERS, latest_round(tables))
        assert plan is not None
        run_apply(tables, plan, "w")  # an apply of docs has failed, say
    write_to_disk(store, lake_location(settings))
    with opened_lake(settings, spark) as tables:
        show_for_queries(tables)
    yield Lake(settings, story, spark)
    spark.sql("USE spark_catalog.default")


def test_every_recipe_is_tried() -> None:
    assert set(RECIPES) == {
        "The newest document",
        "The documents as of a version",
        "The history of a key, over all branches",
        "Changes between two versions",
        "Another table, fed with the changes",  # test_increments.py
        "Rows that a rollback took back",
        "A slowly changing dimension",
        "Collections joined at one cut",
        "The elements of an array",  # test_typed_example.py
        "Collections that are gone",  # these two: apply/test_collection_events.py
        "A collection that was dropped and created again",
    }
    assert PAGE.count("```sql") == len(RECIPES)


def test_the_newest_document_may_not_be_applied_yet(lake: Lake) -> None:
    [found] = lake.rows(RECIPES["The newest document"])
    assert (found["key"], found["document"]) == ("ivy", IVY)
    assert found["modified_at"] == lake.story.time("ivy", 0)
    assert lake.rows("SELECT key FROM docs WHERE key = 'ivy'") == []


def test_the_documents_as_of_a_version(lake: Lake) -> None:
    found = lake.rows(RECIPES["The documents as of a version"])
    expected = {"ada": ADA_MOVED, "bob": BOB, "gus": GUS}
    assert [(row["key"], row["document"]) for row in found] == sorted(expected.items())


def test_the_history_of_a_key_tells_what_was_lost(lake: Lake) -> None:
    found = lake.rows(RECIPES["The history of a key, over all branches"])
    assert [(row["document"], row["is_live"]) for row in found] == [
        (BOB, True),
        (BOB_LOST, False),
        (BOB_KEPT, True),
    ]
    assert [row["branch"] for row in found] == lake.story.branches["bob"]
    assert found[0]["branch"] != found[2]["branch"]
    first, _, lost, kept = (lake.story.rounds[number] for number in range(4))
    assert [row["round"] for row in found] == [first, lost, kept]
    died = [row["died_in_round"] for row in found]
    assert died[0] is None and died[2] is None and lost < died[1] <= kept


def test_what_changed_between_two_versions(lake: Lake) -> None:
    recipe = RECIPES["Changes between two versions"]
    inserted, updated, deleted = "inserted", "updated", "deleted"

    def changes(before: int, after: int) -> list[tuple[str, ...]]:
        asked = recipe.replace("OF 1)", f"OF {before})").replace("OF 2)", f"OF {after})")
        return [tuple(row.values()) for row in lake.rows(asked)]

    assert changes(1, 2) == [
        ("ada", updated, ADA, ADA_MOVED),
        ("cyd", deleted, CYD, None),
        ("gus", inserted, None, GUS),
    ]
    assert changes(3, 4) == [("bob", updated, BOB_LOST, BOB_KEPT), ("hal", deleted, HAL, None)]


def test_what_a_rollback_took_back(lake: Lake) -> None:
    found = [tuple(row.values()) for row in lake.rows(RECIPES["Rows that a rollback took back"])]
    assert found == [
        ("docs", 4, 2, "bob", BOB_LOST, BOB_KEPT),
        ("docs", 4, 2, "hal", HAL, None),
        (ORDERS.name, 4, 2, "order_2", order("hal", 99), order("bob", 20)),
    ]


def test_a_slowly_changing_dimension_stays_right_through_rollbacks(lake: Lake) -> None:
    recipe = RECIPES["A slowly changing dimension"]
    story = lake.story

    def expected(*versions: tuple[str, int, str, datetime | None]) -> list[tuple[object, ...]]:
        return [
            (key, document, story.time(key, number), until, story.branches[key][number])
            for key, number, document, until in versions
        ]

    [deleted] = lake.rows(
        "SELECT cas, delete_time FROM row_history WHERE key = 'cyd' AND kind = 'deletion'"
    )
    assert deleted["delete_time"] == int(deleted["cas"]) // 10**9
    until = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(deleted["cas"]) // 1000)
    assert [tuple(row.values()) for row in lake.rows(recipe)] == expected(
        ("ada", 0, ADA, story.time("ada", 1)),
        ("ada", 1, ADA_MOVED, None),
        ("bob", 0, BOB, story.time("bob", 2)),
        ("bob", 2, BOB_KEPT, None),
        ("cyd", 0, CYD, until),
        ("gus", 0, GUS, None),
        ("ivy", 0, IVY, None),
    )
    [flushed] = lake.rows(f"SELECT time FROM rounds WHERE round = {story.rounds[1]}")
    of_orders = recipe.replace("collection_id = 0", f"collection_id = {ORDERS.collection_id}")
    assert of_orders != recipe
    assert [tuple(row.values()) for row in lake.rows(of_orders)] == expected(
        ("order_1", 0, order("ada", 10), story.time("order_1", 1)),
        ("order_1", 1, order("ada", 11), None),
        ("order_2", 0, order("bob", 20), None),
        ("order_3", 0, order("gus", 30), None),
        ("order_4", 0, order("cyd", 40), flushed["time"]),
        ("order_5", 0, order("ivy", 50), None),
    )


def test_collections_are_joined_at_one_cut(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = RECIPES["Collections joined at one cut"]
    applied = lake.story.rounds[3]

    def join(*options: str) -> list[tuple[object, ...]]:
        assert main(["cut", "--lake", lake.settings.lake.root, *options]) == 0
        pasted = capsys.readouterr().out
        assert pasted.startswith(f"-- round {applied} (")
        for statement in filter(str.strip, pasted.split(";\n")):
            lake.spark.sql(statement)
        return [tuple(row.values()) for row in lake.rows(recipe)]

    sound = [("order_1", "11", "ada"), ("order_2", "20", "bob"), ("order_3", "30", "gus")]
    assert join() == sound
    newest = recipe.replace("cut_docs", "docs")
    assert [tuple(row.values()) for row in lake.rows(newest)] == [*sound, ("order_5", "50", None)]
    assert lake.rows("SELECT max(round) AS newest FROM cut_changes") == [{"newest": applied}]
    assert f"-- round {applied} (" in PAGE
    assert set(re.findall(r"`cut_(\w+)` AS .*/(\w+)` VERSION AS OF 4", PAGE)) == {
        (name, name) for name in ("docs", ORDERS.name)
    }


def test_a_session_gets_the_views_as_the_page_says(lake: Lake) -> None:
    [block] = re.findall(r"```\n(import dcplake.*?)```", PAGE, re.DOTALL)
    named = block.replace('dcplake.open("lake"', f'dcplake.open("{lake.settings.lake.root}"')
    assert named != block
    user = lake.spark.newSession()
    user.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    user.conf.set("spark.sql.ansi.enabled", "false")
    user.sql(
        f"SELECT * FROM delta.`{lake.settings.lake.root}/docs`"
    ).collect()  # Delta sets some of its own
    before = dict(user.conf.getAll), user.catalog.currentDatabase()
    exec(compile(named, "cookbook.md", "exec"), {"spark": user})  # noqa: S102 -- our own page
    assert (dict(user.conf.getAll), user.catalog.currentDatabase()) == before
    views = {"docs_live", "row_history", "rollbacks", "docs", "changes"}
    assert views <= {row.viewName for row in user.sql("SHOW VIEWS").collect()}
    counted = "SELECT count(*) AS found FROM {}"
    assert user.table("docs_live").columns == lake.spark.table("docs_live").columns
    for name in views - {"docs_live"}:  # what takes longest
        [found] = user.sql(counted.format(name)).collect()
        assert [{"found": found.found}] == lake.rows(counted.format(name)), name


def test_older_cuts_and_none_where_a_table_holds_no_such_round(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last one: it takes a file away."""
    first, second, _, applied, newest = lake.story.rounds

    def cut(*options: str, code: int = 0) -> str:
        assert main(["cut", "--lake", lake.settings.lake.root, "--json", *options]) == code
        return capsys.readouterr()[code != 0]

    older = json.loads(cut("--round", str(second)))
    versions = older["versions"]
    assert (older["round"], versions["docs"], versions[ORDERS.name]) == (second, 2, 2)
    log = f"SELECT max(round) AS newest FROM changes VERSION AS OF {versions['changes']}"
    assert lake.rows(log) == [{"newest": second}]
    assert json.loads(cut("--as-of", older["time"])) == older
    assert json.loads(cut())["round"] == applied

    told = cut("--round", str(newest), code=7)
    assert f"found docs at round {applied}; {ORDERS.name} at round {newest}; expected" in told
    assert f"expected one from {first} to {newest}" in cut("--round", "99", code=2)
    assert "found no round at 2026-01-01" in cut("--as-of", "2026-01-01", code=2)
    assert "expected a time as in" in cut("--as-of", "yesterday", code=2)
    assert "expected one of them" in cut("--as-of", older["time"], "--round", "1", code=2)

    for file in DeltaTable(lake_location(lake.settings).path("docs"), version=1).file_uris():
        Path(file.removeprefix("file://")).unlink()
    told = cut("--round", str(first), code=7)
    assert "table docs: found version 1 " in told and "lake.horizon_hours" in told

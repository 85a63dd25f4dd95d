"""``dcplake backfill --collections``: what a table should not have goes, other tables stay."""

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dcp.errors import ConfigError, ForeignWriteError
from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.config.settings import PolicySettings
from dcp.lake.log.changes import latest_round
from dcp.lake.log.control import ActionState, Control
from dcp.lake.query.views_sql import row_history_sql
from dcp.lake.rounds.backfill_plan import REPLICAS
from dcp.lake.run.backfill import BackfillWish, backfill
from dcp.lake.run.preview import preview_backfill
from dcp.lake.run.run import run
from dcp.lake.tables.history import history
from dcp.lake.tables.tables import LakeTables, ReplicaTable, replicas_in
from dcp.lake.verify.verify import verify
from dcp.producer.server.cluster import ProducerCluster
from tests.lake.job_process import EndlessJob
from tests.lake.replicas import Rows, require_no_row_twice, table_rows
from tests.lake.run.test_backfill import VBUCKETS, cluster_of, lake_of, quick
from tests.lake.versions import version_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

HOTEL, ROUTE = "inventory.hotel", "inventory.route"


class Inventory:
    """A lake of a bucket with two collections beside the default one."""

    def __init__(
        self, cluster: ProducerCluster, folder: Path, spark: "SparkSession | None" = None
    ) -> None:
        self.cluster, self.spark = cluster, spark
        cluster.create_scope("inventory")
        self.ids = {
            name: cluster.create_collection("inventory", name.partition(".")[2])
            for name in (HOTEL, ROUTE)
        }
        self.fill(range(120))
        cluster.wait_until_replicated()
        self.settings = quick(cluster, folder)
        self.run()
        self.lake: LakeTables = lake_of(self.settings, spark)

    def fill(self, numbers: range, value: bytes = b"first") -> None:
        with self.cluster.batch():
            for number in numbers:
                key = b"key-%d" % number
                self.cluster.set(key, value)
                for collection in self.ids.values():
                    self.cluster.set(key, value, collection=collection)

    def change_until(self, over: threading.Event) -> None:
        number = 0
        while not over.wait(0.1):
            self.fill(range(number, number + 10), b"later %d" % number)
            for collection in self.ids.values():
                self.cluster.delete(b"key-%d" % number, collection=collection)
            number = (number + 7) % 140

    def run(self) -> None:
        run(self.settings, once=True, spark=self.spark)

    def backfill(self, *names: str, vbuckets: frozenset[int] | None = None) -> ActionState:
        wish = BackfillWish(vbuckets, REPLICAS, None, frozenset(names))
        return backfill(self.settings, wish, spark=self.spark).state

    def table(self, name: str) -> ReplicaTable:
        return next(each for each in replicas_in(self.lake) if each.collection_id == self.ids[name])

    def rows(self, name: str) -> Rows:
        return table_rows(self.lake, None, self.table(name))

    def source(self, name: str) -> Rows:
        return {
            vbucket: {
                key: (document.seqno, document.cas, document.value)
                for key, document in held.items()
            }
            for vbucket in range(VBUCKETS)
            if (
                held := self.cluster.state_at(
                    vbucket, self.cluster.high_seqno(vbucket), collection=self.ids[name]
                )
            )
        }

    def falsify(self, name: str) -> None:
        """Make a table wrong in each vbucket as a fault of dcplake would, so that nothing shows."""
        table = self.lake.table(self.table(name).name)
        newest = history(table)[0]
        rows = version_in(self.lake, self.table(name).name).to_pylist()
        wrong = [
            row | {"key": f"phantom-{row['key']}", "deleted": False}
            for row in rows
            if row["key"].endswith("3")
        ]
        wrong += [row | {"value": b"\0", "deleted": False} for row in rows if row["key"][-1] == "1"]
        wrong += [row | {"deleted": True} for row in rows if row["key"][-1] == "2"]
        schema = table.columns().append(pa.field("deleted", pa.bool_()))
        metadata = {**newest.ours, "base": newest.version}

        def statement(view: str) -> str:
            return f"""
                MERGE INTO {table.sql} t USING {view} s ON t.vbucket = s.vbucket AND t.key = s.key
                WHEN MATCHED AND s.deleted THEN DELETE
                WHEN MATCHED THEN UPDATE SET value = s.value
                WHEN NOT MATCHED THEN INSERT *"""

        table.merge(pa.Table.from_pylist(wrong, schema), statement, ("tests", 1), metadata, {})
        assert self.rows(name) != self.source(name)

    def version(self, name: str) -> int:
        return history(self.lake.table(self.table(name).name))[0].version


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_collection_is_made_right_and_no_other_table_is_touched(tmp_path: Path) -> None:
    with cluster_of(2, 1, checkpoint_items=10) as cluster:
        lake = Inventory(cluster, tmp_path)
        lake.falsify(HOTEL)
        lake.falsify(ROUTE)
        wrong, version, docs = lake.rows(ROUTE), lake.version(ROUTE), table_rows(lake.lake, None)
        estimate = preview_backfill(
            lake.settings, BackfillWish(None, REPLICAS, collections=frozenset({HOTEL}))
        )
        assert estimate.left_out == ()
        assert lake.backfill(HOTEL, vbuckets=frozenset({0, 1})) is ActionState.DONE
        found, source = lake.rows(HOTEL), lake.source(HOTEL)
        assert {vb: found[vb] == source[vb] for vb in range(VBUCKETS)} == {
            vb: vb < 2 for vb in range(VBUCKETS)
        }
        cluster.snapshot_cut_after(5)
        assert lake.backfill(HOTEL) is ActionState.DONE, "one fails, and is tried again at once"
        failed = "kind = 'status' AND detail LIKE '%out-of-order snapshot%'"
        assert len(lake.lake.changes.rows("detail", failed)) == 1
        assert lake.rows(HOTEL) == source
        assert lake.rows(ROUTE) == wrong
        assert lake.version(ROUTE) == version
        assert table_rows(lake.lake, None) == docs
        places: dict[int, list[tuple[int, str]]] = {}
        for row in lake.lake.changes.rows("collection_id, vbucket, key", "kind = 'mutation'"):
            places.setdefault(row["collection_id"], []).append((row["vbucket"], row["key"]))
        kept = {each: (len(found), len(set(found))) for each, found in places.items()}
        anew, _ = kept.pop(lake.ids[HOTEL])
        assert 0 <= anew - (120 + 120 + rows_in(found, 0, 1)) <= 5, "and what was read in vain"
        assert kept == {0: (120, 120), lake.ids[ROUTE]: (120, 120)}

        # What is written meanwhile, and after it, comes as ever; a rollback below it, too.
        cluster.pause_replication()
        lake.fill(range(50, 140), b"second")
        cluster.delete(b"key-0", collection=lake.ids[HOTEL])
        lake.run()
        assert lake.rows(HOTEL) == lake.source(HOTEL)
        cluster.failover(0)
        cluster.resume_replication()
        lake.fill(range(10), b"third")
        lake.run()
        assert lake.rows(HOTEL) == lake.source(HOTEL)
        require_no_row_twice(lake.lake)


@pytest.mark.slow
def test_collections_are_brought_anew_while_documents_change(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with cluster_of(3, 2) as cluster:
        lake = Inventory(cluster, tmp_path, spark)
        lake.falsify(HOTEL)
        lake.falsify(ROUTE)
        running, over = EndlessJob(lake.settings, tmp_path), threading.Event()
        writer = threading.Thread(target=lake.change_until, args=(over,))
        writer.start()
        try:
            running.wait_until("the lock", lambda: "round" in running.output())
            cluster.failover(0)
            assert lake.backfill("inventory") is ActionState.DONE
        finally:
            over.set()
            writer.join()
            running.process.send_signal(signal.SIGTERM)
            code = running.wait()
        assert code == 0, running.output()
        lake.run()
        for name in (HOTEL, ROUTE):
            assert lake.rows(name) == lake.source(name)
        require_no_row_twice(lake.lake)
        assert verify(lake.settings, spark=spark).result == "equal"
        history_rows = spark.sql(
            "SELECT collection_id, vbucket, key, seqno, count(*) AS times FROM "
            f"({row_history_sql(lake.lake.changes_sql)}) WHERE is_live GROUP BY ALL "
            "HAVING times > 1"
        )
        assert history_rows.collect() == [], "each version is in the history once"


@pytest.mark.usefixtures("lakes_in_memory")
def test_names_that_cannot_be_brought_are_refused(tmp_path: Path) -> None:
    with cluster_of(2, 1) as cluster:
        lake = Inventory(cluster, tmp_path)
        with pytest.raises(ConfigError, match=r"collections: found 'inventory.hotels' \(did you"):
            lake.backfill("inventory.hotels")
        excluded = FilterSettings(exclude_collections=(ROUTE,))
        lake.settings = replace(lake.settings, filter=excluded)
        with pytest.raises(ConfigError, match=r"'inventory.route', which \[filter\] leaves out"):
            lake.backfill(ROUTE)
        lake.settings = replace(lake.settings, filter=FilterSettings())

        # A new lake has them when it has read them; a table of others' rows takes none.
        place = replace(lake.settings.lake, root=str(tmp_path / "other"))
        new = replace(lake.settings, lake=place)
        wish = BackfillWish(None, REPLICAS, None, frozenset({ROUTE}))
        assert backfill(new, wish).state is ActionState.DONE
        made = lake_of(new)
        assert table_rows(made, None, lake.table(ROUTE)) == lake.source(ROUTE)
        made.table(lake.table(ROUTE).name).delete("vbucket = 0", {})
        newest = latest_round(made)
        with pytest.raises(ForeignWriteError, match=r"found version \d+ .* by somebody else"):
            backfill(new, wish)
        assert latest_round(made) == newest, "nothing was read for it"
        assert Control(made).actions()[-1].state is ActionState.REFUSED

        # One that is dropped after a driver has begun keeps what `policy.dropped` says.
        lake.settings = replace(lake.settings, policy=PolicySettings(dropped="keep"))
        kept, control = lake.rows(ROUTE), Control(lake.lake)
        action = BackfillWish(None, REPLICAS, None, frozenset({ROUTE})).action()
        control.write(action, ActionState.REQUESTED)
        begun = f" of collections {lake.ids[ROUTE]}"
        control.write(action, ActionState.BEGUN, latest_round(lake.lake), begun)
        cluster.drop_collection("inventory", "route")
        lake.run()
        ended = control.action(action.id)
        assert ended.state is ActionState.INCOMPLETE
        assert f"dropped meanwhile: ids {lake.ids[ROUTE]}" in ended.detail
        assert lake.rows(ROUTE) == kept


def rows_in(rows: Rows, *vbuckets: int) -> int:
    return sum(len(rows[vbucket]) for vbucket in vbuckets)

"""What users set on a replica stays and hinders nothing; columns of theirs are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dcp.errors import LakeError
from dcp.lake.apply.merge_plan import RowBudget
from dcp.lake.config.settings import ApplySettings, ApplyWhen, Settings
from dcp.lake.maintain.steps import maintain
from dcp.lake.run.replicate import run
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import LakeTables
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.memory_table import MemoryTable
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import source_rows, table_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONTRACT = 'collection = "_default._default"\nmode = "ignore"\n[columns]\n"$.n" = "int"\n'
LOST_NODE = 1


def changes(lake: LakeTables, version: int) -> dict[str, list[tuple[str, str | None]]]:
    """What the change data feed of ``docs`` tells of a version: by key, how and the document."""
    rows = lake.spark.sql(
        "SELECT key, _change_type, CAST(value AS STRING) AS document FROM "
        f"table_changes_by_path('{lake.location.path('docs')}', {version}, {version}) "
        "ORDER BY key, _change_type"
    ).collect()
    found: dict[str, list[tuple[str, str | None]]] = {}
    for row in rows:
        found.setdefault(row.key, []).append((row["_change_type"], row.document))
    return found


def newest_apply(lake: LakeTables) -> int:
    return next(commit.version for commit in history(lake.table("docs")) if commit.is_apply)


def test_a_change_data_feed_that_a_user_switches_on_is_right_and_stays(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, replicas=1, seed=3)) as cluster:
        settings: Settings = settings_for(
            cluster,
            tmp_path,
            round={"quiet_seconds": 0.2},
            apply={"contracts_folder": str(contracts)},
        )

        def put(**documents: int) -> None:
            for key, number in documents.items():
                cluster.set(key.encode(), json.dumps({"n": number}).encode())

        def is_on() -> bool:
            properties = lake.table("docs").properties()
            return (properties["delta.enableChangeDataFeed"], properties["theirs"]) == ("true", "x")

        put(ada=1, bob=1, gus=1)
        run(replace(settings, apply=ApplySettings(when=ApplyWhen.NEVER)), once=True, spark=spark)
        lake = lake_of(settings, spark)
        assert lake.table("docs").exists()
        spark.sql(
            f"ALTER TABLE {lake.table_sql('docs')} SET TBLPROPERTIES "
            "('delta.enableChangeDataFeed' = 'true', 'theirs' = 'x')"
        )
        with monkeypatch.context() as patched:  # the first apply: files of its tasks
            patched.setattr("dcp.lake.apply.applier.ROW_BUDGET", RowBudget(rows=0))
            run(settings, once=True, spark=spark)
        first = newest_apply(lake)
        maintain(settings, steps=["optimize"], spark=spark)
        assert changes(lake, first) == {
            key: [("insert", '{"n": 1}')] for key in ("ada", "bob", "gus")
        }
        cluster.wait_until_replicated()
        cluster.pause_replication()
        put(ada=2, bob=2, hal=2)
        cluster.delete(b"gus")
        run(settings, once=True, spark=spark)  # a MERGE
        merged = changes(lake, newest_apply(lake))
        assert merged["hal"] == [("insert", '{"n": 2}')]
        assert merged["gus"] == [("delete", '{"n": 1}')]
        assert merged["bob"] == [
            ("update_postimage", '{"n": 2}'),
            ("update_preimage", '{"n": 1}'),
        ]
        cluster.failover(LOST_NODE)
        cluster.resume_replication()
        put(bob=3)
        run(settings, once=True, spark=spark)  # a rollback
        undone = changes(lake, newest_apply(lake))
        assert undone["bob"] == [
            ("update_postimage", '{"n": 3}'),
            ("update_preimage", '{"n": 2}'),
        ]
        assert undone["hal"] == [("delete", '{"n": 2}')]
        assert is_on()
        (contracts / "default.toml").write_text(CONTRACT)
        put(ada=4)
        run(settings, once=True, spark=spark)  # the table is written anew
        assert is_on()
        assert table_rows(lake, None) == source_rows(cluster)


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_column_that_a_user_adds_is_refused_until_the_table_is_restored(tmp_path: Path) -> None:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=2, seed=3)) as cluster:
        settings = settings_for(cluster, tmp_path, round={"quiet_seconds": 0.2})
        cluster.set(b"ada", b"1")
        run(settings, once=True)
        lake = lake_of(settings)
        before, docs = newest_apply(lake), lake.table("docs")
        docs.add_columns(pa.schema([("mine", pa.string())]), {})
        cluster.set(b"ada", b"2")
        with pytest.raises(LakeError, match=r"docs: found the columns mine string, .*RESTORE") as e:
            run(settings, once=True)
        assert "\n" not in str(e.value)
        assert newest_apply(lake) == before
        assert isinstance(docs, MemoryTable)
        docs.restore(before)
        run(settings, once=True)
        assert table_rows(lake, None) == source_rows(cluster)

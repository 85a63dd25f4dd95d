"""``quality.gate``: rows that break the suite are received, and not merged until they pass."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.errors import ConfigError, QualityError
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import latest_round
from dcp.lake.config.settings import QualitySettings
from dcp.lake.config.table_names import QUALITY_TABLE
from dcp.lake.quality.gate import QualityGate
from dcp.lake.run.replicate import run
from dcp.lake.spark.beside import session_beside
from dcp.lake.tables.lake_tables import DOCS
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.memory_store import MemoryStore
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import source_rows, table_rows
from tests.lake.versions import version_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VBUCKETS = 2
SUITE = {
    "name": "ours",
    "expectations": [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "flags", "max_value": 6},
            "meta": {"name": "flags_known", "says": "flags are 0 to 6"},
        },
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "rows", "min_value": 1},
            "meta": {"name": "some", "says": "there are rows", "about": "table"},
        },
    ],
}


@pytest.fixture(autouse=True)
def store(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The lake of a test, in memory; Spark checks its rows."""
    made = MemoryStore()
    made.viewer = session_beside(spark)
    monkeypatch.setattr("dcp.lake.adapters.opening.SparkStore", lambda *_: made)
    return made


def test_an_apply_is_held_back_until_its_rows_pass(tmp_path: Path) -> None:
    file = tmp_path / "suite.json"
    file.write_text(json.dumps(SUITE))
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=4)) as cluster:
        settings = replace(settings_for(cluster, tmp_path), quality=QualitySettings(gate=str(file)))
        for number in range(10):
            cluster.set(b"key-%d" % number, b"{}", flags=number % 7)
        run(settings, once=True)
        lake = lake_of(settings)
        good = table_rows(lake, None)
        assert sum(map(len, good.values())) == 10

        cluster.set(b"key-1", b'{"new": true}')
        cluster.set(b"bad", b"{}", flags=7)
        cluster.delete(b"key-2")
        for _ in range(2):  # the second run finds the round there, and the same in it
            with pytest.raises(QualityError, match=r"(?s)docs stays at version 1: .* of round 2 "):
                run(settings, once=True)
            assert table_rows(lake, None) == good
        assert (latest_round(lake), replica_status(lake, DOCS).round) == (2, 1)
        found = version_in(lake, QUALITY_TABLE).to_pylist()
        assert {(row["scope"], row["round"], row["checked_rows"]) for row in found} == {
            ("rows of an apply", 2, 2)
        }
        assert {(row["expectation"], row["unexpected_count"]) for row in found} == {
            ("flags_known", 1)
        }
        assert found[0]["samples"][0]["key"] == "bad"

        cluster.set(b"bad", b"{}", flags=6)
        run(settings, once=True)
        high = {vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}
        assert table_rows(lake, None) == source_rows(cluster, high)


def test_a_gate_sees_what_does_not_fit_a_contract(tmp_path: Path) -> None:
    fits = {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "fits", "value_set": [True]},
        "meta": {"name": "fits", "says": "documents fit their contract"},
    }
    columns = {"columns": {"fits": "violations IS NULL"}}
    file = tmp_path / "suite.json"
    file.write_text(json.dumps({"name": "ours", "meta": columns, "expectations": [fits]}))
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "default.toml").write_text(
        'collection = "_default._default"\nmode = "quarantine"\n[columns]\n"$.n" = "int"\n'
    )
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=4)) as cluster:
        contracts = {"contracts_folder": str(tmp_path / "schemas")}
        settings = replace(
            settings_for(cluster, tmp_path, apply=contracts),
            quality=QualitySettings(gate=str(file)),
        )
        cluster.set(b"good", b'{"n": 1}')
        run(settings, once=True)
        cluster.set(b"bad", b'{"n": "one"}')
        with pytest.raises(QualityError, match=r"(?s)docs stays at version .* documents fit"):
            run(settings, once=True)


def test_a_gate_without_a_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: cannot read the suite"):
        QualityGate(str(tmp_path / "none.json"))

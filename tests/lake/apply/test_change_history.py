"""Change history: the log has all versions, several in one snapshot; replicas have the newest."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from dcp.lake.apply import applier
from dcp.lake.apply.apply import plan_apply
from dcp.lake.apply.apply_plan import RowBudget
from dcp.lake.config.settings import Settings
from dcp.lake.log.changes import latest_round
from dcp.lake.query.views_sql import row_history_sql
from dcp.lake.run.run import run
from dcp.lake.tables.opening import lake_location
from dcp.lake.tables.tables import LakeTables, open_lake
from dcp.lake.verify.verify import verify
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from dcp.wire.vocabulary import SnapshotFlag
from tests.lake.receiving import SMALL_FLOW, settings_for
from tests.lake.replicas import (
    require_every_version_exact,
    require_live_exact,
    require_no_row_twice,
    source_rows,
    table_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEYS: Final = 12
LOST: Final = 7
VBUCKETS: Final = 2
REPEATING: Final = int(SnapshotFlag.HISTORY | SnapshotFlag.MAY_CONTAIN_DUPLICATES)
Versions = dict[int, tuple[str, str]]
"""By seqno: key and kind."""


@dataclass
class Written:
    """What a cluster was told, version by version, and what a lake must have of it."""

    cluster: ProducerCluster
    random: Random = field(default_factory=lambda: Random(5))
    live: dict[int, Versions] = field(default_factory=lambda: {vb: {} for vb in range(VBUCKETS)})
    dead: set[tuple[int, int, str, str]] = field(default_factory=set)
    received: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(VBUCKETS), 0))

    def write(self, count: int) -> None:
        for _ in range(count):
            key = b"key-%d" % self.random.randrange(KEYS)
            versions = self.live[self.cluster.vbucket_of(key)]
            kinds = [kind for name, kind in versions.values() if name == key.decode()]
            if kinds[-1:] == ["mutation"] and self.random.random() < 0.2:
                versions[self.cluster.delete(key).seqno] = (key.decode(), "deletion")
            else:
                stored = self.cluster.set(key, b"%d" % self.random.randrange(10**6))
                versions[stored.seqno] = (key.decode(), "mutation")

    def compact(self) -> None:
        """Let the disks forget what was replaced: who has not received it will not."""
        for vbucket, versions in self.live.items():
            self.cluster.purge_tombstones(vbucket, 0)
            newest = {key: seqno for seqno, (key, _) in versions.items()}
            for seqno, (key, _) in list(versions.items()):
                if seqno > self.received[vbucket] and newest[key] != seqno:
                    del versions[seqno]

    def receive(self) -> None:
        self.received = {vb: self.cluster.high_seqno(vb) for vb in self.live}

    def lose(self) -> None:
        """Let all nodes lose their newest versions, of which the lake has published some."""
        for node in range(self.cluster.settings.nodes):
            self.cluster.crash_restart(node, LOST)
        for vbucket, versions in self.live.items():
            cut = self.cluster.high_seqno(vbucket)
            lost = {seqno: versions.pop(seqno) for seqno in list(versions) if seqno > cut}
            before = {key for key, _ in versions.values()}
            assert before & {key for key, _ in lost.values()}, "between two versions of a key"
            self.dead |= {(vbucket, seqno, *what) for seqno, what in lost.items()}

    @property
    def alive(self) -> set[tuple[int, int, str, str]]:
        return {
            (vb, seqno, *what) for vb, found in self.live.items() for seqno, what in found.items()
        }


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    settings = ClusterSettings(nodes=2, vbuckets=VBUCKETS, seed=3, history_retention_bytes=1 << 20)
    with ProducerCluster(settings) as running:
        yield running


def test_every_version_is_in_the_history_and_the_newest_in_the_replica(
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: ProducerCluster,
) -> None:
    in_one, in_parts = (
        settings_for(
            cluster,
            tmp_path,
            source={"change_history": True},
            flow_control=SMALL_FLOW,
            round={"quiet_seconds": 0.2, **size},
        )
        for size in ({}, {"target_bytes": 1024})
    )
    written = Written(cluster)
    # What is too much for the driver Spark chooses and merges; the first apply writes files.
    by_spark = partial(plan_apply, budget=RowBudget(rows=0))
    with monkeypatch.context() as patched:
        patched.setattr(applier, "plan_apply", lambda *found: by_spark(*found[:3]))
        written.write(120)
        lake = received(written, in_one, spark)
        assert most_versions_in_a_snapshot(lake, 1) > 4
        written.write(60)
        written.compact()
        written.write(60)
        lake = received(written, in_one, spark)
        assert markers_of_a_snapshot(lake, 2) == {0, REPEATING}
    written.write(80)
    lake = received(written, in_parts, spark)
    assert latest_round(lake) > 3
    written.lose()
    written.write(30)
    lake = received(written, in_one, spark)
    assert require_every_version_exact(lake, cluster) >= 4
    assert verify(in_one, spark=spark).result == "equal"


def received(written: Written, settings: Settings, spark: "SparkSession") -> LakeTables:
    """Run; compare replica, view and history with what was written."""
    run(settings, once=True, spark=spark)
    written.receive()
    lake = open_lake(lambda: spark, lake_location(settings))
    assert table_rows(lake, None) == source_rows(written.cluster, written.received)
    require_live_exact(lake, written.cluster, latest_round(lake))
    require_no_row_twice(lake)
    history = f"({row_history_sql(lake.changes_sql)})"
    found: dict[bool, list[tuple[int, int, str, str]]] = {True: [], False: []}
    for row in lake.spark.sql(
        f"SELECT vbucket, seqno, key, kind, is_live FROM {history}"
    ).collect():
        found[row.is_live].append((row.vbucket, int(row.seqno), row.key, row.kind))
    assert Counter(found[True]) == Counter(written.alive)
    assert written.dead <= set(found[False]) <= written.dead | written.alive
    return lake


def most_versions_in_a_snapshot(lake: LakeTables, round_number: int) -> int:
    """Return how often a key is in the one snapshot of its vbucket that a round brought."""
    markers, rows = (f"round = {round_number} AND kind {kind}" for kind in KINDS)
    (found,) = lake.spark.sql(f"""
        SELECT max(versions) AS most FROM (
          SELECT vbucket, key, count(*) AS versions FROM {lake.changes_sql} WHERE {rows}
            AND vbucket IN (SELECT vbucket FROM {lake.changes_sql} WHERE {markers}
              GROUP BY vbucket HAVING count(DISTINCT snap_end) = 1)
          GROUP BY vbucket, key)""").collect()
    return int(found.most)


KINDS: Final = ("= 'snapshot_marker'", "IN ('mutation', 'deletion')")


def markers_of_a_snapshot(lake: LakeTables, round_number: int) -> set[int]:
    """Return whether markers of a round said that keys may come again, of one snapshot end."""
    rows = lake.changes.rows(
        "vbucket, snap_end, snap_flags", f"round = {round_number} AND kind {KINDS[0]}"
    )
    ends = Counter((row["vbucket"], row["snap_end"]) for row in rows)
    assert set(ends.values()) == {2}
    return {row["snap_flags"] & REPEATING for row in rows}

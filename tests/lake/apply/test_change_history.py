"""Change history: the log has all versions, several in one snapshot; replicas have the newest."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from dcp.lake.apply import applier
from dcp.lake.apply.merge_plan import MergePlan, RowBudget
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.changes import latest_round
from dcp.lake.config.settings import Settings
from dcp.lake.query.views_sql import row_history_sql
from dcp.lake.run.replicate import run
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable
from dcp.lake.tables.schema import RowKind, is_kind
from dcp.lake.verify.compare import verify
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.wire.vocabulary import REPEATING
from tests.lake.apply.test_keys_without_repeats import log_rows, require_no_key_twice
from tests.lake.receiving import SMALL_FLOW, lake_of, settings_for
from tests.lake.replicas import (
    require_every_version_exact,
    require_live_exact,
    source_rows,
    table_rows,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEYS: Final = 12
LOST: Final = 7
VBUCKETS: Final = 2
Versions = dict[int, tuple[str, str]]
"""By seqno: key and kind."""


@dataclass
class Written:
    """All that a cluster was told, version by version, and what a lake must have of it."""

    cluster: ProducerCluster
    random: Random = field(default_factory=lambda: Random(5))
    live: dict[int, Versions] = field(default_factory=lambda: {vb: {} for vb in range(VBUCKETS)})
    dead: set[tuple[int, int, str, str]] = field(default_factory=set)
    received: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(VBUCKETS), 0))
    history_start: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(VBUCKETS), 0))

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
        """Let the disks forget what was replaced: history begins where that was last."""
        for vbucket, versions in self.live.items():
            self.cluster.purge_tombstones(vbucket, 0)
            keys = [key for key, _ in versions.values()]
            seqnos = [seqno for at, seqno in enumerate(versions) if keys[at] in keys[:at]]
            self.history_start[vbucket] = seqnos[-1]

    def receive(self) -> None:
        """Forget what nobody is told any more: older than the history, and replaced."""
        for vbucket, versions in self.live.items():
            newest = {key: seqno for seqno, (key, _) in versions.items()}
            for seqno in range(self.received[vbucket] + 1, self.history_start[vbucket]):
                if seqno in versions and newest[versions[seqno][0]] != seqno:
                    del versions[seqno]
            self.received[vbucket] = self.cluster.high_seqno(vbucket)

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


@pytest.mark.usefixtures("lakes_in_memory")
def test_every_version_is_in_the_history_and_the_newest_in_the_replica(
    view: Callable[[LakeTables], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: ProducerCluster,
) -> None:
    in_one, unapplied, in_parts = (
        settings_for(
            cluster,
            tmp_path,
            flow_control=SMALL_FLOW,
            round={"quiet_seconds": 0.2, **size},
            apply={"when": when},
        )
        for size, when in (
            ({}, "every_round"),
            ({}, "never"),
            ({"target_bytes": 1024}, "every_round"),
        )
    )
    written, plans = Written(cluster), list[MergePlan]()

    def left_to_tasks(
        lake: LakeTables, replica: ReplicaTable, to_round: int, *_: Any
    ) -> MergePlan | None:
        plan = plan_merge(lake, replica, to_round, RowBudget(rows=0))
        if plan is not None:
            require_no_key_twice(lake, log_rows(plan))
            plans.append(plan)
        return plan

    with monkeypatch.context() as patched:
        patched.setattr(applier, "plan_merge", left_to_tasks)
        written.write(120)
        lake = received(written, in_one)
        assert markers_of_a_snapshot(lake, 1) == [[REPEATING]] * VBUCKETS
        assert table_rows(lake, None) == source_rows(cluster, written.received)
        written.write(60)
        written.compact()
        written.write(15)
        lake = received(written, unapplied)
        assert markers_of_a_snapshot(lake, 2) == [[0, REPEATING]] * VBUCKETS
        view(lake)
        require_live_exact(lake, cluster, 2)
        require_history(lake, written)
        written.write(160)
        lake = received(written, in_parts)
    assert latest_round(lake) > 3 and len(plans) > 2
    written.lose()
    written.write(30)
    lake = received(written, in_one)
    require_history(lake, written)
    assert require_every_version_exact(lake, cluster) >= 3
    assert verify(in_one).result == "equal"


def received(written: Written, settings: Settings) -> LakeTables:
    run(settings, once=True)
    written.receive()
    return lake_of(settings)


def require_history(lake: LakeTables, written: Written) -> None:
    """Every version that was received is live once, or on the branch that was lost."""
    history = f"({row_history_sql(lake.changes_sql)})"
    found: dict[bool, list[tuple[int, int, str, str]]] = {True: [], False: []}
    for row in lake.spark.sql(
        f"SELECT vbucket, seqno, key, kind, is_live FROM {history}"
    ).collect():
        found[row.is_live].append((row.vbucket, int(row.seqno), row.key, row.kind))
    assert Counter(found[True]) == Counter(written.alive)
    assert written.dead <= set(found[False]) <= written.dead | written.alive


def markers_of_a_snapshot(lake: LakeTables, number: int) -> list[list[int]]:
    """Return what the markers of each vbucket's one snapshot of a round say of repeats."""
    rows = lake.changes.rows(
        "vbucket, snap_end, snap_flags",
        f"round = {number} AND {is_kind(RowKind.SNAPSHOT_MARKER)}",
    )
    assert len({(row["vbucket"], row["snap_end"]) for row in rows}) == VBUCKETS
    return [
        sorted(row["snap_flags"] & REPEATING for row in rows if row["vbucket"] == vbucket)
        for vbucket in range(VBUCKETS)
    ]

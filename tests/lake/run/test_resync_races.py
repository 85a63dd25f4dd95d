"""Resyncs beside other requests, other drivers, backfills and failovers; lakes in memory."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import (
    CONTROL,
    Control,
    ControlRequest,
    RequestAction,
    RequestState,
)
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.table_names import CONTROL_TABLE
from dcp.lake.receive.source_access import query_cluster
from dcp.lake.run import driver as driver_module
from dcp.lake.run.control_requests import Requests
from dcp.lake.tables.lake_tables import ensure_ledger
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.memory_rounds import MemoryRounds
from tests.lake.receiving import settings_for

VBUCKETS = 4


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    settings = ClusterSettings(nodes=2, vbuckets=VBUCKETS, replicas=1, seed=11)
    with ProducerCluster(settings) as cluster:
        fill(cluster, "first", 40)
        cluster.wait_until_replicated()
        yield cluster


@pytest.fixture
def rounds(
    cluster: ProducerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MemoryRounds:
    """Return a lake that has what the bucket holds."""
    monkeypatch.setattr(driver_module, "_CHECK_SECONDS", 0.001)
    patience = {"quiet_seconds": 0.05, "node_deadline_seconds": 2.0}
    rounds = MemoryRounds(settings_for(cluster, tmp_path, round=patience))
    once(rounds)
    return rounds


def fill(cluster: ProducerCluster, name: str, count: int) -> None:
    for number in range(count):
        cluster.set(b"%s-%d" % (name.encode(), number), b"x" * 200)


def once(rounds: MemoryRounds) -> None:
    rounds.driver.once(query_cluster(rounds.access), threading.Event())


def asked(
    rounds: MemoryRounds, action: RequestAction, vbuckets: str | None = None
) -> ControlRequest:
    request = ControlRequest.new(action, vbuckets, {})
    Control(rounds.driver.lake).write(request, RequestState.REQUESTED)
    return request


def begin(rounds: MemoryRounds) -> None:
    lake = rounds.driver.lake
    Requests(lake, Control(lake), rounds.driver.writer_id, ()).carry_out()


def epoch_of(rounds: MemoryRounds, vbucket: int) -> int:
    lake = rounds.driver.lake
    return states_at(lake, latest_round(lake))[vbucket].epoch


@pytest.mark.parametrize("time", [None, datetime.now(UTC) - timedelta(hours=1)])
def test_a_later_request_is_done_though_its_time_is_earlier(
    cluster: ProducerCluster, rounds: MemoryRounds, time: datetime | None
) -> None:
    lake, control = rounds.driver.lake, Control(rounds.driver.lake)
    cluster.kill_node(1)
    of_all = asked(rounds, RequestAction.RESYNC)
    begin(rounds)
    rounds.until_idle()
    assert control.request(of_all.id).state is RequestState.BEGUN, "it waits for a node"
    [vbucket, *_] = [vb for vb in range(VBUCKETS) if cluster.vbucket_owner(vb) == 0]
    before = epoch_of(rounds, vbucket)
    row = {"id": "later", "time": time, "action": RequestAction.RESYNC, "vbuckets": str(vbucket)}
    table = ensure_ledger(lake, CONTROL_TABLE, CONTROL)
    table.append(pa.Table.from_pylist([row | {"state": "requested"}], schema=CONTROL), {})
    begin(rounds)
    rounds.until_idle()
    assert control.request("later").state is RequestState.DONE
    assert epoch_of(rounds, vbucket) == before + 1


def test_a_driver_ends_no_request_that_another_one_began_as_it_planned(
    rounds: MemoryRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, real = rounds.driver, Requests.resyncs
    rounds.restart()

    def meanwhile(requests: Requests) -> dict[int, int]:
        found = real(requests)
        monkeypatch.setattr(Requests, "resyncs", real)
        asked(rounds, RequestAction.RESYNC, "0")
        begin(rounds)
        return found

    monkeypatch.setattr(Requests, "resyncs", meanwhile)
    older.prepare_round(query_cluster(rounds.access))
    once(rounds)
    assert epoch_of(rounds, 0) == 1


def test_a_resync_beside_a_backfill_takes_no_published_row_back(
    cluster: ProducerCluster, rounds: MemoryRounds
) -> None:
    """The replicas are behind: only the active nodes have what was published."""
    cluster.pause_replication()
    fill(cluster, "not replicated", 400)
    once(rounds)
    rounds.with_budget(4000)
    for action in (RequestAction.BACKFILL, RequestAction.RESYNC):
        asked(rounds, action)
    found = []
    for _ in range(60):
        begin(rounds)
        if not rounds.run():
            break
        rounds.apply()
        found.append(rounds.lake.docs.kept.newest.rows.num_rows)
    assert set(found) == {440}
    assert epoch_of(rounds, 0) >= 1


def test_a_run_follows_a_rollback_though_small_rounds_did_not_come_to_it(
    cluster: ProducerCluster, rounds: MemoryRounds
) -> None:
    fill(cluster, "kept", 400)
    cluster.wait_until_replicated()
    once(rounds)
    cluster.pause_replication()
    fill(cluster, "lost", 100)
    once(rounds)
    rounds.with_budget(4000)
    asked(rounds, RequestAction.RESYNC)
    begin(rounds)
    for _ in range(3):
        rounds.run()
        rounds.apply()
    cluster.failover(1)
    asked(rounds, RequestAction.RESYNC, "2")
    once(rounds)
    held = sum(len(cluster.state_at(vb, cluster.high_seqno(vb))) for vb in range(VBUCKETS))
    assert rounds.lake.docs.kept.newest.rows.num_rows == held

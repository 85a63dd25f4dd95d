"""Real rounds of lakes behind a relay that streams nothing before its group is there."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from dcp.lake.config.settings import Settings
from dcp.lake.receive.source_access import query_cluster
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.thread import Relay
from tests.client.drained import PATIENCE_SECONDS, fill, wait_for
from tests.lake.receiving import RoundsInProcess, documents_at, settings_for, source_at

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]


def _behind(
    relay: Relay,
    cluster: ProducerCluster,
    folder: Path,
    tag: str,
    deadline_seconds: float = PATIENCE_SECONDS,
) -> RoundsInProcess:
    folder.mkdir()
    source = {"seeds": tuple(relay.seeds), "receiver_group_tag": tag}
    rounds = {"node_deadline_seconds": deadline_seconds}
    settings: Settings = settings_for(cluster, folder, source=source, round=rounds)
    return RoundsInProcess(settings)


def _has_all(rounds: RoundsInProcess, cluster: ProducerCluster) -> bool:
    return all(
        documents_at(rounds.rows, v, cluster.high_seqno(v))
        == source_at(cluster, v, cluster.high_seqno(v))
        for v in range(cluster.settings.vbuckets)
    )


@pytest.mark.parametrize("fc", ["tagged,g:7/1,t:60s", "min,g:/1,t:60s"])
def test_round_after_round_of_one_lake(
    make_cluster: MakeCluster, make_relay: MakeRelay, tmp_path: Path, fc: str
) -> None:
    """Between two rounds nobody is there, and the cluster's streams are closed."""
    cluster = make_cluster(vbuckets=4, nodes=2)
    relay = make_relay(cluster, flow_spec=parse_flow_spec(fc))
    lake = _behind(relay, cluster, tmp_path / "lake", "7")
    for number in range(3):
        fill(cluster, 40, prefix=f"round-{number}-")
        wait_for("all of it is told", lambda: _is_told(lake, cluster))
        lake.run()
        assert _has_all(lake, cluster)
        wait_for("the streams are closed", lambda: _lack_receivers(relay))
    assert lake.plan() is None


def _is_told(lake: RoundsInProcess, cluster: ProducerCluster) -> bool:
    """Whether a plan of now is for all that the cluster has: each node tells its own part."""
    highs = {v: cluster.high_seqno(v) for v in range(cluster.settings.vbuckets)}
    return query_cluster(lake.access).high_seqnos == highs


def _lack_receivers(relay: Relay) -> bool:
    found = relay.figures()
    return all(group.lacks_receivers for group in found.groups) and not any(
        link.streams for link in found.upstream
    )


def test_two_lakes_wait_for_each_other(
    make_cluster: MakeCluster, make_relay: MakeRelay, tmp_path: Path
) -> None:
    """The first one's round brings nothing as long as it is alone; with the second both go on."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 40)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("tagged,g:7/2,t:60s"))
    alone = _behind(relay, cluster, tmp_path / "alone", "7", deadline_seconds=1.0)
    alone.run()
    assert alone.rows != []
    assert not any(alone.states[v].position.seqno for v in alone.states)
    assert cluster.counters().items_sent == {}
    lakes = [_behind(relay, cluster, tmp_path / name, "7") for name in ("first", "second")]
    threads = [Thread(target=lake.run) for lake in lakes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert [_has_all(lake, cluster) for lake in lakes] == [True, True]

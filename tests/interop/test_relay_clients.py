"""The official clients behind a relay: each gets all of it, also through a rollback."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.settings import RelaySettings
from dcp.relay.thread import Relay
from tests.interop import scenarios
from tests.interop.driver import Driver

pytestmark = pytest.mark.interop

MakeCluster = Callable[..., ProducerCluster]


@contextmanager
def _relaying(cluster: ProducerCluster, folder: Path) -> Iterator[Relay]:
    settings = RelaySettings(
        upstream=tuple(cluster.seeds),
        listen=("127.0.0.1", 0),
        bucket="default",
        credentials=Credentials("Administrator", Secret("password")),
        data_folder=folder,
        flow_spec=parse_flow_spec("min,t:5s"),
        window_bytes=scenarios.WINDOW_BYTES,
    )
    with Relay(settings) as relay:
        yield relay


def test_both_at_once(
    make_cluster: MakeCluster, java_driver: list[str], go_driver: list[str], tmp_path: Path
) -> None:
    cluster = make_cluster(replicas=1)
    scenarios.fill(cluster)
    with _relaying(cluster, tmp_path / "relay") as relay:
        words = scenarios.words(cluster, relay.seeds, "infinity")
        more = {"java": [*java_driver, "--mitigate-millis", "20"], "go": go_driver}
        drivers = [
            Driver([*command, *words], "password", tmp_path / f"{name}.log")
            for name, command in more.items()
        ]
        with drivers[0], drivers[1]:
            for driver in drivers:
                driver.until("streaming")
            for driver in drivers:
                scenarios.assert_same_content(cluster, driver.report_at(scenarios.goals(cluster)))
            for number in range(100):
                cluster.set(b"doc-%d" % number, b'{"live":%d}' % number)
            cluster.move_vbucket(0, scenarios.NODES - 1)
            cluster.delete(b"doc-499")
            for driver in drivers:
                scenarios.assert_same_content(cluster, driver.report_at(scenarios.goals(cluster)))
            _lose_a_tail(cluster, drivers)
            for driver in drivers:
                driver.finish()


def _lose_a_tail(cluster: ProducerCluster, drivers: list[Driver]) -> None:
    gone = [v for v in range(scenarios.VBUCKETS) if cluster.vbucket_owner(v) == 1]
    cluster.wait_until_replicated()
    cluster.pause_replication()
    for number in range(60):
        cluster.set(b"lost-%d" % number, b"{}")
        cluster.set(b"doc-%d" % number, b'"lost"')
    for driver in drivers:
        scenarios.assert_same_content(cluster, driver.report_at(scenarios.goals(cluster)))
    cut = {vbucket: cluster.replica_seqno(vbucket) for vbucket in gone}
    cluster.failover(1)
    for number in range(60):
        cluster.set(b"doc-%d" % (number + 100), b'"after"')
    for driver in drivers:
        scenarios.assert_same_content(cluster, driver.report_at(scenarios.goals(cluster)))
        assert {v: line["seqno"] for v, line in driver.told("rollback").items()} == cut
        scenarios.assert_same_failover_logs(cluster, driver)

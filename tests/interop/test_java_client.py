"""The official Java DCP client on the producer, with flow control and with rollback mitigation.

Over plain TCP it signs in with SCRAM, over TLS with PLAIN: the client leaves no choice.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from tests.interop import scenarios
from tests.interop.driver import PATIENCE_SECONDS, Driver, VbucketReport
from tests.producer.tls import TLS_FILES

pytestmark = pytest.mark.interop

MakeCluster = Callable[..., ProducerCluster]
MITIGATE_MILLIS = 20
MITIGATED = ("--mitigate-millis", str(MITIGATE_MILLIS))
UNAWARE = ("--collections", "false")


@pytest.fixture
def start(java_driver: list[str], tmp_path: Path) -> scenarios.StartDriver:
    def start_driver(
        cluster: ProducerCluster, *, to: str, more: tuple[str, ...] = MITIGATED
    ) -> Driver:
        seeds = (cluster.tls_seeds or cluster.seeds)[:1]
        words = scenarios.words(cluster, seeds, to)
        return Driver([*java_driver, *words, *more], "password", tmp_path / "driver.log")

    return start_driver


@pytest.fixture(params=["scram", "tls"])
def cluster(request: pytest.FixtureRequest, make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(tls=TLS_FILES if request.param == "tls" else None)


@pytest.mark.parametrize("more", [MITIGATED, (), UNAWARE], ids=["mitigated", "plain", "unaware"])
def test_everything_to_now(
    cluster: ProducerCluster, start: scenarios.StartDriver, more: tuple[str, ...]
) -> None:
    scenarios.everything_to_now(cluster, partial(start, more=more), tells_expiry=False)


def test_writes_to_open_streams_and_a_moved_vbucket(
    cluster: ProducerCluster, start: scenarios.StartDriver
) -> None:
    scenarios.writes_to_open_streams_and_a_moved_vbucket(cluster, start)


def test_rollback_of_a_lost_tail(make_cluster: MakeCluster, start: scenarios.StartDriver) -> None:
    """With rollback mitigation the client would tell nothing of the tail: the replicas lack it."""
    scenarios.rollback_of_a_lost_tail(make_cluster(replicas=1), partial(start, more=()))


def test_rollback_after_a_crash(cluster: ProducerCluster, start: scenarios.StartDriver) -> None:
    scenarios.rollback_after_a_crash(cluster, start)


def test_mitigation_withholds_what_is_not_persisted(
    make_cluster: MakeCluster, start: scenarios.StartDriver
) -> None:
    """The newest three seqnos are not on disk: the client tells of none of them, and loses none."""
    cluster = make_cluster(unpersisted_seqnos=3)
    scenarios.fill(cluster)
    _write_small(cluster, b"later")  # what is withheld counts for the window, and must fit into it
    with start(cluster, to="infinity") as driver:
        driver.until("streaming")
        persisted = _persisted(cluster)
        told = driver.report_at(scenarios.goals(cluster, persisted))
        scenarios.assert_same_content(cluster, told, persisted)
        cluster.crash_restart(0)
        cluster.crash_restart(1)
        _write_small(cluster, b"latest")
        persisted = _persisted(cluster)
        told = driver.report_at(scenarios.goals(cluster, persisted))
        scenarios.assert_same_content(cluster, told, persisted)
        driver.finish()


def test_mitigation_withholds_what_replicas_lack(
    make_cluster: MakeCluster, start: scenarios.StartDriver
) -> None:
    """The client tells nothing of a tail that replicas lack, so its loss rolls nothing back.

    A replica that went with its node withholds nothing; any other does until it follows again.
    """
    cluster = make_cluster(replicas=1)
    scenarios.fill(cluster)
    owners = {v: cluster.vbucket_owner(v) for v in range(scenarios.VBUCKETS)}
    with start(cluster, to="infinity") as driver:
        driver.until("streaming")
        before = driver.report_at(scenarios.goals(cluster))
        cluster.wait_until_replicated()
        cluster.pause_replication()
        kept = {v: cluster.high_seqno(v) for v in owners}
        _send_tail(cluster)
        told = driver.report_at(scenarios.goals(cluster, kept))
        scenarios.assert_same_content(cluster, told, kept)

        cluster.failover(1)
        scenarios.write_after_failover(cluster)
        lagging = {v: kept[v] for v, owner in owners.items() if owner == 2}
        told = driver.report_at(scenarios.goals(cluster, lagging))
        scenarios.assert_same_content(cluster, told, lagging)

        cluster.resume_replication()
        told = driver.report_at(scenarios.goals(cluster))
        scenarios.assert_same_content(cluster, told)
        events = {v: _events(told[v]) - _events(before[v]) for v in owners}
        assert events == {v: cluster.high_seqno(v) - kept[v] for v in owners}, "no lost one"
        driver.finish()
    assert driver.told("rollback") == {}


def _events(report: VbucketReport) -> int:
    return report.mutations + report.deletions


def _send_tail(cluster: ProducerCluster) -> None:
    """Return when the client holds the tail and has asked often how far it is on disk."""
    scenarios.write_tail(cluster)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _all_sent(cluster):
        assert time.monotonic() < deadline, "the tail was not sent to the client"
        time.sleep(0.01)
    time.sleep(20 * MITIGATE_MILLIS / 1000)


def _all_sent(cluster: ProducerCluster) -> bool:
    sent = cluster.counters().seqnos_sent
    return all(sent[v][-1] == cluster.high_seqno(v) for v in range(scenarios.VBUCKETS))


def _write_small(cluster: ProducerCluster, prefix: bytes) -> None:
    for number in range(200):
        cluster.set(b"%b-%d" % (prefix, number), b"{}")


def _persisted(cluster: ProducerCluster) -> dict[int, int]:
    return {v: cluster.persisted_seqno(v) for v in range(scenarios.VBUCKETS)}

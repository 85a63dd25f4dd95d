"""The official Java DCP client on the producer, with flow control and with rollback mitigation.

Over plain TCP it signs in with SCRAM, over TLS with PLAIN: the client leaves no choice.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from tests.interop import scenarios
from tests.interop.driver import Driver
from tests.producer.tls import TLS_FILES

pytestmark = pytest.mark.interop

MakeCluster = Callable[..., ProducerCluster]
MITIGATED = ("--mitigate-millis", "20")
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


def test_live_writes_and_a_moved_vbucket(
    cluster: ProducerCluster, start: scenarios.StartDriver
) -> None:
    scenarios.live_writes_and_a_moved_vbucket(cluster, start)


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


def _write_small(cluster: ProducerCluster, prefix: bytes) -> None:
    for number in range(200):
        cluster.set(b"%b-%d" % (prefix, number), b"{}")


def _persisted(cluster: ProducerCluster) -> dict[int, int]:
    return {v: cluster.persisted_seqno(v) for v in range(scenarios.VBUCKETS)}

"""gocbcore's DCP agent on the producer, found by its protocol's ports or by HTTP alone.

With HTTP seeds the agent knows no other address until a map arrives, as in go-dcp. Over plain TCP
it signs in with SCRAM, over TLS with PLAIN.
"""

import time
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


@pytest.fixture(params=["memd", "http"])
def start(
    request: pytest.FixtureRequest, go_driver: list[str], tmp_path: Path
) -> scenarios.StartDriver:
    def start_driver(cluster: ProducerCluster, *, to: str, more: tuple[str, ...] = ()) -> Driver:
        if request.param == "http":
            seeds, kind = cluster.https_seeds or cluster.http_seeds, ["--http-seeds"]
        else:
            seeds, kind = cluster.tls_seeds or cluster.seeds, []
        words = scenarios.words(cluster, seeds[:1], to)
        return Driver([*go_driver, *kind, *words, *more], "password", tmp_path / "driver.log")

    return start_driver


@pytest.fixture(params=["scram", "tls"])
def cluster(request: pytest.FixtureRequest, make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(tls=TLS_FILES if request.param == "tls" else None)


def test_what_is_asked_before_streaming(
    cluster: ProducerCluster, start: scenarios.StartDriver
) -> None:
    with start(cluster, to="ping") as driver:
        (told,) = driver.until("pinged")
        driver.finish()
    paths = ("/pools", "/pools/default/buckets/default", "/whoami")
    nodes = {"memd": scenarios.NODES, "mgmt": scenarios.NODES}
    assert told == {"event": "pinged", "collection": 0} | nodes | dict.fromkeys(paths, 200)


LEVELS = ("majority", "majorityAndPersistOnMaster", "persistToMajority")


def _write(cluster: ProducerCluster, start: scenarios.StartDriver) -> dict[str, str]:
    """Let the agent write with every level of durability; return how each ended."""
    with start(cluster, to="write") as driver:
        (told,) = driver.until("written")
        driver.finish()
    return {level: told[level] for level in LEVELS}


def test_durable_writes(cluster: ProducerCluster, start: scenarios.StartDriver) -> None:
    assert _write(cluster, start) == dict.fromkeys(LEVELS, "well")
    held: set[bytes] = set()
    for vbucket in range(scenarios.VBUCKETS):
        held |= cluster.state_at(vbucket, cluster.high_seqno(vbucket)).keys()
    assert held == {level.encode() for level in LEVELS}
    seqnos = sum(cluster.high_seqno(vbucket) for vbucket in range(scenarios.VBUCKETS))
    assert seqnos == 2 * 3 * len(LEVELS)  # a prepare and a commit for each of three writes


def test_durable_writes_that_end_badly(
    make_cluster: MakeCluster, start: scenarios.StartDriver
) -> None:
    late = make_cluster(nodes=1, unpersisted_seqnos=100, clock=time.time)
    ambiguous = dict.fromkeys(LEVELS[1:], "ambiguous")
    assert _write(late, start) == {LEVELS[0]: "well"} | ambiguous
    alone = make_cluster(nodes=2, replicas=1)
    alone.failover(1)
    assert _write(alone, start) == dict.fromkeys(LEVELS, "impossible")


@pytest.mark.parametrize("collections", ["true", "false"])
def test_everything_to_now(
    cluster: ProducerCluster, start: scenarios.StartDriver, collections: str
) -> None:
    more = (f"--collections={collections}",)
    scenarios.everything_to_now(cluster, partial(start, more=more), tells_expiry=True)


def test_writes_to_open_streams_and_a_moved_vbucket(
    cluster: ProducerCluster, start: scenarios.StartDriver
) -> None:
    scenarios.writes_to_open_streams_and_a_moved_vbucket(cluster, start)


def test_rollback_of_a_lost_tail(make_cluster: MakeCluster, start: scenarios.StartDriver) -> None:
    scenarios.rollback_of_a_lost_tail(make_cluster(replicas=1), start)


def test_rollback_after_a_crash(cluster: ProducerCluster, start: scenarios.StartDriver) -> None:
    scenarios.rollback_after_a_crash(cluster, start)

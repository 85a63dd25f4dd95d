"""A cluster of several processes, joined over real sockets: each is a thread of its own here."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.joined_cluster import JoinedCluster
from dcp.producer.kv_client import KvClient
from dcp.producer.settings import ClusterSettings
from tests.producer.processes import Processes
from tests.producer.test_replicas import frames_of

MakeProcesses = Callable[..., Processes]
KEYS = [b"k%d" % number for number in range(60)]


@pytest.fixture
def make_processes() -> Iterator[MakeProcesses]:
    with ExitStack() as stack:

        def make(**chosen: Any) -> Processes:
            settings = {"vbuckets": 4, "nodes": 1, "replicas": 1, "seed": 1, **chosen}
            first = stack.enter_context(ProducerCluster(ClusterSettings(**settings)))
            return Processes(first, stack.enter_context(_joining(first)))

        yield make


def _joining(first: ProducerCluster, **chosen: Any) -> JoinedCluster:
    settings = {"seed": 2, "member_timeout_seconds": first.settings.member_timeout_seconds}
    return JoinedCluster(ClusterSettings(**{**settings, **chosen}), first.seeds[0])


@pytest.fixture
def pair(make_processes: MakeProcesses) -> Processes:
    """Four vbuckets in the first process, of which there shall be one copy each."""
    return make_processes()


@pytest.fixture
def even(pair: Processes) -> Processes:
    """Two vbuckets in each, with documents, and copied to the other."""
    for key in KEYS:
        pair.set(key)
    pair.first.rebalance()
    pair.assert_copies_are_equal()
    return pair


def _held(seed: str, keys: list[bytes] = KEYS) -> set[bytes]:
    with KvClient([seed], "Administrator", "password", "default") as client:
        return set(client.get(keys))


def test_a_process_joins_and_takes_its_share(pair: Processes) -> None:
    """Vbuckets move as they are, copies come; whichever process is asked knows where all are."""
    for key in KEYS:
        pair.set(key)
    before = [(pair.active(v).failover_log, frames_of(pair.active(v))) for v in range(4)]
    assert pair.owners() == [0, 0, 0, 0]
    assert pair.first.seeds == pair.second.seeds
    pair.first.rebalance()
    assert sorted(pair.owners()) == [0, 0, 1, 1]
    pair.settle()
    after = [(pair.active(v).failover_log, frames_of(pair.active(v))) for v in range(4)]
    assert after == before
    pair.assert_copies_are_equal()
    for seed in pair.first.seeds:
        assert _held(seed) == set(KEYS)

"""Fixtures of the producer's tests: clusters with a clock that tests set."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.producer.kept_clusters import NEVER
from tests.producer.raw_client import RawClient


class Clock:
    """Seconds since 1970, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_cluster(clock: Clock) -> Iterator[Callable[..., ProducerCluster]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> ProducerCluster:
            # Nobody waits for the disk as long as this clock stands.
            waits = {"persistence_wait_seconds": 0.0}
            chosen = {"vbuckets": 4, "seed": 1, "clock": clock, **waits, **settings}
            return stack.enter_context(ProducerCluster(ClusterSettings(**chosen)))

        yield make


@pytest.fixture
def cluster(make_cluster: Callable[..., ProducerCluster]) -> ProducerCluster:
    """One node, one vbucket: every key is in vbucket 0."""
    return make_cluster(vbuckets=1)


@pytest.fixture
def connect() -> Iterator[Callable[..., RawClient]]:
    with ExitStack() as stack:

        def open_client(cluster: ProducerCluster, node: int = 0) -> RawClient:
            return stack.enter_context(RawClient(cluster.seeds[node]))

        yield open_client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def open_cluster(clock: Clock) -> Iterator[Callable[..., ProducerCluster]]:
    """Clusters on a folder that serve nobody: one vbucket, nothing is written by itself."""
    with ExitStack() as stack:

        def make(folder: Path, **chosen: Any) -> ProducerCluster:
            asked = {"vbuckets": 1, "seed": 1, "clock": clock, "flush_seconds": NEVER, **chosen}
            cluster = ProducerCluster(ClusterSettings(data_folder=folder, **asked))
            stack.callback(cluster.stop)
            return cluster

        yield make

"""Fixtures of the relay's tests: clusters, and relays that follow them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.relay.thread import Relay
from tests.relay.following import relay_settings, users


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., ProducerCluster]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> ProducerCluster:
            chosen = {"vbuckets": 8, "users": users(), "seed": 7, **settings}
            return stack.enter_context(ProducerCluster(ClusterSettings(**chosen)))

        yield make


@pytest.fixture
def make_relay(tmp_path: Path) -> Iterator[Callable[..., Relay]]:
    """Relays end before their clusters do, in whatever order they were made."""
    with ExitStack() as stack:

        def make(cluster: ProducerCluster, **settings: Any) -> Relay:
            folder = settings.pop("data_folder", tmp_path / "relay")
            return stack.enter_context(Relay(relay_settings(cluster, folder, **settings)))

        yield make

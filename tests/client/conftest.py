"""Fixtures of the client's tests: producers that are stopped, whatever happens."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.client.drained import USERS

MakeCluster = Callable[..., ProducerCluster]


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Return a function that starts a producer cluster of few vbuckets, seeded."""
    with ExitStack() as stack:

        def make(**settings: Any) -> ProducerCluster:
            chosen = {"vbuckets": 8, "users": USERS, "seed": 7, **settings}
            return stack.enter_context(ProducerCluster(ClusterSettings(**chosen)))

        yield make

"""The names of connections, as a server shows them: readable, plain, never the same."""

import os
from itertools import repeat
from socket import gethostname

import pytest

from dcp.client import connection_names
from dcp.client.connection_names import unique_name
from dcp.client.consumer import Consumer
from dcp.wire.vocabulary import MAX_CONNECTION_NAME_BYTES
from tests.client.conftest import MakeCluster
from tests.client.consuming import settings, starts
from tests.client.drained import CREDENTIALS, Drained, caught_up, fill


def test_a_server_shows_product_bucket_host_process_and_number(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    prefix = "dcplake-0a1b2c3d-r7-t2.0"
    with Consumer(starts(cluster), cluster.seeds, settings(), CREDENTIALS, prefix) as consumer:
        Drained().run(consumer, caught_up(cluster))
        with cluster.bucket.lock:
            names = [name.decode() for _, name in cluster.bucket.dcp_connections]
    assert len(set(names)) == 2
    host = gethostname().partition(".")[0]
    for name in names:
        assert name.startswith(f"{prefix}:default:{host}:{os.getpid()}:")
        assert name.rpartition(":")[2].partition("-")[0].isdecimal()


def test_containers_of_one_host_name_and_process_id_have_other_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_names, "_numbers", repeat(1))
    assert len({unique_name("dcplake", "travel") for _ in range(1000)}) == 1000


def test_long_and_odd_names_of_buckets_and_hosts_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        connection_names, "gethostname", lambda: 'h{"ö' + "x" * 200 + ".example.com"
    )
    name = unique_name("dcplake-0a1b2c3d-r123456-t4095.12", "bücket" + "%" * 100)
    assert len(name) <= MAX_CONNECTION_NAME_BYTES
    assert name.isascii()
    assert not set(name) & set('{}"')
    assert ":b_cket%" in name
    assert "example" not in name

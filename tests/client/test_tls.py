"""TLS to the real producer: encrypted delivery, moves by the map, certificates not trusted."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.consumer import Consumer
from dcp.client.settings import ConnectionSettings
from dcp.errors import NodeUnavailableError
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.position import Position
from dcp.tls_settings import TlsSettings
from tests.client.conftest import MakeCluster
from tests.client.consuming import settings, starts
from tests.client.drained import CREDENTIALS, Drained, assert_same_state, caught_up, fill
from tests.producer.tls import CERTIFICATE, TLS_FILES

TRUSTING = TlsSettings(CERTIFICATE)


def first_node(cluster: ProducerCluster) -> NodeAddress:
    return NodeAddress.parse(cluster.tls_seeds[0])


def test_delivers_over_tls(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2, tls=TLS_FILES)
    fill(cluster, 2000, value_bytes=1000)
    chosen = ConnectionSettings(
        "default",
        window_bytes=100_000,
        read_buffer_bytes=5000,  # less than a TLS record, so that OpenSSL holds bytes back
        tls=TRUSTING,
    )
    connection = NodeConnection(first_node(cluster), chosen, CREDENTIALS, "tls")
    connection.open()
    try:
        for vbucket in range(2):
            connection.open_stream(vbucket, Position.beginning())
        assert_same_state(cluster, Drained().run(connection, caught_up(cluster)))
    finally:
        connection.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda cluster: cluster.move_vbucket(0, 1),
        lambda cluster: cluster.failover(0),
    ],
    ids=["move", "failover"],
)
def test_a_consumer_stays_encrypted_when_the_map_changes(
    make_cluster: MakeCluster, change: Callable[[ProducerCluster], None]
) -> None:
    cluster = make_cluster(nodes=2, vbuckets=4, replicas=1, tls=TLS_FILES)
    fill(cluster, 100)
    cluster.wait_until_replicated()
    streams = [
        replace(
            start,
            address=NodeAddress.parse(cluster.tls_seeds[cluster.vbucket_owner(start.vbucket)]),
        )
        for start in starts(cluster)
    ]
    chosen = settings(tls=TRUSTING)
    with Consumer(streams, cluster.tls_seeds, chosen, CREDENTIALS, "tls", Random(5)) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        change(cluster)
        fill(cluster, 50)
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)


def test_a_certificate_that_is_not_trusted_is_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(tls=TLS_FILES)
    chosen = ConnectionSettings("default", tls=TlsSettings())
    connection = NodeConnection(first_node(cluster), chosen, CREDENTIALS, "tls")
    with pytest.raises(NodeUnavailableError, match=r"TLS handshake with .* certificate verify"):
        connection.open()

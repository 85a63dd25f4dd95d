"""Common parts of the relay's tests: settings, consumers behind it, and the comparison of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.vbucket_track import StreamStart
from dcp.producer.cluster import ProducerCluster
from dcp.relay.settings import RelaySettings
from dcp.relay.thread import Relay
from tests.client.connecting import START
from tests.client.consuming import settings as consumer_settings
from tests.client.drained import CREDENTIALS, USERS, Drained, all_of, wait_for


def users() -> dict[str, str]:
    return {"Administrator": "password", **USERS}


def relay_settings(cluster: ProducerCluster, folder: Path, **changed: Any) -> RelaySettings:
    chosen: dict[str, Any] = {
        "upstream": tuple(cluster.seeds),
        "listen": "127.0.0.1:0",
        "bucket": "default",
        "credentials": CREDENTIALS,
        "data_folder": folder,
        "users": users(),
        "flush_seconds": 0.02,
        "consumer_ack_seconds": 0.5,
    }
    return RelaySettings(**(chosen | changed))


@contextmanager
def behind(
    relay: Relay, drained: Drained | None = None, *, name: str = "test", **connection: object
) -> Iterator[Consumer]:
    """A consumer of all vbuckets of a relay, from where ``drained`` stands."""
    positions = drained.positions if drained else {}
    (seed,) = relay.seeds
    streams = [
        StreamStart(v, NodeAddress.parse(seed), positions.get(v, START))
        for v in range(relay.bucket.settings.vbuckets)
    ]
    chosen = consumer_settings(**connection)  # type: ignore[arg-type]
    with Consumer(streams, [seed], chosen, CREDENTIALS, name, Random(5)) as consumer:
        yield consumer


def is_level(cluster: ProducerCluster, relay: Relay) -> bool:
    """Whether the relay holds all that the cluster does, under the same failover logs."""
    with relay.bucket.lock:
        for vbucket in all_of(cluster):
            replica = relay.relay_bucket.replica(vbucket)
            high = cluster.high_seqno(vbucket)
            if not replica.high_seqno == replica.complete_seqno == high:
                return False
            if high and replica.vbucket.failover_log != cluster.failover_log(vbucket):
                return False
    return True


def wait_until_level(cluster: ProducerCluster, relay: Relay) -> None:
    wait_for("the relay is level", lambda: is_level(cluster, relay), 90.0)

"""A consumer of a producer's cluster, for the tests: its settings, its streams, and the nodes."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.settings import ConnectionSettings, ConsumerSettings
from dcp.client.vbucket_track import StreamStart
from dcp.producer.cluster import ProducerCluster
from tests.client.connecting import START
from tests.client.drained import CREDENTIALS, PATIENCE_SECONDS, Drained, all_of


def settings(
    *,
    bucket: str = "default",
    node_deadline_seconds: float = PATIENCE_SECONDS,
    **connection: object,
) -> ConsumerSettings:
    return ConsumerSettings(
        ConnectionSettings(bucket, **connection),  # type: ignore[arg-type]
        node_deadline_seconds=node_deadline_seconds,
        retry_first_seconds=0.01,
        retry_cap_seconds=0.1,
    )


def starts(cluster: ProducerCluster, drained: Drained | None = None) -> list[StreamStart]:
    """Streams of all vbuckets from where ``drained`` stands, at their owners."""
    positions = drained.positions if drained else {}
    return [
        StreamStart(
            vbucket,
            NodeAddress.parse(cluster.seeds[cluster.vbucket_owner(vbucket)]),
            positions.get(vbucket, START),
        )
        for vbucket in all_of(cluster)
    ]


@contextmanager
def consuming(
    cluster: ProducerCluster,
    streams: list[StreamStart] | None = None,
    chosen: ConsumerSettings | None = None,
) -> Iterator[Consumer]:
    with Consumer(
        starts(cluster) if streams is None else streams,
        cluster.seeds,
        chosen or settings(),
        CREDENTIALS,
        "test",
        Random(5),
    ) as consumer:
        yield consumer


PATIENT = {"last_words_seconds": 60.0}
"""A cluster with it lets a slow machine read what was sent before a cut."""


def assert_nothing_sent_twice(cluster: ProducerCluster, drained: Drained) -> None:
    """The producer sent exactly what was delivered, in that order: nothing again, nothing lost.

    After a cut this needs a cluster with `PATIENT`.
    """
    assert drained.seqnos == cluster.counters().seqnos_sent


def owned(cluster: ProducerCluster, node: int) -> list[int]:
    return [vbucket for vbucket in all_of(cluster) if cluster.vbucket_owner(vbucket) == node]


def node_addresses(cluster: ProducerCluster) -> list[NodeAddress]:
    return [NodeAddress.parse(seed) for seed in cluster.seeds]

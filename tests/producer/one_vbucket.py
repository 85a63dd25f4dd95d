"""Helpers of tests with a cluster of one vbucket, and with the messages of its streams."""

from collections.abc import Iterable

from dcp.producer.cluster import ProducerCluster
from dcp.wire import messages as m


def flush(cluster: ProducerCluster) -> None:
    """Write what waits for the disk."""
    with cluster.bucket.lock:
        cluster.bucket.vbuckets[0].data.persistence.flush()


def forget(cluster: ProducerCluster) -> None:
    """Let checkpoints have nothing of what is on disk and was read by everybody."""
    cluster.bucket.vbuckets[0].data.checkpoints.expel()


def seqnos_of(messages: Iterable[m.Body]) -> list[int]:
    """Return the seqnos of the documents among some messages."""
    return [body.by_seqno for body in messages if isinstance(body, m.Mutation | m.Deletion)]

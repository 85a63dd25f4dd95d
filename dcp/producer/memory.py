"""Reads the memory of a producer's process, and computes the bound that its load gives it."""

import psutil

from dcp.producer.figures import ProducerFigures
from dcp.server.bucket.assembly import Bucket
from dcp.server.commands.memory_formula import (
    FIXED_BYTES,
    MESSAGES_IN_WORK,
    Load,
    checkpoints_bytes,
    clients_bytes,
    documents_bytes,
    keys_of,
)


def producer_figures(bucket: Bucket, node: int, *, records_branches: bool) -> ProducerFigures:
    resident_bytes = psutil.Process().memory_info().rss
    if bucket.map.node_count > 1 or records_branches:
        return ProducerFigures(resident_bytes)
    return ProducerFigures(resident_bytes, _bound_bytes(bucket, node))


def _bound_bytes(bucket: Bucket, node: int) -> int:
    """Return the bound of docs/reference/memory.md."""
    settings = bucket.settings
    vbuckets = bucket.table.of_node(node)
    connections = bucket.dcp_connections.values()
    disk_log_bytes = sum(vbucket.data.disk.size_bytes for vbucket in vbuckets)
    unwritten_bytes = sum(vbucket.data.persistence.unwritten_bytes for vbucket in vbuckets)
    load = Load(
        *keys_of([vbucket.data.newest for vbucket in vbuckets]),
        connections=max(1, bucket.clients.connections),
        streams=sum(len(each.streams) for each in connections),
    )
    return producer_bytes(
        load,
        checkpoint_quota_bytes=settings.checkpoint_quota_bytes,
        # Every value is in a disk log, or still waits for it.
        values_bytes=disk_log_bytes + unwritten_bytes,
        disk_log_bytes=0 if settings.data_folder is not None else disk_log_bytes,
    )


def producer_bytes(
    load: Load, *, checkpoint_quota_bytes: int, values_bytes: int, disk_log_bytes: int = 0
) -> int:
    """Return the most memory that a producer with one node takes.

    ``values_bytes`` is the size of all values. ``disk_log_bytes`` is the size of the disk logs if
    they are in memory, else 0.
    """
    return (
        FIXED_BYTES
        + documents_bytes(load)
        + values_bytes
        + disk_log_bytes
        + checkpoints_bytes(checkpoint_quota_bytes, takes_writes=True)
        + clients_bytes(load)
        # Each connection can write a document of the largest size at the same time.
        + (MESSAGES_IN_WORK + 2 * load.connections) * load.largest_bytes
    )

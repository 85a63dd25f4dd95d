"""Groups of statistics that STAT answers, named as kv_engine names them.

A group is walked through while the client reads it, and much may happen meanwhile: it copies what
it goes over, and says of each thing how that is when its turn comes.
"""

from collections.abc import Callable, Iterator
from typing import Final

from dcp.producer.bucket import Bucket

Statistic = tuple[str, int | str]


def general(bucket: Bucket, node: int) -> Iterator[Statistic]:
    """Return what a node is and how much it holds."""
    owned = [bucket.vbuckets[vbucket] for vbucket in bucket.map.vbuckets_of(node)]
    yield "bucket", bucket.name
    yield "vb_active_num", len(owned)
    yield "curr_versions", sum(v.data.high_seqno - v.data.base_seqno for v in owned)


def vbucket_seqnos(bucket: Bucket, node: int) -> Iterator[Statistic]:
    """Return seqnos and branch of every vbucket of the node."""
    for vbucket in bucket.map.vbuckets_of(node):
        state = bucket.vbuckets[vbucket]
        yield f"vb_{vbucket}:high_seqno", state.data.high_seqno
        yield f"vb_{vbucket}:last_persisted_seqno", state.data.persisted_seqno
        yield f"vb_{vbucket}:purge_seqno", state.data.purge_seqno
        yield f"vb_{vbucket}:uuid", state.failover_log.current_uuid


def vbucket_states(bucket: Bucket, node: int) -> Iterator[Statistic]:
    """Return the state of every vbucket of the node."""
    for vbucket in bucket.map.vbuckets_of(node):
        yield f"vb_{vbucket}", bucket.vbuckets[vbucket].state.name.lower()


def failovers(bucket: Bucket, node: int) -> Iterator[Statistic]:
    """Return the failover log of every vbucket of the node."""
    for vbucket in bucket.map.vbuckets_of(node):
        entries = bucket.vbuckets[vbucket].failover_log.entries
        yield f"vb_{vbucket}:num_entries", len(entries)
        for index, entry in enumerate(entries):
            yield f"vb_{vbucket}:{index}:id", entry.vb_uuid
            yield f"vb_{vbucket}:{index}:seq", entry.seqno


def dcp(bucket: Bucket, node: int) -> Iterator[Statistic]:
    """Return flow control and streams of every DCP connection to the node."""
    own = {name: each for (at, name), each in bucket.dcp_connections.items() if at == node}
    yield "ep_dcp_producer_count", len(own)
    for name, connection in own.items():
        prefix = "eq_dcpq:" + name.decode("utf-8", "replace")
        flow = connection.flow
        yield f"{prefix}:flow_control", "enabled" if flow.window_bytes else "disabled"
        if flow.window_bytes:
            yield f"{prefix}:max_buffer_bytes", flow.window_bytes
            yield f"{prefix}:unacked_bytes", flow.outstanding_bytes
        yield f"{prefix}:total_bytes_sent", connection.bytes_sent
        yield f"{prefix}:num_streams", len(connection.streams)
        for (vbucket, _), stream in list(connection.streams.items()):
            yield f"{prefix}:stream_{vbucket}_last_sent_seqno", stream.sent_seqno
            yield f"{prefix}:stream_{vbucket}_end_seqno", stream.end_seqno


STATISTICS: Final[dict[bytes, Callable[[Bucket, int], Iterator[Statistic]]]] = {
    b"": general,
    b"vbucket": vbucket_states,
    b"vbucket-seqno": vbucket_seqnos,
    b"failovers": failovers,
    b"dcp": dcp,
}

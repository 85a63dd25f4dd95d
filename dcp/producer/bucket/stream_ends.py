"""The end of what streams of a vbucket: it changed its state, went back, or left its node."""

from typing import TYPE_CHECKING

from dcp.wire.vocabulary import EndReason

if TYPE_CHECKING:
    from dcp.producer.bucket.bucket import Bucket
    from dcp.producer.streams.stream import ActiveStream


def end_streams(
    bucket: "Bucket",
    vbucket: int,
    node: int | None = None,
    *,
    reason: EndReason = EndReason.STATE_CHANGED,
    spared: "ActiveStream | None" = None,
) -> None:
    """End the streams of what a node (None: the owner) has of a vbucket, but for one."""
    at = bucket.map.owner(vbucket) if node is None else node
    for connection in list(bucket.dcp_connections.values()):
        if connection.key[0] == at:
            connection.end_streams(vbucket, reason, spared)
    bucket.changed(vbucket)

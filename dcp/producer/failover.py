"""Failover and crash: all vbuckets of a node continue, each on a new branch.

Call these functions under the bucket's lock.
"""

import logging

from dcp.producer.bucket import ProducerBucket
from dcp.producer.promotion import prepare, promote, promotion_of, undo
from dcp.wire.vocabulary import VbucketState

_LOGGER = logging.getLogger(__name__)


def fail_over(bucket: ProducerBucket, node: int) -> None:
    """Take ``node`` out of the cluster and promote the replicas of its vbuckets.

    Each vbucket continues at the next running node with a replica.

    Raises:
        ValueError: no such node, it was failed over, no other node runs, or no running node has
            a replica of a vbucket.
        OSError: the data folder cannot be written; nothing has changed.
    """
    _require_member(bucket, node)
    others = set(range(bucket.map.node_count)) - bucket.map.down_nodes - {node}
    if not any(bucket.map.is_member(other) for other in others):
        name = bucket.map.name_of(node)
        raise ValueError(f"failover of {name}: found no other running node to take its place")
    heirs = bucket.replica_progress.heirs_of(node)
    prepare(bucket, heirs, lambda each: promotion_of(bucket.vbuckets[each].unmoved_state))
    try:
        with bucket.promoting_replicas(heirs):
            bucket.map.fail_over(node, heirs)
    except BaseException:
        undo(bucket, heirs)
        raise
    # The map is saved, so the failover has happened, even if the disk refuses later writes.
    for vbucket, heir in heirs.items():
        try:
            _continue_at(bucket, vbucket, node, heir)
        except OSError as error:
            _LOGGER.warning("failover of %s: %s", bucket.map.name_of(node), error)
    bucket.replicas.follow(bucket.map)


def _continue_at(bucket: ProducerBucket, vbucket: int, node: int, heir: int) -> None:
    # Streams end before the vbucket takes writes on its new branch.
    for each in (node, heir):
        bucket.dcp_connections.end_streams(vbucket, each)
    promote(bucket, vbucket, heir, promotion_of(bucket.vbuckets[vbucket].unmoved_state))


def crash(bucket: ProducerBucket, node: int, lost_seqnos: int | None = None) -> None:
    """Restart ``node`` with the items on its disk, or without its ``lost_seqnos`` newest seqnos.

    Raises:
        ValueError: no such node, it was failed over, or ``lost_seqnos`` is negative.
    """
    _require_member(bucket, node)
    if lost_seqnos is not None and lost_seqnos < 0:
        raise ValueError(f"crash: found {lost_seqnos} lost seqnos, expected 0 or more")
    for vbucket in bucket.map.vbuckets_of(node):
        if bucket.vbuckets[vbucket].state is VbucketState.ACTIVE:
            bucket.vbuckets[vbucket].crash(lost_seqnos)
            bucket.writers[vbucket].rewind()
        bucket.follow_change(bucket.vbuckets[vbucket])


def _require_member(bucket: ProducerBucket, node: int) -> None:
    bucket.map.require_node(node)
    if not bucket.map.is_member(node):
        raise ValueError(
            f"{bucket.map.name_of(node)}: it was failed over and is no member of the cluster"
        )

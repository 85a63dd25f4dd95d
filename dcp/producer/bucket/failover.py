"""Failover and crash: all vbuckets of a node go on, each on a branch of its own.

Functions on the bucket, under its lock.
"""

import logging

from dcp.producer.bucket.bucket import Bucket
from dcp.producer.bucket.bucket_states import follow_change, give_back, leave
from dcp.producer.bucket.promotion import prepare, promote, promotion_of, undo
from dcp.wire.vocabulary import VbucketState

_LOG = logging.getLogger(__name__)


def fail_over(bucket: Bucket, node: int) -> None:
    """Take ``node`` out of the cluster and promote the replicas of its vbuckets.

    The replica of a vbucket is on the next living node. Where there are copies, on the next living
    node that has one: it goes on with what was really there. Once the map is saved it has happened,
    whatever the disk refuses then.

    Raises:
        ValueError: no such node, one that was failed over, or none is left to take its place.
        OSError: the data folder cannot be written; nothing has changed.
    """
    _require_member(bucket, node)
    count = bucket.map.node_count
    living = [
        other
        for other in ((node + step) % count for step in range(1, count))
        if bucket.map.is_member(other) and other not in bucket.map.dead_nodes
    ]
    if not living:
        name = bucket.map.name_of(node)
        raise ValueError(f"failover of {name}: found no other living node to take its place")
    heirs = bucket.replicas.heirs_of(node, living)
    copied = {v: heir for v, heir in heirs.items() if bucket.replicas.copy_at(v, heir) is not None}
    prepare(bucket, copied, lambda each: promotion_of(bucket.vbuckets[each].unmoved_state))
    try:
        with bucket.promoting_copies(heirs):
            bucket.map.fail_over(node, heirs)
    except BaseException:
        undo(bucket, copied)
        raise
    for vbucket, heir in heirs.items():
        try:
            _go_on(bucket, vbucket, node, heir)
        except OSError as error:
            _LOG.warning("failover of %s: %s", bucket.map.name_of(node), error)
    bucket.copies.follow(bucket.map)


def _go_on(bucket: Bucket, vbucket: int, node: int, heir: int) -> None:
    """Let a vbucket go on at its heir; streams end before it is written to on a new branch."""
    for each in (node, heir):
        bucket.dcp_connections.end_streams(vbucket, each)
    if bucket.replicas.copy_at(vbucket, heir) is not None:
        promote(bucket, vbucket, heir, promotion_of(bucket.vbuckets[vbucket].unmoved_state))
    else:
        give_back(bucket, vbucket)
        here = bucket.vbuckets[vbucket]
        if here.state is VbucketState.ACTIVE:
            bucket.replicas.cut(vbucket)
        follow_change(bucket, here, heir)
    in_vain = bucket.copies.at(heir, vbucket)
    if in_vain is not None:  # it was being filled, and the vbucket itself goes on there
        leave(bucket, in_vain, heir)


def crash(bucket: Bucket, node: int, lost_seqnos: int | None = None) -> None:
    """Restart ``node`` with what its disk has; ``lost_seqnos`` says how much that lacks.

    Raises:
        ValueError: no such node, one that was failed over, or fewer than 0 seqnos.
    """
    _require_member(bucket, node)
    if lost_seqnos is not None and lost_seqnos < 0:
        raise ValueError(f"crash: found {lost_seqnos} lost seqnos, expected 0 or more")
    for vbucket in bucket.map.vbuckets_of(node):
        if bucket.vbuckets[vbucket].state is VbucketState.ACTIVE:
            bucket.vbuckets[vbucket].crash(lost_seqnos)
        follow_change(bucket, bucket.vbuckets[vbucket])


def _require_member(bucket: Bucket, node: int) -> None:
    bucket.map.require_node(node)
    if not bucket.map.is_member(node):
        raise ValueError(
            f"{bucket.map.name_of(node)}: it was failed over and is no member any more"
        )

"""The copies of a vbucket that a sync write counts on: the active first, then its replicas.

A cluster of one node has no replicas. In a larger one each vbucket has one: the one that a failover
would promote, as far as it has come (``Vbucket.replica_seqno``); it persists what it holds. With
no other node in the cluster nobody is there to be it; where the others are down, it acknowledges
nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dcp.producer.bucket import Bucket


class Copy(NamedTuple):
    """How far one copy of a vbucket has come."""

    held_seqno: int
    persisted_seqno: int


Chain = Sequence[Copy | None]
"""All copies that there should be, the active first; None is one that no node has."""


def majority_of(chain: Chain) -> int:
    """Return how many copies are more than half of them."""
    return len(chain) // 2 + 1


def is_possible(chain: Chain) -> bool:
    """Whether enough copies exist for a sync write to be committed ever."""
    return sum(copy is not None for copy in chain) >= majority_of(chain)


def chain_of(bucket: "Bucket", vbucket: int) -> Chain:
    """Return the copies of a vbucket as they are now."""
    state = bucket.vbuckets[vbucket]
    active = Copy(state.data.high_seqno, state.data.persisted_seqno)
    count = bucket.map.node_count
    if count == 1:
        return (active,)
    owner = bucket.map.owner(vbucket)
    others = [node for node in range(count) if node != owner and bucket.map.is_member(node)]
    if not others:
        return active, None
    held = 0 if bucket.dead_nodes.issuperset(others) else state.replica_seqno
    return active, Copy(held, held)

"""The copies of a vbucket that a sync write counts on: the active first, then its replicas.

With ``ClusterSettings.replicas`` these are the copies that the map names, as far as they said on
their connections that they hold prepares: DCP_SEQNO_ACKNOWLEDGED, which a copy sends for whole
snapshots (``acknowledgements.py``). A connection that is lost takes its word along; the next one
says it again. Else a replica is a distance: a cluster of one node has none, in a larger one each
vbucket has one, the one that a failover would promote, as far as it has come
(``Vbucket.replica_seqno``); it persists what it holds. With no other node in the cluster nobody is
there to be it. A node that is down acknowledges nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from dcp.producer.bucket import Bucket

REPLICATION: Final = "replication"
TAKEOVER: Final = "replication:takeover"
_PURPOSES: Final = (REPLICATION, TAKEOVER)


def connection_name(source: int, target: int, bucket: str, purpose: str = REPLICATION) -> str:
    """Return the name of the connection by which one node receives copies from another."""
    return f"{purpose}:node{source + 1}->node{target + 1}:{bucket}"


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
    if bucket.map.replica_count:
        return (active, *_copies_of(bucket, vbucket))
    count = bucket.map.node_count
    if count == 1:
        return (active,)
    owner = bucket.map.owner(vbucket)
    others = [node for node in range(count) if node != owner and bucket.map.is_member(node)]
    if not others:
        return active, None
    held = 0 if bucket.dead_nodes.issuperset(others) else state.replica_seqno
    return active, Copy(held, held)


def _copies_of(bucket: "Bucket", vbucket: int) -> Sequence[Copy | None]:
    found: list[Copy | None] = []
    for node in bucket.map.replicas(vbucket):
        seqno = max(_acknowledged(bucket, vbucket, node, purpose) for purpose in _PURPOSES)
        found.append(Copy(seqno, seqno))  # it says so only of what is where it must be
    return found + [None] * (bucket.map.replica_count - len(found))


def _acknowledged(bucket: "Bucket", vbucket: int, node: int, purpose: str) -> int:
    owner = bucket.map.owner(vbucket)
    if owner is None:
        return 0
    name = connection_name(owner, node, bucket.name, purpose)
    connection = bucket.dcp_connections.get((owner, name.encode()))
    if connection is None or not connection.is_internal:  # anybody may take the name
        return 0
    return connection.acknowledged(vbucket)

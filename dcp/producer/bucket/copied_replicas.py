"""Replicas that are copies on other nodes, with ``ClusterSettings.replicas``; see ``copies.py``.

For durable writes a copy is as far as it said on its connection that it holds prepares:
DCP_SEQNO_ACKNOWLEDGED, which it sends for whole snapshots (``acknowledgements.py``). A connection
that is lost takes its word along; the next one says it again.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dcp.producer.bucket.bucket_states import follow_change, give_back
from dcp.producer.bucket.promotion import (
    heirs_of,
    living_copies,
    prepare,
    promote,
    promotion_of,
    undo,
)
from dcp.producer.vbucket.replication_chain import REPLICATION, TAKEOVER, Copy, connection_name
from dcp.wire.vocabulary import VbucketState

if TYPE_CHECKING:
    from dcp.producer.bucket.bucket import Bucket

_PURPOSES: Final = (REPLICATION, TAKEOVER)


class CopiedReplicas:
    """The copies that the map names; see ``Replicas``."""

    def __init__(self, bucket: "Bucket") -> None:
        self._bucket = bucket
        self.is_paused = False
        """Feeds follow it: ``replication.py``."""

    def behind(self, vbucket: int) -> Sequence[Copy | None]:
        """Return what the copies acknowledged; None is one that there is no node for."""
        found: list[Copy | None] = []
        for node in self._bucket.map.replicas(vbucket):
            seqno = max(self._acknowledged(vbucket, node, purpose) for purpose in _PURPOSES)
            found.append(Copy(seqno, seqno))  # it says so only of what is where it must be
        return found + [None] * (self._bucket.map.replica_count - len(found))

    def _acknowledged(self, vbucket: int, node: int, purpose: str) -> int:
        owner = self._bucket.map.owner(vbucket)
        if owner is None:
            return 0
        name = connection_name(owner, node, self._bucket.name, purpose)
        connection = self._bucket.dcp_connections.get((owner, name.encode()))
        if connection is None or not connection.is_internal:  # anybody may take the name
            return 0
        return connection.acknowledged(vbucket)

    def kept_seqno(self, vbucket: int) -> int:
        """Return what the copy that would be promoted holds whole; 0 where none lives here."""
        copy = next((copy for _, copy in living_copies(self._bucket, vbucket)), None)
        return 0 if copy is None else copy.consistent_seqno

    def wants_back(self, _: int) -> bool:
        """Never: copies hold themselves what they would go on from."""
        return False

    def heirs_of(self, node: int, _: Sequence[int]) -> dict[int, int]:
        """Return the next living nodes that have a copy of what the node holds."""
        return heirs_of(self._bucket, node)

    def prepare(self, heirs: Mapping[int, int]) -> None:
        """Have the copies on disk as the vbuckets that they are to be."""
        vbuckets = self._bucket.vbuckets
        prepare(self._bucket, heirs, lambda each: promotion_of(vbuckets[each].unmoved_state))

    def undo(self, heirs: Mapping[int, int]) -> None:
        """Let them be copies again."""
        undo(self._bucket, heirs)

    def promote(self, vbucket: int, node: int, state: VbucketState) -> None:
        """Let the copy go on, from its last whole snapshot; without one there, what is here."""
        if self._bucket.copies.at(node, vbucket) is not None:
            promote(self._bucket, vbucket, node, promotion_of(state))
            return
        give_back(self._bucket, vbucket)
        here = self._bucket.vbuckets[vbucket]
        if here.state is VbucketState.ACTIVE:
            here.go_back(here.data.high_seqno, here.data.high_seqno)
        follow_change(self._bucket, here, node)

    def pause(self) -> None:
        """Let feeds end; copies stay at what they hold."""
        self.is_paused = True

    def resume(self) -> None:
        """Let feeds begin again."""
        self.is_paused = False

    def branched(self, _: int) -> None:
        """Do nothing: feeds begin anew, and copies go back as they are told."""

    def forget(self, _: int) -> None:
        """Do nothing: a copy of something else is told to go back, too."""


def lagging_copy(bucket: "Bucket") -> str | None:
    """Say which copy on a living node lacks what its active, on a living node, holds; or None."""
    for vbucket, owner in enumerate(bucket.map.owners):
        active = bucket.vbuckets[vbucket]
        if owner in bucket.dead_nodes or active.state is not VbucketState.ACTIVE:
            continue
        is_empty = active.data.high_seqno == active.data.base_seqno
        wanted = 0 if is_empty else active.data.high_seqno
        for node, copy in living_copies(bucket, vbucket):
            has_all = copy.high_seqno == wanted == copy.consistent_seqno
            if not (has_all and copy.vbucket.failover_log == active.failover_log):
                return (
                    f"the copy of vbucket {vbucket} on {bucket.map.name_of(node)} holds seqno "
                    f"{copy.high_seqno} (whole up to {copy.consistent_seqno}), expected {wanted}"
                )
    return None

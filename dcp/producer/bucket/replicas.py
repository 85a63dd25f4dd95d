"""What a bucket's replicas are: real copies on other nodes, or a distance behind the active.

``ClusterSettings.replicas`` decides which, once, when the bucket is made; everything else asks
through this one interface. Used under the bucket's lock.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from dcp.producer.bucket.copied_replicas import CopiedReplicas
from dcp.producer.bucket.distant_replicas import DistantReplicas
from dcp.producer.vbucket.replication_chain import Copy
from dcp.wire.vocabulary import VbucketState

if TYPE_CHECKING:
    from dcp.producer.bucket.bucket import Bucket


class Replicas(Protocol):
    """The replicas of all vbuckets of a bucket."""

    is_paused: bool
    """Whether they stand still at what they hold."""

    def behind(self, vbucket: int) -> Sequence[Copy | None]:
        """Return how far a vbucket's replicas are, for durable writes; None is an absent one."""

    def kept_seqno(self, vbucket: int) -> int:
        """Return the newest seqno that a failover would keep."""

    def wants_back(self, vbucket: int) -> bool:
        """Whether an older state than the newest may be gone back to: it must stay."""

    def heirs_of(self, node: int, living: Sequence[int]) -> dict[int, int]:
        """Return the node that goes on for each of a node's vbuckets; ``living`` are all others.

        Raises:
            ValueError: no node can, for one of them.
        """

    def prepare(self, heirs: Mapping[int, int]) -> None:
        """Have on disk what is to be the vbuckets, each at a node; ``promote`` or ``undo`` follows.

        Raises:
            OSError: the disk cannot be written; nothing has changed.
        """

    def undo(self, heirs: Mapping[int, int]) -> None:
        """Let what was prepared be replicas again."""

    def promote(self, vbucket: int, node: int, state: VbucketState) -> None:
        """Let a node's replica be the vbucket, which was in ``state``, on a branch of its own."""

    def pause(self) -> None:
        """Let all stand still at what they hold now."""

    def resume(self) -> None:
        """Let all follow again."""

    def branched(self, vbucket: int) -> None:
        """Follow a vbucket that may have lost its newest seqnos just now."""

    def forget(self, vbucket: int) -> None:
        """Begin anew with a vbucket that is another now."""


def replicas_of(bucket: "Bucket") -> Replicas:
    """Return the replicas that the bucket's settings want."""
    return CopiedReplicas(bucket) if bucket.settings.replicas else DistantReplicas(bucket)

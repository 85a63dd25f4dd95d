"""A bucket's replicas: real copies on other nodes, or a distance behind the active.

``ClusterSettings.replicas`` decides which, once, when the bucket is made; everything else asks
through this one interface. What a failover does with them says ``failover.py``. Used under the
bucket's lock.
"""

from collections.abc import Sequence
from typing import Protocol

from dcp.producer.vbucket.replica_copy import ReplicaCopy
from dcp.producer.vbucket.replication_chain import CopyProgress


class Replicas(Protocol):
    """The replicas of all vbuckets of a bucket."""

    is_paused: bool
    """True if they are paused at what they hold."""

    def behind(self, vbucket: int) -> Sequence[CopyProgress | None]:
        """Return how far a vbucket's replicas are, for durable writes; None is an absent one."""

    def kept_seqno(self, vbucket: int) -> int:
        """Return the newest seqno that a failover would keep."""

    def heirs_of(self, node: int, living: Sequence[int]) -> dict[int, int]:
        """Return the node that goes on for each of a node's vbuckets; ``living`` are all others.

        Raises:
            ValueError: no node can, for one of them.
        """

    def copy_at(self, vbucket: int, node: int) -> ReplicaCopy | None:
        """Return the copy that goes on as the vbucket at its heir; None: what is here does."""

    def cut(self, vbucket: int) -> None:
        """Let an active vbucket itself go on, with what the replica holds, on a new branch."""

    def pause(self) -> None:
        """Let all stand still at what they hold now."""

    def resume(self) -> None:
        """Let all follow again."""

    def branched(self, vbucket: int) -> None:
        """Follow a vbucket that may have lost its newest seqnos just now."""

    def forget(self, vbucket: int) -> None:
        """Begin anew with a vbucket that is another now."""

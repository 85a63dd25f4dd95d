"""The interface of the administrative orders that a node passes to its cluster."""

from typing import Protocol

from dcp.server.model.manifest_changes import ManifestChange


class Administrator(Protocol):
    """Carries out administrative commands; nodes are indexes from 0. Refusals raise ValueError."""

    def failover(self, node: int) -> None:
        """Promote the replicas of a node's vbuckets; the node is gone."""

    def kill_node(self, node: int) -> None:
        """Close a node's port and connections."""

    def restore_node(self, node: int) -> None:
        """Bring a node back."""

    @property
    def rebalance_state(self) -> str:
        """``none``, ``running``, or ``failed:`` and why."""

    def add_node(self) -> int:
        """Start a node that owns nothing."""

    def rebalance(self, remove: int | None = None) -> None:
        """Begin to let all nodes own evenly many vbuckets, without one that goes."""

    def pause_replication(self) -> None:
        """Let the replicas stand still."""

    def resume_replication(self) -> None:
        """Let the replicas follow."""

    def change_manifest(self, *changes: ManifestChange) -> None:
        """Change scopes and collections; raises ManifestError for what cannot be."""

"""The interface of the administrative orders that a node passes to its cluster."""

from typing import Protocol

from dcp.server.model.manifest_changes import ManifestChange


class Administrator(Protocol):
    """Carries out administrative orders, which ``ProducerCluster`` documents.

    Nodes are indexes from 0; refusals raise ValueError.
    """

    def failover(self, node: int) -> None: ...

    def kill_node(self, node: int) -> None: ...

    def restore_node(self, node: int) -> None: ...

    @property
    def rebalance_state(self) -> str:
        """``none``, ``running``, or ``failed:`` with the reason."""

    def add_node(self) -> int: ...

    def rebalance(self, remove: int | None = None) -> None: ...

    def pause_replication(self) -> None: ...

    def resume_replication(self) -> None: ...

    def change_manifest(self, *changes: ManifestChange) -> None:
        """Raises ManifestError for an impossible change."""

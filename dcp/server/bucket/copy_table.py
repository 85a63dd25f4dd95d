"""All copies of vbuckets on nodes that do not own them, as the cluster map has them.

Each node has a share of the checkpoint quota for its copies; beyond it the streams of slow clients
go back to the copies' disk, as on an active vbucket.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dcp.protocol.window_policies import SharedWindows, WindowPolicy, WindowPolicySettings
from dcp.server.checkpoints.checkpoint_account import CheckpointAccount
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.model.manifest import Manifest
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.server.vbucket.vbucket import Vbucket

_MIB: Final = 1024 * 1024
_WINDOWS: Final = WindowPolicySettings(
    WindowPolicy.AGGRESSIVE, size_bytes=_MIB, most_bytes=4 * _MIB, aggressive_percent=100
)
_WINDOWS_BYTES: Final = 32 * _MIB
"""What the windows of connections that fill copies share: up to 8 have 4 MiB each, more less."""

NodeVbucket = tuple[int, int]
"""A node and a vbucket."""


class Copies:
    """Copies by place; used under the bucket's lock."""

    def __init__(
        self,
        make: Callable[[int, int], Vbucket],
        drop: Callable[[int, Vbucket], None],
        known_manifest: Callable[[], Manifest],
        quota_bytes: int,
    ) -> None:
        """``make`` returns what a node has of a vbucket, ``drop`` ends what it returned.

        ``quota_bytes`` is what the checkpoints of a node's copies may take.
        """
        self._make: Final = make
        self._drop: Final = drop
        self._known_manifest: Final = known_manifest
        self._quota_bytes: Final = quota_bytes
        self._of: Final[dict[int, dict[int, ReplicaCopy]]] = {}
        self._memory: dict[int, CheckpointAccount] = {}
        self.windows: Final = SharedWindows(_WINDOWS, _WINDOWS_BYTES)
        """Of the connections that fill copies here."""

    def at(self, node: int, vbucket: int) -> ReplicaCopy | None:
        """Return a node's copy of a vbucket, if it has one."""
        return self._of.get(vbucket, {}).get(node)

    def of(self, vbucket: int) -> Iterable[tuple[int, ReplicaCopy]]:
        """Return the nodes that have a copy of a vbucket, with the copies."""
        return self._of.get(vbucket, {}).items()

    def of_node(self, node: int) -> dict[int, ReplicaCopy]:
        """Return the copies on a node by vbucket."""
        return {vbucket: each[node] for vbucket, each in self._of.items() if node in each}

    def all_vbuckets(self) -> list[Vbucket]:
        """Return what all copies hold."""
        return [copy.vbucket for at in self._of.values() for copy in at.values()]

    def add(self, node: int, vbucket: int) -> ReplicaCopy:
        """Return a node's copy of a vbucket, a new and empty one where it has none."""
        copy = self.at(node, vbucket)
        if copy is None:
            copy = ReplicaCopy(self._make(node, vbucket), self._known_manifest)
            self._of.setdefault(vbucket, {})[node] = copy
        return copy

    def take(self, node: int, vbucket: int) -> ReplicaCopy:
        """Remove a copy that is there and return it; nobody fills it any more."""
        copy = self._of[vbucket].pop(node)
        copy.fill_from(None)
        if node in self._memory:
            self._memory[node].forget(vbucket)
        return copy

    def follow(self, cluster_map: ServedClusterMap) -> list[NodeVbucket]:
        """Have the copies that the map names, and those that take over; return what went."""
        gone: list[NodeVbucket] = []
        for vbucket in range(len(cluster_map.owners)):
            wanted = cluster_map.replicas(vbucket)
            for node, copy in list(self.of(vbucket)):
                if node not in wanted and not copy.is_taking_over:
                    self._drop(node, self.take(node, vbucket).vbucket)
                    gone.append((node, vbucket))
            for node in wanted:
                self.add(node, vbucket)
        return gone

    def note_memory(self, node: int, vbucket: int) -> Mapping[int, tuple[str, ...]]:
        """Look at what a copy takes now; return the cursors, by vbucket, that had to go for it."""
        memory = self._memory_on(node)
        memory.note(self._of[vbucket][node].vbucket.data.checkpoints)
        if not memory.is_short:
            return {}
        managers = [copy.vbucket.data.checkpoints for copy in self.of_node(node).values()]
        return memory.recover(managers)

    def memory_of(self, vbucket: Vbucket) -> CheckpointAccount | None:
        """Return where the checkpoints of a copy are counted; None if it is none any more."""
        for node, copy in self.of(vbucket.id):
            if copy.vbucket is vbucket:
                return self._memory_on(node)
        return None

    def _memory_on(self, node: int) -> CheckpointAccount:
        return self._memory.setdefault(node, CheckpointAccount(self._quota_bytes))

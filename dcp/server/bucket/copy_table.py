"""The copies of vbuckets on nodes that do not own them, as the cluster map places them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dcp.protocol.window_policies import SharedWindows, WindowPolicy, WindowPolicySettings
from dcp.server.checkpoints.checkpoint_account import CheckpointAccount
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.model.manifest import Manifest
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.server.vbucket.vbucket_states import Vbucket

_MIB: Final = 1024 * 1024
_WINDOWS: Final = WindowPolicySettings(
    WindowPolicy.AGGRESSIVE, size_bytes=_MIB, most_bytes=4 * _MIB, aggressive_percent=100
)
_WINDOWS_BYTES: Final = 32 * _MIB
"""Sum of the windows of connections that fill copies: up to 8 get 4 MiB each, more get less."""

NodeVbucket = tuple[int, int]
"""Node and vbucket."""


class Copies:
    """Copies by node and vbucket; callers hold the bucket's lock.

    Each node has a share of the checkpoint quota for its copies. Beyond it, streams of slow clients
    read from disk again, as on an active vbucket.
    """

    def __init__(
        self,
        make: Callable[[int, int], Vbucket],
        drop: Callable[[int, Vbucket], None],
        known_manifest: Callable[[], Manifest],
        quota_bytes: int,
    ) -> None:
        """``make`` opens a node's copy of a vbucket; ``drop`` ends a copy that ``make`` returned.

        ``quota_bytes`` limits the checkpoint memory of one node's copies.
        """
        self._make: Final = make
        self._drop: Final = drop
        self._known_manifest: Final = known_manifest
        self._quota_bytes: Final = quota_bytes
        self._of: Final[dict[int, dict[int, ReplicaCopy]]] = {}
        self._memory: dict[int, CheckpointAccount] = {}
        self.windows: Final = SharedWindows(_WINDOWS, _WINDOWS_BYTES)
        """Flow-control windows of the connections that fill copies in this process."""

    def at(self, node: int, vbucket: int) -> ReplicaCopy | None:
        return self._of.get(vbucket, {}).get(node)

    def of(self, vbucket: int) -> Iterable[tuple[int, ReplicaCopy]]:
        return self._of.get(vbucket, {}).items()

    def of_node(self, node: int) -> dict[int, ReplicaCopy]:
        return {vbucket: each[node] for vbucket, each in self._of.items() if node in each}

    def all_vbuckets(self) -> list[Vbucket]:
        return [copy.vbucket for at in self._of.values() for copy in at.values()]

    def add(self, node: int, vbucket: int) -> ReplicaCopy:
        copy = self.at(node, vbucket)
        if copy is None:
            copy = ReplicaCopy(self._make(node, vbucket), self._known_manifest)
            self._of.setdefault(vbucket, {})[node] = copy
        return copy

    def take(self, node: int, vbucket: int) -> ReplicaCopy:
        """Remove a copy, disconnect its source, and return it.

        Raises KeyError if there is no such copy.
        """
        copy = self._of[vbucket].pop(node)
        copy.fill_from(None)
        if node in self._memory:
            self._memory[node].forget(vbucket)
        return copy

    def follow(self, cluster_map: ServedClusterMap) -> list[NodeVbucket]:
        """Create the copies that the map names, drop others, and return the places of dropped ones.

        A copy that is taking its vbucket over stays, although the map does not name it yet.
        """
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
        """Update a copy's memory; return the cursors that were dropped to free some, by vbucket."""
        memory = self._memory_on(node)
        memory.note(self._of[vbucket][node].vbucket.data.checkpoints)
        if not memory.is_short:
            return {}
        # The node's other copies share the quota: recovery looks at all of them.
        managers = [copy.vbucket.data.checkpoints for copy in self.of_node(node).values()]
        return memory.recover(managers)

    def memory_of(self, vbucket: Vbucket) -> CheckpointAccount | None:
        """Return the account of a copy's checkpoint memory; None if the copy was dropped."""
        for node, copy in self.of(vbucket.id):
            if copy.vbucket is vbucket:
                return self._memory_on(node)
        return None

    def _memory_on(self, node: int) -> CheckpointAccount:
        return self._memory.setdefault(node, CheckpointAccount(self._quota_bytes))

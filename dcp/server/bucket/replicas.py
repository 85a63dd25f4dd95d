"""The replicas of vbuckets: on nodes that do not own them, as the cluster map places them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dcp.protocol.window_policies import SharedWindows, WindowPolicy, WindowPolicySettings
from dcp.server.checkpoints.checkpoint_account import CheckpointAccount
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.model.manifest import Manifest
from dcp.server.vbucket.replica import Replica
from dcp.server.vbucket.vbucket_states import Vbucket

_MIB: Final = 1024 * 1024
_WINDOWS: Final = WindowPolicySettings(
    WindowPolicy.AGGRESSIVE, size_bytes=_MIB, most_bytes=4 * _MIB, aggressive_percent=100
)
_WINDOWS_BYTES: Final = 32 * _MIB
"""Sum of the windows of connections that fill replicas: up to 8 get 4 MiB each, more get less."""

NodeVbucket = tuple[int, int]
"""Node and vbucket."""


class Replicas:
    """Replicas by node and vbucket; callers hold the bucket's lock.

    Each node has a share of the checkpoint quota for its replicas. Beyond it, streams of slow
    clients read from disk again, as on an active vbucket.
    """

    def __init__(
        self,
        make: Callable[[int, int], Vbucket],
        drop: Callable[[int, Vbucket], None],
        known_manifest: Callable[[], Manifest],
        quota_bytes: int,
    ) -> None:
        """``make`` opens a node's replica of a vbucket; ``drop`` ends one that ``make`` returned.

        ``quota_bytes`` limits the checkpoint memory of one node's replicas.
        """
        self._make: Final = make
        self._drop: Final = drop
        self._known_manifest: Final = known_manifest
        self._quota_bytes: Final = quota_bytes
        self._of: Final[dict[int, dict[int, Replica]]] = {}
        self._memory: dict[int, CheckpointAccount] = {}
        self.windows: Final = SharedWindows(_WINDOWS, _WINDOWS_BYTES)
        """Flow-control windows of the connections that fill replicas in this process."""

    def at(self, node: int, vbucket: int) -> Replica | None:
        return self._of.get(vbucket, {}).get(node)

    def of(self, vbucket: int) -> Iterable[tuple[int, Replica]]:
        return self._of.get(vbucket, {}).items()

    def of_node(self, node: int) -> dict[int, Replica]:
        return {vbucket: each[node] for vbucket, each in self._of.items() if node in each}

    def all_vbuckets(self) -> list[Vbucket]:
        return [replica.vbucket for at in self._of.values() for replica in at.values()]

    def add(self, node: int, vbucket: int) -> Replica:
        replica = self.at(node, vbucket)
        if replica is None:
            replica = Replica(self._make(node, vbucket), self._known_manifest)
            self._of.setdefault(vbucket, {})[node] = replica
        return replica

    def take(self, node: int, vbucket: int) -> Replica:
        """Remove a replica, end its passive stream, and return it.

        Raises KeyError if there is no such replica.
        """
        replica = self._of[vbucket].pop(node)
        replica.fill_from(None)
        if node in self._memory:
            self._memory[node].forget(vbucket)
        return replica

    def follow(self, cluster_map: ServedClusterMap) -> list[NodeVbucket]:
        """Create the replicas that the map names; drop others, and return their nodes and vbuckets.

        A replica that is taking its vbucket over stays, although the map does not name it yet.
        """
        gone: list[NodeVbucket] = []
        for vbucket in range(len(cluster_map.owners)):
            wanted = cluster_map.replica_nodes(vbucket)
            for node, replica in list(self.of(vbucket)):
                if node not in wanted and not replica.is_taking_over:
                    self._drop(node, self.take(node, vbucket).vbucket)
                    gone.append((node, vbucket))
            for node in wanted:
                self.add(node, vbucket)
        return gone

    def note_memory(self, node: int, vbucket: int) -> Mapping[int, tuple[str, ...]]:
        """Update a replica's memory; return the cursors dropped to free some, by vbucket."""
        memory = self._memory_on(node)
        memory.note(self._of[vbucket][node].vbucket.data.checkpoints)
        if not memory.is_short:
            return {}
        # The node's other replicas share the quota: recovery looks at all of them.
        managers = [replica.vbucket.data.checkpoints for replica in self.of_node(node).values()]
        return memory.recover(managers)

    def memory_of(self, vbucket: Vbucket) -> CheckpointAccount | None:
        """Return the account of a replica's checkpoint memory; None if the replica was dropped."""
        for node, replica in self.of(vbucket.id):
            if replica.vbucket is vbucket:
                return self._memory_on(node)
        return None

    def _memory_on(self, node: int) -> CheckpointAccount:
        return self._memory.setdefault(node, CheckpointAccount(self._quota_bytes))

"""Figures of a relay: of STAT ``relay``, as metrics, and for ``dcplake status`` and ``top``.

Labels are bounded by the groups and the nodes of the cluster that there are. A group is a number,
since consumers come and go: one metric tells which vbuckets are in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from prometheus_client.samples import Sample

from dcp.prometheus import Metrics
from dcp.records import Record, plain
from dcp.server.bucket.node_figures import samples_of

_RELAY: Final[Metrics] = {
    "relay_consumers": "DCP connections.",
    "relay_streams": "Streams of all consumers.",
    "relay_streams_from_disk": "Streams that read old things from the disk.",
    "relay_ejections_total": "Consumers that were waited for, and were stuck.",
    "relay_streams_ejected_total": "The same by vbucket, each time.",
    "relay_newcomers_refused_total": "Streams too far behind to be waited for.",
    "relay_held_bytes": "Bytes not acknowledged: a consumer, or the disk, lacks them.",
    "relay_disk_waiting_bytes": "Bytes received that are not on disk yet.",
    "relay_resident_bytes": "Resident memory of the relay.",
    "relay_memory_bound_bytes": "The most that it takes now (docs/reference/memory.md).",
    "relay_waits_for_disk": "1 while the cluster is held up by the relay's disk.",
}
_GROUPS: Final[Metrics] = {
    "relay_group_info": "1; the vbuckets of a group, by its number.",
    "relay_group_members": "Consumers that a group of vbuckets waits for.",
    "relay_group_required": "How many there must be.",
    "relay_group_is_held": "1 while these vbuckets have no stream, as some lack.",
    "relay_group_held_bytes": "What these vbuckets have received and not freed.",
    "relay_group_gating": "1 for the consumer that a group waits for most.",
}
_NODES: Final[Metrics] = {
    "relay_upstream_is_ready": "1 while there is a connection to the node.",
    "relay_upstream_streams": "Streams from the node.",
    "relay_upstream_window_bytes": "Window of the connection to the node.",
    "relay_upstream_unacked_bytes": "Bytes received and not acknowledged.",
    "relay_upstream_held_bytes": "Bytes received that may not be acknowledged yet.",
    "relay_upstream_acks_total": "Acknowledgements sent.",
    "relay_upstream_acked_bytes_total": "Bytes acknowledged.",
    "relay_upstream_full_seconds_total": "How long the windows were full.",
    "relay_upstream_gating": "1 for the consumer that holds most of the window.",
}


@dataclass(frozen=True, slots=True)
class UpstreamFigures:
    """The connection to a node of the cluster."""

    node: str
    is_ready: bool = False
    trouble: str = ""
    streams: int = 0
    window_bytes: int = 0
    unacked_bytes: int = 0
    held_bytes: int = 0
    acks: int = 0
    acked_bytes: int = 0
    full_seconds: float = 0.0
    waits_for: str = ""
    """The consumer that holds most of the window; empty: none does."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """Vbuckets whose groups have equally many members."""

    vbuckets: str
    members: int = 0
    required: int = 0
    is_held: bool = False
    """The vbuckets have no stream: members lack."""
    held_bytes: int = 0
    waits_for: str = ""
    """The consumer that most of `held_bytes` waits for; empty: none does."""

    def __str__(self) -> str:
        held = ", no stream" if self.is_held else ""
        return f"vbuckets {self.vbuckets}: {self.members} of {self.required} receivers{held}"


@dataclass(frozen=True, slots=True)
class RelayFigures(Record):
    """A relay at one instant."""

    metrics: ClassVar[Metrics] = {**_RELAY, **_GROUPS, **_NODES}

    strategy: str = ""
    """The strategy of ``--fc``, with all its numbers."""
    consumers: int = 0
    streams: int = 0
    streams_from_disk: int = 0
    ejections: int = 0
    """Consumers that were waited for, and were stuck for too long."""
    streams_ejected: int = 0
    """The same by vbucket, each time."""
    newcomers_refused: int = 0
    """Streams too far behind to be waited for."""
    held_bytes: int = 0
    """Received and not acknowledged: somebody is waited for."""
    disk_waiting_bytes: int = 0
    """Received and not on disk yet."""
    disk_trouble: str = ""
    """The vbuckets that cannot be written, and why; empty: all can."""
    waits_for_disk: bool = False
    """The disk holds the cluster up."""
    resident_bytes: int = 0
    memory_bound_bytes: int = 0
    """The most that it takes with its present keys and consumers, for documents of up to 20 MiB, by
    the formula of docs/reference/memory.md.
    """
    groups: tuple[GroupFigures, ...] = ()
    upstream: tuple[UpstreamFigures, ...] = ()

    def rows(self) -> list[tuple[str, Any]]:
        """Return names and values for a table."""
        found = plain(self)
        rows = [(name, value) for name, value in found.items() if not isinstance(value, list)]
        rows += [(f"group {number}", each) for number, each in enumerate(self.groups)]
        for each in found["upstream"]:
            node = each.pop("node")
            rows += [(f"upstream {node} {name}", value) for name, value in each.items()]
        return rows

    def samples(self) -> Iterator[Sample]:
        yield from samples_of("relay", {}, plain(self), _RELAY)
        for number, group in enumerate(self.groups):
            labels = {"group": str(number)}
            yield Sample("relay_group_info", labels | {"vbuckets": group.vbuckets}, 1)
            yield from samples_of("relay_group", labels, plain(group), _GROUPS)
            if group.waits_for:
                yield Sample("relay_group_gating", labels | {"consumer": group.waits_for}, 1)
        for link in self.upstream:
            labels = {"node": link.node}
            yield from samples_of("relay_upstream", labels, plain(link), _NODES)
            if link.waits_for:
                yield Sample("relay_upstream_gating", labels | {"consumer": link.waits_for}, 1)

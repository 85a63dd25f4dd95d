"""The figures of a relay: for STAT ``relay``, for metrics, and for ``dcplake status`` and ``top``.

Labels are bounded by the numbers of groups and of nodes. Consumers come and go, so the label of a
group is its number; one metric lists the group's vbuckets.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from dcp.prometheus import Metrics, metrics
from dcp.records import Record, plain

_METRICS: Final = metrics(
    {},
    """
relay_consumers               consumers           DCP connections.
relay_streams                 streams             Streams of all consumers.
relay_streams_from_disk       streams_from_disk   Streams that read from the relay's disk.
relay_ejections_total         ejections           How often a consumer got stuck.
relay_streams_ejected_total   streams_ejected     How often a vbucket gave up a consumer.
relay_newcomers_refused_total newcomers_refused   Streams that began too far behind to wait for.
relay_unconsumed_bytes        unconsumed_bytes
    Bytes not acknowledged: a consumer or the disk needs them.
relay_disk_waiting_bytes      disk_waiting_bytes  Bytes received that are not on disk yet.
relay_disk_failures           disk_failures       Vbuckets that the relay cannot write to its disk.
relay_resident_bytes          resident_bytes      Resident memory of the relay.
relay_memory_bound_bytes      memory_bound_bytes
    Most memory for this load (docs/reference/memory.md).
relay_waits_for_disk          waits_for_disk      1 while the relay's disk delays the cluster.

relay_group_info       groups[group=number].vbuckets[vbuckets]
    1; the vbuckets of a group, by its number.
relay_group_receivers  groups[group=number].receivers
    Consumers that a group of vbuckets waits for.
relay_group_required   groups[group=number].required
    Consumers that the group must have.
relay_group_lacks_receivers groups[group=number].lacks_receivers
    1 while receivers lack, so that there is no stream.
relay_group_unconsumed_bytes groups[group=number].unconsumed_bytes
    Bytes of these vbuckets received and not acknowledged.
relay_group_waits_for  groups[group=number].waits_for[consumer]
    1 for the consumer that a group waits for most.

relay_upstream_is_ready           upstream[node=node].is_ready
    1 while there is a connection to the node.
relay_upstream_streams            upstream[node=node].streams       Streams from the node.
relay_upstream_window_bytes       upstream[node=node].window_bytes
    Window of the connection to the node.
relay_upstream_unacked_bytes      upstream[node=node].unacked_bytes
    Bytes received and not acknowledged.
relay_upstream_unreleased_bytes   upstream[node=node].unreleased_bytes
    Bytes received that may not be acknowledged yet.
relay_upstream_acks_total         upstream[node=node].acks          Acknowledgements sent.
relay_upstream_acked_bytes_total  upstream[node=node].acked_bytes   Bytes acknowledged.
relay_upstream_full_seconds_total upstream[node=node].full_seconds
    Seconds for which the windows were full.
relay_upstream_waits_for          upstream[node=node].waits_for[consumer]
    1 for the consumer that most of the window waits for.
""",
)


@dataclass(frozen=True, slots=True)
class UpstreamFigures:
    """The connection to a node of the cluster."""

    node: str
    is_ready: bool = False
    trouble: str = ""
    streams: int = 0
    window_bytes: int = 0
    unacked_bytes: int = 0
    unreleased_bytes: int = 0
    acks: int = 0
    acked_bytes: int = 0
    full_seconds: float = 0.0
    waits_for: str = ""
    """The consumer that most of the window waits for; empty if none."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """Vbuckets whose groups have equally many receivers."""

    vbuckets: str
    receivers: int = 0
    required: int = 0
    lacks_receivers: bool = False
    """True if the vbuckets have no stream because receivers are missing."""
    unconsumed_bytes: int = 0
    waits_for: str = ""
    """The consumer that most of ``unconsumed_bytes`` wait for; empty if none."""
    number: int = 0

    def __str__(self) -> str:
        without = ", no stream until they are there" if self.lacks_receivers else ""
        return f"vbuckets {self.vbuckets}: {self.receivers} of {self.required} receivers{without}"


@dataclass(frozen=True, slots=True)
class RelayFigures(Record):
    """A relay at one instant."""

    kind: ClassVar[str] = "relay"
    metrics: ClassVar[Metrics] = _METRICS

    strategy: str = ""
    """The strategy of ``--fc``, with all its numbers."""
    consumers: int = 0
    streams: int = 0
    streams_from_disk: int = 0
    ejections: int = 0
    """How often a consumer got stuck, so that flow control stopped to wait for it."""
    streams_ejected: int = 0
    """The same, counted per vbucket."""
    newcomers_refused: int = 0
    """Streams that began too far behind to be waited for."""
    unconsumed_bytes: int = 0
    """Received and not acknowledged, because a consumer or the disk needs them."""
    disk_waiting_bytes: int = 0
    """Received and not on disk yet."""
    disk_failures: int = 0
    """The number of vbuckets that cannot be written. The cluster waits once much data waits for
    the disk."""
    disk_trouble: str = ""
    """The vbuckets that cannot be written, and the reason; empty if all can."""
    waits_for_disk: bool = False
    """True while the relay's disk delays the cluster."""
    resident_bytes: int = 0
    memory_bound_bytes: int = 0
    """The most memory for the present keys and consumers, with documents of up to 20 MiB; the
    formula is in docs/reference/memory.md.
    """
    groups: tuple[GroupFigures, ...] = ()
    upstream: tuple[UpstreamFigures, ...] = ()

    def rows(self) -> list[tuple[str, Any]]:
        found = plain(self)
        rows = [(name, value) for name, value in found.items() if not isinstance(value, list)]
        rows += [(f"group {each.number}", each) for each in self.groups]
        for each in found["upstream"]:
            node = each.pop("node")
            rows += [(f"upstream {node} {name}", value) for name, value in each.items()]
        return rows

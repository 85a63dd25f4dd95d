"""Statistics of a relay: STAT ``relay``, and a line in the log now and then.

relay:ejections                 consumers that were waited for, and were stuck for too long
relay:streams_ejected           the same by vbucket, each time
relay:newcomers_refused         streams too far behind to be waited for
relay:streams, :streams_from_disk
relay:held_bytes                received and not acknowledged, as somebody is waited for
relay:disk_waiting_bytes        received and not on disk yet
relay:disk_trouble              which vbuckets cannot be written, and why; empty where all can
relay:resident_bytes            the process's memory
relay:memory_bound_bytes        the most that it takes with the keys and consumers it has now, by
                                the formula of docs/memory.md, for documents of up to 20 MiB
relay:waits_for_disk            whether the cluster is held up by that
relay:group:<number>            vbuckets with so many members of a group, of how many; "no stream"
relay:group:<number>:…          the same by name, what they hold and who is waited for
relay:upstream:<node>:…         window, in use, acks, full, who is waited for
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic

import psutil

from dcp.printable import number_ranges
from dcp.protocol.receiver_group import Ejection
from dcp.relay.memory import relay_bytes
from dcp.relay.regulator import Regulator
from dcp.relay.relay_bucket import RelayBucket
from dcp.relay.relay_settings import RelaySettings
from dcp.relay.upstream import Upstream
from dcp.relay.upstream_link import UpstreamLink
from dcp.server.commands.memory import Load, keys_of
from dcp.server.commands.stat_request import Statistic
from dcp.server.streams.stream import ActiveStreamPhase


@dataclass(frozen=True, slots=True)
class LinkSnapshot:
    """A connection to a node of the cluster: its window, and the consumer that holds it back."""

    node: str
    is_ready: bool
    trouble: str
    streams: int
    window_bytes: int
    unacked_bytes: int
    held_bytes: int
    acks: int
    acked_bytes: int
    full_seconds: float
    waits_for: str
    """The consumer that holds most of it; empty where none does."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """Vbuckets whose groups have equally many members."""

    vbuckets: str
    members: int
    required: int
    is_held: bool
    held_bytes: int
    waits_for: str
    """The consumer that most of that waits for; empty where none does."""

    def __str__(self) -> str:
        """Say it in words."""
        held = ", no stream" if self.is_held else ""
        return f"vbuckets {self.vbuckets}: {self.members} of {self.required} receivers{held}"


@dataclass(frozen=True, slots=True)
class RelaySnapshot:
    """A relay at one instant."""

    strategy: str
    links: tuple[LinkSnapshot, ...]
    groups: tuple[GroupSnapshot, ...]
    consumers: int
    streams: int
    streams_from_disk: int
    ejections: int
    streams_ejected: int
    newcomers_refused: int
    held_bytes: int
    disk_waiting_bytes: int
    disk_trouble: str
    waits_for_disk: bool
    resident_bytes: int
    memory_bound_bytes: int

    def statistics(self) -> Iterator[Statistic]:
        """Return all of it as STAT answers it."""
        yield "relay:strategy", self.strategy
        for name in RelaySnapshot.__slots__:
            if name not in ("strategy", "links", "groups"):
                yield f"relay:{name}", getattr(self, name)
        for number, group in enumerate(self.groups):
            yield f"relay:group:{number}", str(group)
            for name in GroupSnapshot.__slots__:
                yield f"relay:group:{number}:{name}", getattr(group, name)
        for link in self.links:
            prefix = f"relay:upstream:{link.node}"
            for name in LinkSnapshot.__slots__:
                if name != "node":
                    yield f"{prefix}:{name}", getattr(link, name)


def snapshot_of(
    bucket: RelayBucket,
    regulator: Regulator,
    upstream: Upstream,
    settings: RelaySettings,
) -> RelaySnapshot:
    """Return the relay's statistics; the bucket's lock is held."""
    streams = [
        stream
        for consumer in bucket.dcp_connections.values()
        for stream in consumer.streams
        if stream.is_sending
    ]
    flow_controls, links = regulator.flow_controls, upstream.links
    return RelaySnapshot(
        str(regulator.spec),
        tuple(_link(link, regulator) for link in links),
        tuple(_groups(regulator)),
        len(bucket.dcp_connections),
        len(streams),
        sum(stream.phase is ActiveStreamPhase.BACKFILLING for stream in streams),
        regulator.stuck.ejections,
        sum(gate.group.ejections[Ejection.TIMEOUT] for gate in flow_controls),
        sum(gate.newcomers_refused for gate in flow_controls),
        sum(gate.positions.held_bytes for gate in flow_controls),
        0 if bucket.writes.flusher is None else bucket.writes.flusher.pending_bytes,
        "" if bucket.writes.flusher is None else _trouble_of(bucket.writes.flusher.failures),
        regulator.waits_for_disk,
        psutil.Process().memory_info().rss,
        relay_bytes(settings, _load(bucket), max(1, len(links))),
    )


def _load(bucket: RelayBucket) -> Load:
    """Return the relay's present load, for the memory formula."""
    connections = bucket.dcp_connections.values()
    keys, key_bytes = keys_of([vbucket.data.newest.keys for vbucket in bucket.vbuckets])
    streams = sum(len(each.streams) for each in connections)
    return Load(keys, key_bytes, len(connections), streams)


def _trouble_of(failures: Mapping[int, str]) -> str:
    if not failures:
        return ""
    return f"vbuckets {number_ranges(failures)}: cannot write: {next(iter(failures.values()))}"


def _link(link: UpstreamLink, regulator: Regulator) -> LinkSnapshot:
    connection = link.connection
    window = None if connection is None else connection.window
    return LinkSnapshot(
        str(link.address),
        link.is_ready,
        link.trouble,
        0 if connection is None else len(connection.streams.by_vbucket),
        0 if window is None else window.size_bytes,
        0 if window is None else window.unacked_bytes,
        0 if window is None else window.held_bytes,
        0 if window is None else window.acks,
        0 if window is None else window.acknowledged,
        round(link.full_seconds(monotonic()), 3),
        waited_for(link, regulator),
    )


def waited_for(link: UpstreamLink, regulator: Regulator) -> str:
    """Return the consumer that holds most of a connection's window."""
    return _gating(regulator, () if link.connection is None else link.connection.streams.by_vbucket)


def _gating(regulator: Regulator, vbuckets: Iterable[int]) -> str:
    """Return the consumer that most bytes of some vbuckets wait for; empty: none does."""
    held: Counter[int] = Counter()
    for vbucket in vbuckets:
        gate = regulator.flow_controls[vbucket]
        if (gating := gate.gating_receiver) is not None:
            held[gating] += gate.positions.held_bytes
    if not held:
        return ""
    number, _ = held.most_common(1)[0]
    return regulator.receivers.names.get(number, str(number))


def _groups(regulator: Regulator) -> Iterator[GroupSnapshot]:
    required = regulator.spec.group_min_size
    found: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for vbucket, gate in enumerate(regulator.flow_controls):
        found[gate.group.receiver_count, gate.is_held].append(vbucket)
    for (members, is_held), vbuckets in sorted(found.items()):
        held_bytes = sum(regulator.flow_controls[v].positions.held_bytes for v in vbuckets)
        waits_for = _gating(regulator, vbuckets)
        yield GroupSnapshot(
            number_ranges(vbuckets), members, required, is_held, held_bytes, waits_for
        )

"""Collects the figures of a relay from its parts: for STAT ``relay``, metrics, and the log."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from time import monotonic

import psutil

from dcp.printable import number_ranges
from dcp.relay.bucket import RelayBucket
from dcp.relay.memory import relay_bytes
from dcp.relay.regulator import Regulator
from dcp.relay.settings import RelaySettings
from dcp.relay.upstream import Upstream, UpstreamLink
from dcp.relay_figures import GroupFigures, RelayFigures, UpstreamFigures
from dcp.server.commands.memory_formula import Load, keys_of
from dcp.server.streams.active_stream import ActiveStreamPhase

_LOGGER = logging.getLogger(__name__)


def relay_figures(bucket: RelayBucket, upstream: Upstream, settings: RelaySettings) -> RelayFigures:
    """Return the relay's figures; the bucket's lock is held."""
    streams = [
        stream
        for consumer in bucket.dcp_connections.values()
        for stream in consumer.streams
        if stream.is_sending
    ]
    regulator, links = upstream.regulator, upstream.links
    flow_controls, flusher = regulator.flow_controls, bucket.writes.flusher
    return RelayFigures(
        strategy=str(regulator.spec),
        consumers=len(bucket.dcp_connections),
        streams=len(streams),
        streams_from_disk=sum(stream.phase is ActiveStreamPhase.BACKFILLING for stream in streams),
        ejections=regulator.stuck.ejections,
        streams_ejected=sum(each.group.timeouts for each in flow_controls),
        newcomers_refused=sum(each.newcomers_refused for each in flow_controls),
        unconsumed_bytes=sum(each.positions.unconsumed_bytes for each in flow_controls),
        disk_waiting_bytes=0 if flusher is None else flusher.pending_bytes,
        disk_failures=0 if flusher is None else len(flusher.failures),
        disk_trouble="" if flusher is None else _trouble_of(flusher.failures),
        waits_for_disk=regulator.waits_for_disk,
        resident_bytes=psutil.Process().memory_info().rss,
        memory_bound_bytes=relay_bytes(settings, _load(bucket), max(1, len(links))),
        groups=tuple(_groups(regulator)),
        upstream=tuple(_link(link, regulator) for link in links),
    )


def _load(bucket: RelayBucket) -> Load:
    connections = bucket.dcp_connections.values()
    keys, key_bytes = keys_of([vbucket.data.newest for vbucket in bucket.vbuckets])
    streams = sum(len(each.streams) for each in connections)
    return Load(keys, key_bytes, len(connections), streams)


def _trouble_of(failures: Mapping[int, str]) -> str:
    if not failures:
        return ""
    return f"vbuckets {number_ranges(failures)}: cannot write: {next(iter(failures.values()))}"


def _link(link: UpstreamLink, regulator: Regulator) -> UpstreamFigures:
    connection = link.connection
    window = None if connection is None else connection.window
    return UpstreamFigures(
        str(link.address),
        link.is_ready,
        link.trouble,
        0 if connection is None else len(connection.streams.by_vbucket),
        0 if window is None else window.size_bytes,
        0 if window is None else window.unacked_bytes,
        0 if window is None else window.unreleased_bytes,
        0 if window is None else window.acks,
        0 if window is None else window.acknowledged,
        round(link.full_seconds(monotonic()), 3),
        waited_for(link, regulator),
    )


def waited_for(link: UpstreamLink, regulator: Regulator) -> str:
    """Return the consumer that most of a connection's window waits for; empty if none."""
    return _waited_for(
        regulator, () if link.connection is None else link.connection.streams.by_vbucket
    )


def _waited_for(regulator: Regulator, vbuckets: Iterable[int]) -> str:
    """Return the consumer that most bytes of these vbuckets wait for; empty if none."""
    waiting: Counter[int] = Counter()
    for vbucket in vbuckets:
        flow_control = regulator.flow_controls[vbucket]
        if (slowest := flow_control.slowest_receiver) is not None:
            waiting[slowest] += flow_control.positions.unconsumed_bytes
    if not waiting:
        return ""
    number, _ = waiting.most_common(1)[0]
    return regulator.receivers.names.get(number, str(number))


def _groups(regulator: Regulator) -> Iterator[GroupFigures]:
    required = regulator.spec.group_min_size
    found: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for vbucket, flow_control in enumerate(regulator.flow_controls):
        found[flow_control.group.receiver_count, flow_control.lacks_receivers].append(vbucket)
    for number, ((receivers, lacking), vbuckets) in enumerate(sorted(found.items())):
        positions = (regulator.flow_controls[v].positions for v in vbuckets)
        unconsumed = sum(each.unconsumed_bytes for each in positions)
        waits_for = _waited_for(regulator, vbuckets)
        yield GroupFigures(
            number_ranges(vbuckets), receivers, required, lacking, unconsumed, waits_for, number
        )


def log_figures(found: RelayFigures) -> None:
    _LOGGER.info(
        "%d consumers, %d streams, %d of them from disk; %d ejections; %d bytes not consumed",
        found.consumers,
        found.streams,
        found.streams_from_disk,
        found.ejections,
        found.unconsumed_bytes,
    )
    if found.disk_trouble:
        text = "%s; %d bytes wait for the disk"
        _LOGGER.warning(text, found.disk_trouble, found.disk_waiting_bytes)
    for link in found.upstream:
        if link.waits_for:
            _LOGGER.info("%s: waits for consumer %s", link.node, link.waits_for)
    for group in found.groups:
        if group.receivers < group.required:
            _LOGGER.info("%s", group)

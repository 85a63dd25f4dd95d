"""Exports a producer's, or a relay's, statistics as Prometheus metrics.

Labels are bounded by what there is now: connections, groups, nodes of the cluster. A group is a
number, since consumers come and go: which vbuckets are in it is told by one metric of its own. What
a relay does not tell, or not as a number, is left out: others have other versions.
Counters begin anew with the process that counts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.samples import Sample

from dcp.cli.views.producer_connections import ProducerConnection
from dcp.lake.task_monitor.prometheus import Metrics, exposition_of

_UPSTREAM: Final = re.compile(r"relay:upstream:(.+):(\w+)")
_GROUP: Final = re.compile(r"relay:group:(\d+):(\w+)")
_NUMBER: Final = re.compile(r"-?[0-9]+([.][0-9]+)?(e[-+]?[0-9]+)?")
_CONNECTION: Final[Metrics] = {
    "dcp_producer_window_bytes": "Window of the connection; 0: no flow control.",
    "dcp_producer_outstanding_bytes": "Bytes sent and not acknowledged.",
    "dcp_producer_acked_bytes_total": "Bytes that the consumer acknowledged.",
    "dcp_producer_over_acked_bytes_total": (
        "Bytes acknowledged beyond what was outstanding: a consumer's mistake."
    ),
    "dcp_producer_sent_bytes_total": "Bytes sent.",
    "dcp_producer_items_total": "Items sent.",
    "dcp_producer_streams": "Streams of the connection.",
    "dcp_producer_paused": "1 while nothing is sent, by reason.",
}
_PROCESS: Final[Metrics] = {
    "dcp_producer_resident_bytes": "Resident memory of the producer.",
    "dcp_producer_memory_bound_bytes": "The most that it takes now; 0: no formula.",
}
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
    "relay_memory_bound_bytes": "The most that it takes now (docs/memory.md).",
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


def producer_exposition(
    connections: Iterable[ProducerConnection],
    relay: Mapping[str, str],
    producer: Mapping[str, str] | None = None,
) -> str:
    """Return all of it; the groups that STAT answers are empty where there are none."""
    samples = [sample for each in connections for sample in _of_connection(each)]
    metrics = dict(_CONNECTION)
    if producer:
        metrics |= _PROCESS
        for metric in _PROCESS:
            told = producer.get(f"producer:{metric.removeprefix('dcp_producer_')}", "")
            samples += _sample(metric, {}, told)
    if relay:
        metrics |= {**_RELAY, **_GROUPS, **_NODES}
        samples += _of_relay(relay)
    return exposition_of(samples, metrics)


def group_stats(told: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """Return what a relay tells of each group of vbuckets, by number and name."""
    return {int(number): values for number, values in _by_place(_GROUP, told).items()}


def upstream_stats(told: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return what a relay tells of each node of the cluster, by address and name."""
    return _by_place(_UPSTREAM, told)


def _by_place(pattern: re.Pattern[str], told: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for full_name, text in told.items():
        if match := pattern.fullmatch(full_name):
            found.setdefault(match[1], {})[match[2]] = text
    return found


def _of_connection(each: ProducerConnection) -> Iterator[Sample]:
    labels = {"connection": each.name}
    yield Sample("dcp_producer_window_bytes", labels, each.window_bytes)
    yield Sample("dcp_producer_outstanding_bytes", labels, each.outstanding_bytes)
    yield Sample("dcp_producer_acked_bytes_total", labels, each.acked_bytes)
    if each.over_acked_bytes is not None:  # servers do not tell it
        yield Sample("dcp_producer_over_acked_bytes_total", labels, each.over_acked_bytes)
    yield Sample("dcp_producer_sent_bytes_total", labels, each.sent_bytes)
    yield Sample("dcp_producer_items_total", labels, each.items_sent)
    yield Sample("dcp_producer_streams", labels, each.streams)
    if each.paused:
        yield Sample("dcp_producer_paused", labels | {"reason": each.paused}, 1)


def _of_relay(told: Mapping[str, str]) -> Iterator[Sample]:
    for metric in _RELAY:
        name = metric.removeprefix("relay_").removesuffix("_total")
        if (text := told.get(f"relay:{name}")) is not None:  # an older relay tells less
            yield from _sample(metric, {}, text)
    for full_name, text in told.items():
        if found := _GROUP.fullmatch(full_name):
            number, name = found.groups()
            labels = {"group": number}
            if name == "vbuckets":
                yield Sample("relay_group_info", labels | {"vbuckets": text}, 1)
            yield from _named("relay_group", labels, name, text, _GROUPS)
        elif found := _UPSTREAM.fullmatch(full_name):
            node, name = found.groups()
            yield from _named("relay_upstream", {"node": node}, name, text, _NODES)


def _named(
    prefix: str, labels: dict[str, str], name: str, text: str, known: Metrics
) -> Iterator[Sample]:
    if name == "waits_for":
        if text:
            yield Sample(f"{prefix}_gating", labels | {"consumer": text}, 1)
        return
    for metric in (f"{prefix}_{name}", f"{prefix}_{name}_total"):
        if metric in known:
            yield from _sample(metric, labels, text)


def _sample(metric: str, labels: dict[str, str], text: str) -> Iterator[Sample]:
    if text in ("true", "false"):
        yield Sample(metric, labels, text == "true")
    elif _NUMBER.fullmatch(text):
        yield Sample(metric, labels, float(text))

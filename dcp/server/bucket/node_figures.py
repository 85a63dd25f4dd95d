"""A node's metrics for its operator: its DCP connections and its process.

The number of label values is bounded by the number of connections.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from prometheus_client.samples import Sample

from dcp.prometheus import Metrics, exposition_of
from dcp.records import Record, plain

CONNECTION_METRICS: Final[Metrics] = {
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


@dataclass(frozen=True, slots=True)
class ConnectionFigures:
    """Figures of one DCP connection, counted by its producer since the connection opened."""

    name: str
    window_bytes: int = 0
    outstanding_bytes: int = 0
    acked_bytes: int = 0
    sent_bytes: int = 0
    items_sent: int = 0
    streams: int = 0
    paused: str = ""
    """Reason why nothing is sent; empty while it sends."""
    paused_seconds: float | None = None
    over_acked_bytes: int = 0

    def samples(self) -> Iterator[Sample]:
        labels, figures = {"connection": self.name}, plain(self) | {"items": self.items_sent}
        yield from samples_of("dcp_producer", labels, figures, CONNECTION_METRICS)
        if self.paused:
            yield Sample("dcp_producer_paused", labels | {"reason": self.paused}, 1)


class ProcessFigures(Protocol):
    """A process's own metrics, apart from its connections; a producer and a relay differ."""

    metrics: ClassVar[Metrics]

    def samples(self) -> Iterator[Sample]: ...

    def to_json(self) -> dict[str, object]: ...


@dataclass(frozen=True, slots=True)
class ProducerFigures(Record):
    metrics: ClassVar[Metrics] = {
        "dcp_producer_resident_bytes": "Resident memory of the producer.",
        "dcp_producer_memory_bound_bytes": "Most memory with the present load; 0: unknown.",
    }

    resident_bytes: int = 0
    memory_bound_bytes: int = 0
    """Most memory that the process takes with its present load. 0 if it is unknown: several nodes,
    or replicas, have no formula."""

    def samples(self) -> Iterator[Sample]:
        yield from samples_of("dcp_producer", {}, plain(self), self.metrics)


def samples_of(
    prefix: str, labels: dict[str, str], figures: Mapping[str, Any], known: Metrics
) -> Iterator[Sample]:
    """Yield a sample for each number in ``figures`` that has a metric in ``known``.

    The metric's name is the prefix and the number's key, with ``_total`` for counters.
    """
    for metric in known:
        value = figures.get(metric.removeprefix(f"{prefix}_").removesuffix("_total"))
        if isinstance(value, int | float):
            yield Sample(metric, labels, value)


def node_exposition(connections: Iterable[ConnectionFigures], process: ProcessFigures) -> str:
    samples = [sample for each in connections for sample in each.samples()]
    samples += process.samples()
    return exposition_of(samples, {**CONNECTION_METRICS, **process.metrics})

"""A node's metrics for its operator: its DCP connections and its process.

The number of label values is bounded by the number of connections.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from dcp.prometheus import Metrics, exposition, metrics

CONNECTION_METRICS: Final = metrics(
    {"connection": "name"},
    """
dcp_producer_window_bytes           window_bytes       Window of the connection; 0: no flow control.
dcp_producer_outstanding_bytes      outstanding_bytes  Bytes sent and not acknowledged.
dcp_producer_acked_bytes_total      acked_bytes        Bytes that the consumer acknowledged.
dcp_producer_over_acked_bytes_total over_acked_bytes
    Bytes acknowledged beyond what was outstanding: a consumer's mistake.
dcp_producer_sent_bytes_total       sent_bytes         Bytes sent.
dcp_producer_items_total            items_sent         Items sent.
dcp_producer_streams                streams            Streams of the connection.
dcp_producer_paused                 paused[reason]     1 while nothing is sent, by reason.
""",
)


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


class ProcessFigures(Protocol):
    """A process's own metrics, apart from its connections; a producer and a relay differ."""

    metrics: ClassVar[Metrics]


@dataclass(frozen=True, slots=True)
class ProducerFigures:
    metrics: ClassVar[Metrics] = metrics(
        {},
        """
dcp_producer_resident_bytes     resident_bytes      Resident memory of the producer.
dcp_producer_memory_bound_bytes memory_bound_bytes  Most memory with the present load; 0: unknown.
""",
    )

    resident_bytes: int = 0
    memory_bound_bytes: int = 0
    """Most memory that the process takes with its present load. 0 if it is unknown: several nodes,
    or replicas, have no formula."""


def node_exposition(connections: Sequence[ConnectionFigures], process: ProcessFigures) -> str:
    return exposition((CONNECTION_METRICS, connections), (process.metrics, [process]))

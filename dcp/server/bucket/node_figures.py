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
dcp_server_window_bytes           window_bytes       Window of the connection; 0: no flow control.
dcp_server_outstanding_bytes      outstanding_bytes  Bytes sent and not acknowledged.
dcp_server_acked_bytes_total      acked_bytes        Bytes that the consumer acknowledged.
dcp_server_over_acked_bytes_total over_acked_bytes
    Bytes acknowledged beyond what was outstanding: a consumer's mistake.
dcp_server_sent_bytes_total       sent_bytes         Bytes sent.
dcp_server_items_total            items_sent         Items sent.
dcp_server_streams                streams            Streams of the connection.
dcp_server_paused                 paused[reason]     1 while nothing is sent, by reason.
""",
)


@dataclass(frozen=True, slots=True)
class ConnectionFigures:
    """Figures of one DCP connection, counted by the node since the connection opened."""

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

    kind: ClassVar[str]
    """``producer`` or ``relay``: the name of these figures in JSON."""
    metrics: ClassVar[Metrics]


def node_exposition(connections: Sequence[ConnectionFigures], process: ProcessFigures) -> str:
    return exposition((CONNECTION_METRICS, connections), (process.metrics, [process]))

"""The other side of flow control: what a producer, or a relay, tells of its DCP connections.

It is asked by STAT, as a server is: group ``dcp``, and ``relay`` where there is one. Since when a
connection has been paused is what we saw ourselves, where it is not told.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import monotonic, time
from typing import Any, Final

from dcp.cli.terminal.quantities import bar, count_text, memory_text, size_text
from dcp.cli.terminal.table import table
from dcp.cli.views.producer_connections import connections_in
from dcp.cli.views.server_statistics import figures_of_ours
from dcp.client.settings import TlsSettings
from dcp.errors import SourceError
from dcp.printable import printable
from dcp.producer.kv_connection import KvConnection
from dcp.protocol.credentials import ALL_MECHANISMS, SCRAM_MECHANISMS
from dcp.records import plain
from dcp.relay.relay_figures import RelayFigures
from dcp.seeds import parse_seed
from dcp.server.bucket.node_figures import ConnectionFigures, ProducerFigures, node_exposition

_WITHOUT_STREAMS: Final = b'{"stream_format":"skip"}'
_TIMEOUT_SECONDS: Final = 5.0


class ProducerView:
    """Asks one node again and again."""

    def __init__(
        self,
        address: str,
        user: str,
        password: str,
        bucket: str,
        tls: TlsSettings | None = None,
        *,
        allows_plain: bool = False,
        is_relay: bool = False,
    ) -> None:
        """Connect, encrypted where ``tls`` is given, to a producer or a relay.

        Only then, or with ``allows_plain``, the password may be sent as it is.

        Raises:
            ConfigError: the address is no ``host:port``, or the file of ``tls`` cannot be used.
            NodeUnavailableError: the node cannot be reached.
            AuthenticationError, BucketError: user, password or bucket were refused.
        """
        self.address, self._is_relay = address, is_relay
        context = None if tls is None else tls.context()
        host, port = parse_seed(address, tls=tls is not None)
        self._connection = KvConnection(host, port, _TIMEOUT_SECONDS, context)
        try:
            is_plain_fine = tls is not None or allows_plain
            mechanisms = ALL_MECHANISMS if is_plain_fine else SCRAM_MECHANISMS
            self._connection.log_in(user, password, bucket, mechanisms=mechanisms)
        except BaseException:
            self._connection.close()
            raise
        self._paused: dict[str, tuple[str, int, float]] = {}
        self.connections: list[ConnectionFigures] = []
        self.relay: RelayFigures | None = None
        self.producer: ProducerFigures | None = None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def refresh(self) -> None:
        """Ask once.

        Raises:
            NodeUnavailableError: the node is gone.
            SourceError: it does not tell this user, or is no relay where one is expected.
        """
        told = self._connection.statistics("dcp", _WITHOUT_STREAMS)
        self._take(connections_in(told), monotonic())
        self.relay = figures_of_ours(self._connection, "relay", RelayFigures)
        if self._is_relay and self.relay is None:
            raise SourceError(
                f"{self.address}: found a producer (it has no statistics of a relay), expected a "
                "relay; --producer shows it"
            )
        self.producer = (
            None if self.relay else figures_of_ours(self._connection, "producer", ProducerFigures)
        )

    def _take(self, found: Sequence[ConnectionFigures], now: float) -> None:
        """Take over the connections that there are; what was known of others is forgotten."""
        names = {each.name for each in found}
        self._paused = {name: since for name, since in self._paused.items() if name in names}
        self.connections = [self._since(each, now) for each in found]

    def _since(self, each: ConnectionFigures, now: float) -> ConnectionFigures:
        reason, sent_bytes, since = self._paused.get(each.name, ("", 0, now))
        if reason != each.paused or sent_bytes != each.sent_bytes:
            since = now
        self._paused[each.name] = each.paused, each.sent_bytes, since
        if not each.paused:
            return each
        return replace(each, paused_seconds=now - since)

    def to_json(self) -> dict[str, Any]:
        """Return the last look as a JSON object."""
        seen = {"connections": self.connections, "relay": self.relay, "producer": self.producer}
        return {"at": time(), "node": self.address, **plain(seen)}

    def metrics(self) -> str:
        """Return the last look as Prometheus reads it."""
        return node_exposition(self.connections, self.relay or self.producer)

    def text(self) -> str:
        """Return the last look as text."""
        parts = [f"{self.address}: {count_text(len(self.connections), 'DCP connection')}"]
        if self.producer is not None:
            parts.append(f"producer: {process_memory_text(self.producer)}")
        if self.connections:
            parts.append(_table(self.connections))
        if any(each.over_acked_bytes for each in self.connections):
            parts.append("\n".join(_over_acks(self.connections)))
        if self.relay is not None:
            parts.append(f"relay: {process_memory_text(self.relay)}")
            parts.append(table(["relay", "value"], self.relay.rows()))
        return "\n\n".join(parts)


def process_memory_text(figures: ProducerFigures | RelayFigures) -> str:
    """Return the memory that a process has, beside its bound if there is one."""
    return memory_text(figures.resident_bytes or None, figures.memory_bound_bytes)


def _over_acks(connections: Sequence[ConnectionFigures]) -> Iterator[str]:
    """Say who acknowledges what it was not sent, or twice: its window bounds nothing then."""
    for each in connections:
        if each.over_acked_bytes:
            size = size_text(each.over_acked_bytes)
            yield f"{printable(each.name)}: acknowledged {size} more than was outstanding"


def _table(connections: Sequence[ConnectionFigures]) -> str:
    heads = ["connection", "window", "outstanding", "sent", "items", "streams", "paused"]
    return table(heads, [_row(each) for each in connections])


def _row(each: ConnectionFigures) -> Sequence[object]:
    window = "off"
    if each.window_bytes:
        filled = bar(each.outstanding_bytes, each.window_bytes)
        window = f"{filled} {size_text(each.window_bytes)}"
    paused = each.paused or "-"
    if each.paused_seconds is not None and each.paused_seconds >= 1:
        paused += f" for {each.paused_seconds:.0f} s"
    return (
        each.name,
        window,
        size_text(each.outstanding_bytes),
        size_text(each.sent_bytes),
        each.items_sent,
        each.streams,
        paused,
    )

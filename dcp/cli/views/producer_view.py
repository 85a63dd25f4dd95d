"""The other side of flow control: what a producer, or a relay, tells of its DCP connections.

It is asked for ``/figures.json`` at its HTTP port, which has what ``/metrics`` there has. We see
ourselves since when a connection has been paused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from ipaddress import ip_address
from time import monotonic, time
from typing import Any, Final

from dcp.cli.terminal.quantities import bar, count_text, memory_text, size_text
from dcp.cli.terminal.table import table
from dcp.client.addresses import NodeAddress
from dcp.client.seed_lookup import ask_over_http
from dcp.errors import ConfigError, SourceError
from dcp.printable import printable
from dcp.protocol.credentials import Credentials, Secret
from dcp.records import plain, read
from dcp.relay.relay_figures import RelayFigures
from dcp.seeds import parse_seed
from dcp.server.bucket.node_figures import ConnectionFigures, ProducerFigures, node_exposition
from dcp.tls_settings import TlsSettings
from dcp.wire.json_tree import json_tree

_PATH: Final = "/figures.json"
_TIMEOUT_SECONDS: Final = 5.0
_EXPECTED: Final = (
    "expected a relay or `dcplake serve`; of a Couchbase server `cbstats HOST:11210 dcp` shows the "
    "connections"
)


class ProducerView:
    """Asks one node again and again."""

    def __init__(
        self,
        address: str,
        user: str,
        password: str,
        tls: TlsSettings | None = None,
        *,
        allows_plain: bool = False,
        is_relay: bool = False,
    ) -> None:
        """Ask nobody yet.

        HTTP sends the password as it is: encrypted with ``tls``, else to this machine only, unless
        ``allows_plain``.

        Raises:
            ConfigError: the address is no ``host:port`` of HTTP, or the password may not be sent.
        """
        self._node = NodeAddress(*parse_seed(address, tls=tls is not None, http=True))
        if tls is None and not allows_plain and not _is_this_machine(self._node.host):
            raise ConfigError(
                f"{self._node}: found HTTP without TLS, which sends the password as it is, "
                "expected --tls or --ca-file, or --set source.allow_plain=true"
            )
        self.address, self._is_relay, self._tls = address, is_relay, tls
        self._credentials = Credentials(user, Secret(password))
        self._paused: dict[str, tuple[str, int, float]] = {}
        self.connections: list[ConnectionFigures] = []
        self.relay: RelayFigures | None = None
        self.producer: ProducerFigures | None = None

    def refresh(self) -> None:
        """Ask once.

        Raises:
            NodeUnavailableError: the node cannot be reached.
            AuthenticationError: user or password were refused.
            SecretError: a certificate's file cannot be used.
            SourceError: it is no node of ours, or no relay where one is expected.
        """
        answer = ask_over_http(self._node, _PATH, self._tls, _TIMEOUT_SECONDS, self._credentials)
        if answer.status != HTTPStatus.OK:
            raise SourceError(f"{answer}, {_EXPECTED}")
        try:
            told = json_tree(answer.body)
            connections = [read(ConnectionFigures, each) for each in told["connections"]]
            relay = told.get("relay")
            self.relay = None if relay is None else read(RelayFigures, relay)
            self.producer = None if self.relay else read(ProducerFigures, told["producer"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise SourceError(f"{answer.url}: found no figures, {_EXPECTED}") from None
        if self._is_relay and self.relay is None:
            raise SourceError(
                f"{self.address}: found a producer (it has no figures of a relay), expected a "
                "relay; --producer shows it"
            )
        self._take(connections, monotonic())

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
        """Return the last look in Prometheus' text format."""
        process = self.relay or self.producer or ProducerFigures()
        return node_exposition(self.connections, process)

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


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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

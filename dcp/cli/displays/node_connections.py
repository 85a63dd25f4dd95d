"""The other side of flow control: what a producer, or a relay, tells of its DCP connections.

It is asked for ``/figures.json`` at its HTTP port, which has what ``/metrics`` there has. The looks
themselves show for how long a connection has been paused.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from ipaddress import ip_address
from time import monotonic
from typing import Final

from dcp.cli.terminal.output import json_text
from dcp.cli.terminal.table import table
from dcp.client.addresses import NodeAddress
from dcp.client.seed_lookup import HttpAnswer, ask_over_http
from dcp.errors import ConfigError, SourceError
from dcp.printable import printable
from dcp.producer.figures import ProducerFigures
from dcp.protocol.credentials import Credentials
from dcp.quantities import bar, count_text, memory_text, size_text
from dcp.records import Record, read
from dcp.relay_figures import RelayFigures
from dcp.seeds import parse_seed
from dcp.server.bucket.node_figures import ConnectionFigures, node_exposition
from dcp.tls_settings import TlsSettings
from dcp.wire.json_tree import json_tree

_PATH: Final = "/figures.json"
_TIMEOUT_SECONDS: Final = 5.0
_EXPECTED: Final = (
    "expected a relay or `dcplake serve`; of a Couchbase server `cbstats HOST:11210 dcp` shows the "
    "connections"
)


@dataclass(frozen=True, slots=True)
class NodeFigures(Record):
    """The figures of a producer or a relay at ``/figures.json``; time and node are ours."""

    at: datetime | None = None
    node: str = ""
    connections: tuple[ConnectionFigures, ...] = field(kw_only=True)
    relay: RelayFigures | None = None
    producer: ProducerFigures | None = None


def looks_at_node(
    address: str,
    credentials: Credentials,
    tls: TlsSettings | None,
    *,
    allows_plain: bool,
    is_relay: bool,
) -> Iterator[NodeFigures]:
    """Ask a node again and again; yield its answers.

    HTTP sends the password as it is: encrypted with ``tls``, else to this machine only, unless
    ``allows_plain``.

    Raises:
        ConfigError: the address is no ``host:port`` of HTTP, or the password may not be sent.
        NodeUnavailableError: the node cannot be reached.
        AuthenticationError: user or password were refused.
        SecretError: a certificate's file cannot be used.
        SourceError: it is no node of ours, or no relay where one is expected.
    """
    node = NodeAddress(*parse_seed(address, tls=tls is not None, http=True))
    if tls is None and not allows_plain and not _is_this_machine(node.host):
        raise ConfigError(
            f"{node}: found HTTP without TLS, which sends the password as it is, "
            "expected --tls or --ca-file, or --set source.allow_plain=true"
        )
    before, asked_at = NodeFigures(connections=()), monotonic()
    while True:
        answer = ask_over_http(node, _PATH, tls, _TIMEOUT_SECONDS, credentials)
        found, now = _figures_of(answer), monotonic()
        if is_relay and found.relay is None:
            raise SourceError(
                f"{address}: found a producer (it has no figures of a relay), expected a "
                "relay; --producer shows it"
            )
        connections = _with_pauses(found.connections, before.connections, now - asked_at)
        before = replace(found, at=datetime.now(UTC), node=address, connections=tuple(connections))
        asked_at = now
        yield before


def _figures_of(answer: HttpAnswer) -> NodeFigures:
    if answer.status != HTTPStatus.OK:
        raise SourceError(f"{answer}, {_EXPECTED}")
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        found = read(NodeFigures, json_tree(answer.body))
        if found.relay or found.producer:
            return found
    raise SourceError(f"{answer.url}: found no figures, {_EXPECTED}")


def _with_pauses(
    found: Iterable[ConnectionFigures], before: Iterable[ConnectionFigures], seconds: float
) -> Iterator[ConnectionFigures]:
    """Tell how long each paused connection has been seen to pause; ``before`` was seen earlier."""
    known = {(each.name, each.paused, each.sent_bytes): each.paused_seconds for each in before}
    for each in found:
        since = known.get((each.name, each.paused, each.sent_bytes))
        paused_seconds = 0.0 if since is None else since + seconds
        yield replace(each, paused_seconds=paused_seconds) if each.paused else each


def node_shown(figures: NodeFigures, *, metrics: bool, as_json: bool) -> str:
    """Return the figures for Prometheus, as JSON, or as text."""
    if metrics:
        process = figures.relay or figures.producer or ProducerFigures()
        return node_exposition(figures.connections, process)
    return json_text(figures.to_json()) if as_json else _node_text(figures)


def _node_text(figures: NodeFigures) -> str:
    parts = [f"{figures.node}: {count_text(len(figures.connections), 'DCP connection')}"]
    if figures.producer is not None:
        parts.append(f"producer: {_memory_text(figures.producer)}")
    if figures.connections:
        parts.append(_table(figures.connections))
    if any(each.over_acked_bytes for each in figures.connections):
        parts.append("\n".join(_over_acks(figures.connections)))
    if figures.relay is not None:
        parts.append(f"relay: {_memory_text(figures.relay)}")
        parts.append(table(["relay", "value"], figures.relay.rows()))
    return "\n\n".join(parts)


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _memory_text(figures: ProducerFigures | RelayFigures) -> str:
    return memory_text(figures.resident_bytes, figures.memory_bound_bytes)


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

"""Reads the figures of a lake's source if it is a relay, for ``dcplake status``.

The lake's own seeds are asked for STAT ``relay``, whose answer is JSON, with the lake's user,
certificates and mechanisms: a seed is no HTTP port, and HTTP would send the password as it is. All
are asked at once, in threads that nobody waits for beyond a deadline: the status of a lake never
fails, nor takes long, for what its source does.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

from dcp.cli.displays.node_connections import process_memory_text
from dcp.cli.terminal.quantities import size_text
from dcp.client.addresses import NodeAddress
from dcp.client.kv.kv_connection import KvConnection, signed_in
from dcp.client.settings import ConnectionSettings
from dcp.errors import DcplakeError, NodeUnavailableError, SourceError
from dcp.lake.config.settings import Settings
from dcp.lake.receive.source_access import connection_settings
from dcp.printable import printable
from dcp.protocol.credentials import Credentials
from dcp.records import Record, read
from dcp.relay.relay_figures import GroupFigures, RelayFigures, UpstreamFigures
from dcp.threads import in_thread
from dcp.wire.json_tree import json_tree

_DEADLINE_SECONDS: Final = 3.0
_MOST_SEEDS: Final = 8


@dataclass(frozen=True, slots=True)
class SourceReport(Record):
    """The relay's figures of the first seed that answers: none, if it is no relay.

    ``trouble`` says why nobody was asked, or nobody answered. In JSON, ``relay`` is as in
    ``dcplake top --json``.
    """

    node: str = ""
    relay: RelayFigures | None = None
    trouble: str = ""

    def lines(self) -> list[str]:
        """Return it for a person: none where there is nothing to say."""
        if self.trouble:
            return [f"source: not known what it waits for: {printable(self.trouble)}"]
        if self.relay is None:
            return []
        return [printable(line) for line in _relay_lines(self.node, self.relay)]


def ask_source(settings: Settings, deadline_seconds: float = _DEADLINE_SECONDS) -> SourceReport:
    """Ask the seeds of a lake; never raises for what they do, nor for a password that is missing.

    Nobody is asked if the settings have no user: they tell of no source.
    """
    source = settings.source
    place = source.connection_string()
    if not (source.username or source.credentials_folder) or place.over_http:
        return SourceReport()
    try:
        credentials = source.credentials()
    except DcplakeError as error:
        return SourceReport(trouble=str(error))
    connection = connection_settings(source, settings.flow_control)
    seeds = [str(NodeAddress(*address)) for address in place.addresses[:_MOST_SEEDS]]
    until = monotonic() + deadline_seconds
    answers = [
        in_thread(partial(_ask, each, connection, credentials, deadline_seconds)) for each in seeds
    ]
    for each in answers:
        with suppress(TimeoutError):
            report = each.result(max(0.0, until - monotonic()))
            if not report.trouble:
                return report
    if answers[0].done():
        return answers[0].result()
    return SourceReport(trouble=f"{seeds[0]}: no answer in time")


def _ask(
    seed: str, settings: ConnectionSettings, credentials: Credentials, timeout_seconds: float
) -> SourceReport:
    """Ask one seed; whatever goes wrong is the report."""
    try:
        with signed_in(seed, settings, credentials, timeout_seconds) as connection:
            return SourceReport(seed, _relay_figures(connection))
    except (DcplakeError, OSError, ValueError) as error:  # names that cannot be looked up, too
        return SourceReport(trouble=str(error))


def _relay_figures(connection: KvConnection) -> RelayFigures | None:
    try:
        return read(RelayFigures, json_tree(connection.statistics("relay")["relay"]))
    except NodeUnavailableError:
        raise
    except (SourceError, AttributeError, KeyError, TypeError, ValueError):
        return None  # no relay, or one of another version


def _relay_lines(node: str, relay: RelayFigures) -> Iterator[str]:
    """Say who is there, and then only what holds something up."""
    there = f"consumers {relay.consumers}, streams {relay.streams}"
    yield f"relay {node}: {there}; {process_memory_text(relay)}"
    if relay.waits_for_disk:
        yield "  the cluster waits for the relay's disk"
    if relay.disk_trouble:
        yield f"  {relay.disk_trouble}"
    for group in relay.groups:
        yield from _group_lines(group)
    for link in relay.upstream:
        yield f"  {_upstream(link)}"


def _group_lines(group: GroupFigures) -> Iterator[str]:
    if group.lacks_receivers or group.receivers < group.required:
        without = ", no stream until they are there" if group.lacks_receivers else ""
        there = f"{group.receivers} of {group.required} receivers"
        yield f"  vbuckets {group.vbuckets}: {there}{without}"
    if group.waits_for:
        unconsumed = size_text(group.unconsumed_bytes)
        yield f"  vbuckets {group.vbuckets}: {unconsumed} wait for consumer {group.waits_for}"


def _upstream(link: UpstreamFigures) -> str:
    if not link.is_ready:
        return f"upstream {link.node}: no connection: {link.trouble or 'it is being set up'}"
    unacked, window = size_text(link.unacked_bytes), size_text(link.window_bytes)
    text = f"upstream {link.node}: {unacked} of {window} in use"
    return f"{text}, waits for consumer {link.waits_for}" if link.waits_for else text

"""Reads the statistics of a lake's source if it is a relay, for ``dcplake status``.

The lake's own seeds are asked for STAT ``relay``, with its user, certificates and mechanisms. All
are asked at once, in threads that nobody waits for beyond a deadline: the status of a lake never
fails, nor takes long, for what its source does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Thread
from time import monotonic
from typing import Any, Final

from dcp.cli.terminal.quantities import size_text
from dcp.cli.views.producer_metrics import group_stats, upstream_stats
from dcp.cli.views.server_statistics import group_of_ours, signed_in, stat_count, stat_memory
from dcp.client.addresses import NodeAddress
from dcp.client.settings import ConnectionSettings
from dcp.errors import DcplakeError
from dcp.lake.config.settings import Settings
from dcp.lake.receive.source_access import connection_settings
from dcp.printable import printable
from dcp.protocol.credentials import Credentials

_DEADLINE_SECONDS: Final = 3.0
_MOST_SEEDS: Final = 8


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The relay statistics of the first seed that answers: none, if it is no relay.

    ``trouble`` says why nobody was asked, or nobody answered.
    """

    node: str = ""
    relay: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object; ``relay`` as ``dcplake top --json`` has it."""
        return {"node": self.node, "relay": dict(self.relay), "trouble": self.trouble}

    def lines(self) -> list[str]:
        """Return it for a person: none where there is nothing to say."""
        if self.trouble:
            return [f"source: not known what it waits for: {printable(self.trouble)}"]
        return (
            [printable(line) for line in _relay_lines(self.node, self.relay)] if self.relay else []
        )


def ask_source(settings: Settings, deadline_seconds: float = _DEADLINE_SECONDS) -> SourceReport:
    """Ask the seeds of a lake; never raises for what they do, nor for a password that is missing.

    Settings without a user name no source: nobody is asked.
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
    questions = [
        _Question(NodeAddress(*address), connection, credentials, deadline_seconds)
        for address in place.addresses[:_MOST_SEEDS]
    ]
    return _first_answer(questions, monotonic() + deadline_seconds)


def _first_answer(questions: Sequence["_Question"], until: float) -> SourceReport:
    """Return what the first seed in order says that answers; else why the first does not."""
    for each in questions:
        each.start()
    for each in questions:
        each.join(max(0.0, until - monotonic()))
        if (report := each.report) is not None and not report.trouble:
            return report
    first = questions[0]
    return first.report or SourceReport(trouble=f"{first.seed}: no answer in time")


class _Question(Thread):
    """One seed, asked; ``report`` is there when it answered, or cannot."""

    def __init__(
        self,
        address: NodeAddress,
        settings: ConnectionSettings,
        credentials: Credentials,
        timeout_seconds: float,
    ) -> None:
        self.seed = str(address)
        super().__init__(name=f"status-{self.seed}", daemon=True)
        self.report: SourceReport | None = None
        self._settings, self._credentials = settings, credentials
        self._timeout_seconds = timeout_seconds

    def run(self) -> None:
        """Ask; whatever goes wrong is the report."""
        try:
            self.report = SourceReport(self.seed, self._ask())
        except (DcplakeError, OSError, ValueError) as error:  # names that cannot be looked up, too
            self.report = SourceReport(trouble=str(error))

    def _ask(self) -> dict[str, str]:
        with signed_in(
            self.seed, self._settings, self._credentials, self._timeout_seconds
        ) as connection:
            return group_of_ours(connection, "relay")


def _relay_lines(node: str, told: Mapping[str, str]) -> Iterator[str]:
    """Say who is there, and then only what holds something up."""
    consumers, streams = told.get("relay:consumers", "?"), told.get("relay:streams", "?")
    yield f"relay {node}: consumers {consumers}, streams {streams}; {stat_memory(told, 'relay')}"
    if told.get("relay:waits_for_disk") == "true":
        yield "  the cluster waits for the relay's disk"
    if trouble := told.get("relay:disk_trouble"):
        yield f"  {trouble}"
    for group in group_stats(told).values():
        yield from _group_lines(group)
    for upstream, link in upstream_stats(told).items():
        yield f"  {_upstream(upstream, link)}"


def _group_lines(group: Mapping[str, str]) -> Iterator[str]:
    is_held = group.get("is_held") == "true"
    is_short = stat_count(group, "members") < stat_count(group, "required")
    if is_held or is_short:
        held = ", no stream until they are there" if is_held else ""
        members, required = group.get("members", "?"), group.get("required", "?")
        vbuckets = group.get("vbuckets", "?")
        yield f"  vbuckets {vbuckets}: {members} of {required} receivers{held}"
    if gating := group.get("waits_for"):
        held_bytes = size_text(stat_count(group, "held_bytes"))
        yield f"  vbuckets {group.get('vbuckets', '?')}: {held_bytes} wait for consumer {gating}"


def _upstream(node: str, link: Mapping[str, str]) -> str:
    if link.get("is_ready") != "true":
        return f"upstream {node}: no connection: {link.get('trouble') or 'it is being set up'}"
    unacked, window = stat_count(link, "unacked_bytes"), stat_count(link, "window_bytes")
    text = f"upstream {node}: {size_text(unacked)} of {size_text(window)} in use"
    gating = link.get("waits_for")
    return f"{text}, waits for consumer {gating}" if gating else text

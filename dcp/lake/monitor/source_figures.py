"""Asks a lake's source for the figures of a relay, for ``dcplake status``.

The lake's own seeds are asked for STAT ``relay``, with the lake's user, certificates and
mechanisms. The answer is the ``relay`` of the relay's ``/figures.json``. HTTP cannot bring it: the
settings name no HTTP port, and without TLS it would send the password as it is. All are asked at
once, in threads that nobody waits for beyond a deadline: the status of a lake never fails, nor
takes long, for what its source does.
"""

from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.client.kv.kv_connection import KvConnection, signed_in
from dcp.client.settings import ConnectionSettings
from dcp.errors import DcplakeError, NodeUnavailableError, SourceError
from dcp.lake.config.settings import Settings
from dcp.lake.monitor.lake_figures import SourceFigures
from dcp.lake.receive.source_access import connection_settings
from dcp.protocol.credentials import Credentials
from dcp.records import read
from dcp.relay_figures import RelayFigures
from dcp.threads import in_thread
from dcp.wire.json_tree import json_tree

_DEADLINE_SECONDS: Final = 3.0
_MOST_SEEDS: Final = 8


def ask_source(settings: Settings, deadline_seconds: float = _DEADLINE_SECONDS) -> SourceFigures:
    """Ask the seeds of a lake; never raises for what they do, nor for a password that is missing.

    Nobody is asked if the settings have no user: they tell of no source.
    """
    source = settings.source
    place = source.connection_string()
    if not (source.username or source.credentials_folder) or place.over_http:
        return SourceFigures()
    try:
        credentials = source.credentials()
    except DcplakeError as error:
        return SourceFigures(trouble=str(error))
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
    return SourceFigures(trouble=f"{seeds[0]}: no answer in time")


def _ask(
    seed: str, settings: ConnectionSettings, credentials: Credentials, timeout_seconds: float
) -> SourceFigures:
    """Ask one seed; whatever goes wrong is the report."""
    try:
        with signed_in(seed, settings, credentials, timeout_seconds) as connection:
            return SourceFigures(seed, _relay_figures(connection))
    except (DcplakeError, OSError, ValueError) as error:  # names that cannot be looked up, too
        return SourceFigures(trouble=str(error))


def _relay_figures(connection: KvConnection) -> RelayFigures | None:
    try:
        return read(RelayFigures, json_tree(connection.statistics("relay")["relay"]))
    except NodeUnavailableError:
        raise
    except (SourceError, AttributeError, KeyError, TypeError, ValueError):
        return None  # no relay, or one of another version

"""Runs a relay as a process, which ends on an error, too."""

import logging

from dcp.errors import SourceError
from dcp.relay.memory import relay_bytes_in_words
from dcp.relay.settings import RelaySettings
from dcp.relay.thread import Relay
from dcp.server.node.server_process import serve_until_signal


def run_relay(settings: RelaySettings) -> None:
    """Run a relay as `serve_until_signal` says.

    Its line also has ``memory``: the bound of docs/reference/memory.md in words.

    Raises:
        SetupError: a port cannot be opened.
        SourceError: the data folder cannot be written, or the cluster rejects the relay.
        ConfigError: the data folder belongs to another bucket.
    """
    # Show incomplete groups, the statistics of each minute, and new connections to the cluster.
    for name in ("dcp.relay", "dcp.server.replication"):
        logging.getLogger(name).setLevel(logging.INFO)
    relay = _relay(settings)
    upstream = relay.upstream
    serve_until_signal(
        relay, lambda: upstream.failure is not None, memory=relay_bytes_in_words(settings)
    )
    if upstream.failure is not None:
        raise upstream.failure


def _relay(settings: RelaySettings) -> Relay:
    try:
        return Relay(settings)
    except OSError as error:
        named = settings.named("data_folder")
        raise SourceError(f"{named} {settings.data_folder}: {error}") from None

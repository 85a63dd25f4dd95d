"""Runs a relay as a process: announces that it is ready, and ends on a signal or an error."""

import json
import logging
import os
import sys
from typing import TextIO

from dcp.errors import SourceError
from dcp.relay.memory import relay_bytes_in_words
from dcp.relay.settings import RelaySettings
from dcp.relay.thread import Relay
from dcp.server.node.stop_signals import stop_signals


def run_relay(settings: RelaySettings, ready_to: TextIO | None = None) -> None:
    """Run a relay until SIGTERM or SIGINT; call it from the main thread.

    When clients can connect, it writes one JSON line to ``ready_to`` (default: standard output):
    ``seeds``, ``http_seeds``, ``tls_seeds``, ``https_seeds`` (empty without TLS), ``bucket``,
    ``pid``, and ``memory``: the bound of docs/reference/memory.md in words.

    Raises:
        SetupError: a port cannot be opened.
        SourceError: the data folder cannot be written, or the cluster rejects the relay.
        ConfigError: the data folder belongs to another bucket.
    """
    # Show incomplete groups, the statistics of each minute, and new connections to the cluster.
    for name in ("dcp.relay", "dcp.server.replication"):
        logging.getLogger(name).setLevel(logging.INFO)
    relay = _relay(settings)
    with stop_signals() as wait_for_stop, relay:
        ready: dict[str, object] = {
            "seeds": relay.seeds,
            "http_seeds": relay.http_seeds,
            "tls_seeds": relay.tls_seeds,
            "https_seeds": relay.https_seeds,
            "bucket": settings.bucket,
            "pid": os.getpid(),
            "memory": relay_bytes_in_words(settings),
        }
        stream = ready_to or sys.stdout
        stream.write(json.dumps(ready) + "\n")
        stream.flush()
        while relay.upstream.failure is None and not wait_for_stop():
            pass
    if relay.upstream.failure is not None:
        raise relay.upstream.failure


def _relay(settings: RelaySettings) -> Relay:
    try:
        return Relay(settings)
    except OSError as error:
        named = settings.named("data_folder")
        raise SourceError(f"{named} {settings.data_folder}: {error}") from None

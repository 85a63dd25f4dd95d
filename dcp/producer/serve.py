"""A producer cluster as a process: reports when it is ready, ends on SIGTERM or SIGINT."""

import gc
import json
import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from dcp.errors import SourceError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.node.stop_signals import stop_signals

_GARBAGE_THRESHOLDS: Final = (10_000, 10, 100)
"""Thresholds of Python's cycle collector: stored documents have no cycles, and a full run is slow.
"""


def serve(settings: ClusterSettings, *, ready_to: TextIO | None = None) -> None:
    """Run a cluster until a signal; call it from the main thread.

    When clients can connect, it writes one JSON line to ``ready_to`` (default: standard output),
    with ``seeds``, ``http_seeds``, ``tls_seeds``, ``https_seeds``, ``bucket`` and ``pid``.

    Raises:
        SetupError: a port cannot be opened.
        SourceError: the data folder cannot be written.
    """
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    cluster = _cluster(settings)
    with stop_signals() as wait_for_stop, cluster:
        ready = {
            "seeds": _reachable(cluster.seeds),
            "http_seeds": _reachable(cluster.http_seeds),
            "tls_seeds": _reachable(cluster.tls_seeds),
            "https_seeds": _reachable(cluster.https_seeds),
            "bucket": settings.bucket,
            "pid": os.getpid(),
        }
        stream = ready_to or sys.stdout
        stream.write(json.dumps(ready) + "\n")
        stream.flush()
        while not wait_for_stop():
            pass


def _cluster(settings: ClusterSettings) -> ProducerCluster:
    try:
        return ProducerCluster(settings)
    except OSError as error:
        named = settings.named("data_folder")
        raise SourceError(f"{named} {settings.data_folder}: {error}") from None


def _reachable(seeds: Sequence[str]) -> list[str]:
    """Return the seeds that listen; nodes outside the cluster may have no port yet."""
    return [seed for seed in seeds if not seed.endswith(":0")]

"""A producer cluster as a process."""

import gc
from typing import Final

from dcp.errors import SourceError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.node.server_process import serve_until_signal

_GARBAGE_THRESHOLDS: Final = (10_000, 10, 100)
"""Thresholds of Python's cycle collector: stored documents have no cycles, and a full run is slow.
"""


def serve(settings: ClusterSettings) -> None:
    """Run a cluster as `serve_until_signal` says.

    Raises:
        SetupError: a port cannot be opened.
        SourceError: the data folder cannot be written.
    """
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    serve_until_signal(_cluster(settings))


def _cluster(settings: ClusterSettings) -> ProducerCluster:
    try:
        return ProducerCluster(settings)
    except OSError as error:
        named = settings.named("data_folder")
        raise SourceError(f"{named} {settings.data_folder}: {error}") from None

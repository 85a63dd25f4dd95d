"""A producer cluster as a process: says when it is ready, ends on SIGTERM or SIGINT."""

import json
import os
import signal
import sys
from dataclasses import replace
from threading import Event
from typing import Final, TextIO

from dcp.producer.cluster import ProducerCluster
from dcp.producer.joined_cluster import JoinedCluster
from dcp.producer.preload import PreloadSettings
from dcp.producer.settings import ClusterSettings

_EXPIRY_PAGER_SECONDS: Final = 1.0


def serve(
    settings: ClusterSettings,
    *,
    preload: PreloadSettings | None = None,
    join: str | None = None,
    ready_to: TextIO | None = None,
) -> None:
    """Run a cluster until a signal; call it from the main thread.

    With ``join`` it is one node of the cluster of the process at that address (``host:port``).

    Writes one JSON line to ``ready_to`` (default: standard output) when clients can connect and
    ``preload`` is done: ``seeds``, ``http_seeds``, ``tls_seeds``, ``https_seeds`` (empty without
    TLS), ``bucket``, ``pid``, and for one that joined its ``node``, from 1.

    Raises:
        SourceError: a port cannot be opened, or the process to join refuses us.
        ConfigError: settings that one that joins cannot have.
    """
    pager = settings.expiry_pager_seconds or _EXPIRY_PAGER_SECONDS
    settings = replace(
        settings, expiry_pager_seconds=pager, record_seqnos=False, record_branches=False
    )
    stop = Event()
    previous = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        cluster = ProducerCluster(settings) if join is None else JoinedCluster(settings, join)
        with cluster:
            if preload is not None:
                cluster.preload(preload.count, preload.value_bytes, preload.prefix, preload.seed)
            ready: dict[str, object] = {
                "seeds": cluster.seeds,
                "http_seeds": cluster.http_seeds,
                "tls_seeds": cluster.tls_seeds,
                "https_seeds": cluster.https_seeds,
                "bucket": settings.bucket,
                "pid": os.getpid(),
            }
            if isinstance(cluster, JoinedCluster):
                ready["node"] = cluster.number + 1
            stream = ready_to or sys.stdout
            stream.write(json.dumps(ready) + "\n")
            stream.flush()
            stop.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""Runs a server as a process: reports when it is ready, ends on SIGTERM or SIGINT."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

from dcp.server.node.serving import Serving

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS: Final = 0.2


def serve_until_signal(
    serving: Serving, is_over: Callable[[], bool] = lambda: False, **told: object
) -> None:
    """Run a server until SIGTERM or SIGINT, or until it ``is_over``.

    Call it in the main thread. When clients can connect, it writes one JSON line to standard
    output: ``seeds``, ``http_seeds``, ``tls_seeds``, ``https_seeds`` (empty without TLS),
    ``bucket``, ``pid``, and what else is ``told``.

    Raises the errors of `Serving.start` and `Serving.stop`.
    """
    come: list[int] = []
    # Blocking the signals is not enough: NumPy's threads do not block them, and a signal to any
    # thread interrupts the main thread.
    before = {each: signal.signal(each, lambda number, _: come.append(number)) for each in _STOPS}
    try:
        with serving:
            seeds = {
                "seeds": serving.seeds,
                "http_seeds": serving.http_seeds,
                "tls_seeds": serving.tls_seeds,
                "https_seeds": serving.https_seeds,
            }
            # Nodes outside the cluster may have no port yet.
            ready: dict[str, object] = {
                name: [seed for seed in found if not seed.endswith(":0")]
                for name, found in seeds.items()
            }
            ready |= {"bucket": serving.settings.bucket, "pid": os.getpid(), **told}
            sys.stdout.write(json.dumps(ready) + "\n")
            sys.stdout.flush()
            while not come and not is_over():
                time.sleep(_LOOK_SECONDS)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

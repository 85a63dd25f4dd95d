"""Where log records of a command go: our own warnings to standard error, all else nowhere.

A service may let more through (the relay does, of its own).

Spark's gateway logs a stack for every interrupted call; with no handler at the root, Python would
print it.
"""

import logging
import sys


def set_up_logs() -> None:
    """Send warnings of dcplake to standard error, one line each."""
    logging.getLogger().addHandler(logging.NullHandler())
    ours = logging.getLogger("dcp")
    if not ours.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        ours.addHandler(handler)
        ours.propagate = False

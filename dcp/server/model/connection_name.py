"""Names of DCP connections in statistics, logs and cursors.

A name can be any bytes. Its unprintable bytes are escaped, so it cannot forge log lines. That can
make it too long for the key of a statistic. A long name keeps its beginning, followed by its
digest, so no two names become one.
"""

from hashlib import sha256
from typing import Final

from dcp.printable import printable_name

_MOST_BYTES: Final = 1024
"""No name of documented length (200 bytes) is longer after escaping."""
_KEPT_CHARACTERS: Final = 64


def display_name(name: bytes) -> str:
    """Return the name in statistics and logs, with kv_engine's prefix (``dcp/dcpconnmap.cc``)."""
    return "eq_dcpq:" + shown_name(name)


def shown_name(name: bytes) -> str:
    """Return a client's name, or a part of it, escaped and short enough for keys."""
    return fitting(printable_name(name))


def fitting(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= _MOST_BYTES:
        return text
    return f"{text[:_KEPT_CHARACTERS]}...{sha256(encoded).hexdigest()}"

"""The display name of a DCP connection in statistics, logs and cursors.

No two names become one (kv_engine ``dcp/dcpconnmap.cc`` puts ``eq_dcpq:`` before them), and none
forges a line of a log or moves a cursor: what is not printable is escaped. A name may be any bytes,
and under ``--rules server`` as long as a key may be: escaped it would be four times as long, which
fits no key. What is too long keeps its beginning; its digest stands for the rest.
"""

from hashlib import sha256
from typing import Final

from dcp.printable import printable_name

_MOST_BYTES: Final = 1024
"""More than any name has as told that is as long as documented (200 bytes)."""
_KEPT_CHARACTERS: Final = 64


def display_name(name: bytes) -> str:
    """Return the name of a connection in statistics and logs."""
    return "eq_dcpq:" + shown_name(name)


def shown_name(name: bytes) -> str:
    """Return a client's name, or part of it, escaped for logs and keys."""
    return fitting(printable_name(name))


def fitting(text: str) -> str:
    """Return a text shortened to fit into the name of a statistic."""
    encoded = text.encode()
    if len(encoded) <= _MOST_BYTES:
        return text
    return f"{text[:_KEPT_CHARACTERS]}...{sha256(encoded).hexdigest()}"

"""What statistics, logs and cursors call a DCP connection, by the name that its client gave it.

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
    """Return a name that a client gave, or a part of it, for logs and as a part of a key."""
    return fitting(printable_name(name))


def fitting(text: str) -> str:
    """Return a text that is part of a statistic's name, so that the name can be a key."""
    encoded = text.encode()
    if len(encoded) <= _MOST_BYTES:
        return text
    return f"{text[:_KEPT_CHARACTERS]}...{sha256(encoded).hexdigest()}"

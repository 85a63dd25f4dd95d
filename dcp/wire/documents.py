"""Decodes values to documents: inflates Snappy, then splits off xattrs.

kv_engine compresses a value as a whole, xattrs included (``docs/Document.md``).
"""

from dataclasses import dataclass
from typing import Final

from dcp.errors import FrameError
from dcp.wire.snappy import MAX_INFLATED_BYTES, inflate
from dcp.wire.vocabulary import ALL_DATATYPE_BITS, Datatype
from dcp.wire.xattr import Xattrs, split_xattrs

_JSON: Final = int(Datatype.JSON)
_SNAPPY: Final = int(Datatype.SNAPPY)
_XATTR: Final = int(Datatype.XATTR)


@dataclass(frozen=True, slots=True)
class Document:
    """A decoded value."""

    datatype: int
    """The datatype of ``body``: JSON or raw."""
    xattrs: Xattrs | None
    """None if the value has no xattr section; empty if it has an empty one."""
    body: bytes


def decode_document(value: bytes, datatype: int) -> Document:
    """Return the document in a value as sent.

    Raises:
        FrameError: unknown datatype bits, or a malformed or oversized layer.
    """
    if datatype & ~ALL_DATATYPE_BITS:
        raise FrameError(f"datatype: found {datatype:#04x}, expected bits of 0x07 only")
    # A connection that asked for no values may still get the datatypes of the stored ones.
    if not value:
        return Document(datatype & _JSON, None, b"")
    if datatype & _SNAPPY:
        value = inflate(value, MAX_INFLATED_BYTES)
    xattrs: Xattrs | None = None
    if datatype & _XATTR:
        xattrs, value = split_xattrs(value)
    return Document(datatype & _JSON, xattrs, value)

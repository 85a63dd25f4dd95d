"""Decodes values to documents: Snappy, then xattrs, then the body.

The order is kv_engine's (``docs/Document.md``): a value is compressed as a whole, xattrs included.
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
    """A value in its parts. ``datatype`` is that of the body: JSON or raw.

    ``xattrs`` is None where the value has no section of them, and empty where that is empty.
    """

    datatype: int
    xattrs: Xattrs | None
    body: bytes


def decode_document(value: bytes, datatype: int) -> Document:
    """Return the document in a value as sent.

    An empty value has no layers, whatever its datatype says: connections that asked for no values
    get the datatype of what they do not get.

    Raises:
        FrameError: unknown datatype bits, or a malformed or oversized layer.
    """
    if datatype & ~ALL_DATATYPE_BITS:
        raise FrameError(f"datatype: found {datatype:#04x}, expected bits of 0x07 only")
    if not value:
        return Document(datatype & _JSON, None, b"")
    if datatype & _SNAPPY:
        value = inflate(value, MAX_INFLATED_BYTES)
    xattrs: Xattrs | None = None
    if datatype & _XATTR:
        xattrs, value = split_xattrs(value)
    return Document(datatype & _JSON, xattrs, value)

"""Values to documents: snappy, then xattrs, then the body; what is left of the datatype is JSON.

The order is kv_engine's (``docs/Document.md``): a value is compressed as a whole, xattrs included.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcp.errors import FrameError
from dcp.wire.columns import DataColumns
from dcp.wire.snappy import MAX_INFLATED_BYTES, inflate
from dcp.wire.vocabulary import ALL_DATATYPE_BITS, Datatype
from dcp.wire.xattr import Xattrs, split_xattrs, xattrs_json

_JSON: Final = int(Datatype.JSON)
_SNAPPY: Final = int(Datatype.SNAPPY)
_XATTR: Final = int(Datatype.XATTR)
_LAYERS: Final = _SNAPPY | _XATTR


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


@dataclass(frozen=True, slots=True, eq=False)
class DocumentColumns:
    """The documents of ``DataColumns``, row by row.

    ``datatype`` is that of the body (JSON or raw), ``xattrs`` one JSON object as text (null where a
    value has no xattr section), ``value`` the body, inflated.
    """

    datatype: NDArray[np.uint8]
    xattrs: pa.StringArray
    value: pa.BinaryArray


def decode_documents(columns: DataColumns) -> DocumentColumns:
    """Decode the values of all rows; only rows with layers are looked at one by one.

    Raises:
        FrameError: as ``decode_document``; names vbucket and seqno of the row.
        ValueError: the inflated values exceed what one Arrow BINARY array holds (2 GiB).
    """
    datatype = columns.datatype
    unknown = np.flatnonzero(datatype & ~np.uint8(ALL_DATATYPE_BITS))
    layered = np.flatnonzero(datatype & _LAYERS)
    if len(unknown):
        _decode_row(columns, int(unknown[0]))
    if not len(layered):
        return DocumentColumns(datatype, pa.nulls(len(columns), pa.string()), columns.value)
    documents = [_decode_row(columns, row) for row in layered.tolist()]
    texts = [None if item.xattrs is None else xattrs_json(item.xattrs) for item in documents]
    which: NDArray[np.int64] = np.full(len(columns), -1, np.int64)
    which[layered] = np.arange(len(layered))
    return DocumentColumns(
        datatype & np.uint8(_JSON),
        pa.array(texts, pa.string()).take(pa.array(which, mask=which < 0)),
        _replace(columns.value, which, [item.body for item in documents]),
    )


def _decode_row(columns: DataColumns, row: int) -> Document:
    try:
        return decode_document(columns.value[row].as_py(), int(columns.datatype[row]))
    except FrameError as error:
        raise FrameError(
            f"document at vbucket {columns.vbucket[row]} seqno {columns.seqno[row]}: {error}"
        ) from None


def _replace(values: Any, which: NDArray[np.int64], bodies: list[bytes]) -> Any:
    """Return ``values`` with body ``which[row]`` in rows where that is not negative."""
    replacements = pa.array(bodies, pa.binary())
    if not isinstance(replacements, pa.Array):
        raise ValueError("inflated values: found more than 2 GiB, expected less in one batch")
    plain = np.flatnonzero(which < 0)
    if not len(plain):
        return replacements
    source = np.where(which < 0, np.cumsum(which < 0) - 1, len(plain) + which)
    kept = values.take(pa.array(plain))
    return pa.concat_arrays([kept, replacements]).take(pa.array(source))

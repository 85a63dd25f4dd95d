"""Decodes document values for the lake (Snappy, xattrs); undecodable ones stay as sent.

Whole columns are decoded at once. Values that the decoders of columns cannot decode go to the
decoder of one document (``documents.py``), which decides.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.errors import FrameError
from dcp.lake.receive.arrow_columns import Mask, byte_lengths, mask_of
from dcp.wire.columns import DataColumns
from dcp.wire.documents import Document, decode_document
from dcp.wire.snappy import inflate_column, inflated_lengths
from dcp.wire.vocabulary import ALL_DATATYPE_BITS, Datatype
from dcp.wire.xattr import is_hidden, xattrs_json
from dcp.wire.xattr_columns import split_column

_JSON: Final = np.uint8(Datatype.JSON)
_SNAPPY: Final = np.uint8(Datatype.SNAPPY)
_XATTR: Final = np.uint8(Datatype.XATTR)
_KNOWN: Final = np.uint8(ALL_DATATYPE_BITS)


@dataclass(frozen=True, slots=True, eq=False)
class StoredDocuments:
    """Documents with ``value`` and ``datatype`` of their bodies, and two columns of ``changes``."""

    columns: DataColumns
    xattrs: pa.StringArray
    """One JSON object as text; null if a value has no xattr section."""
    detail: pa.StringArray
    """The reason why a value stays as sent; else null."""

    @property
    def document_bytes(self) -> NDArray[np.int64]:
        """The size of each document: of its frame, or of value and xattrs if they are larger."""
        lengths = byte_lengths(self.columns.value)
        if self.xattrs.null_count < len(self.xattrs):
            lengths += byte_lengths(self.xattrs)
        found: NDArray[np.int64] = np.maximum(lengths, self.columns.frame_bytes)
        return found


def layered_rows(columns: DataColumns) -> Mask:
    """Return the mask of values that need decoding, by their datatypes."""
    return columns.datatype > _JSON  # its only bit that says nothing of how it is sent


def inflated_bytes(columns: DataColumns) -> NDArray[np.int64]:
    """Return the length of each value without Snappy, by the value's own header."""
    told = inflated_lengths(columns.value)
    is_told = (columns.datatype & _SNAPPY > 0) & (told >= 0)
    return np.where(is_told, told, byte_lengths(columns.value))


def stored_documents(columns: DataColumns, *, system_xattrs: bool = True) -> StoredDocuments:
    """Inflate values and split off their xattrs.

    Without ``system_xattrs`` the result lacks ``txn`` and names that begin with ``_``.
    """
    nothing = pa.nulls(len(columns), pa.string())
    if not layered_rows(columns).any():
        return StoredDocuments(columns, nothing, nothing)
    datatype = columns.datatype
    is_odd = datatype & ~_KNOWN > 0
    is_filled = ~is_odd & (byte_lengths(columns.value) > 0)  # else it has no layers
    value, xattrs = columns.value, nothing
    is_snappy = is_filled & (datatype & _SNAPPY > 0)
    if is_snappy.any():
        value = _replaced(value, is_snappy, inflate_column(_chosen(value, is_snappy)))
        is_odd |= mask_of(value.is_null())
    has_xattrs = is_filled & ~is_odd & (datatype & _XATTR > 0)
    if has_xattrs.any():
        chosen = _chosen(value, has_xattrs)
        bodies, objects = split_column(chosen, system_xattrs=system_xattrs)
        value = _replaced(value, has_xattrs, bodies)
        xattrs = _replaced(nothing, has_xattrs, objects)
        is_odd |= mask_of(value.is_null())
    datatype = np.where(is_odd, datatype, datatype & _JSON)
    stored = StoredDocuments(replace(columns, datatype=datatype, value=value), xattrs, nothing)
    return _one_by_one(columns, stored, is_odd, system_xattrs) if is_odd.any() else stored


def _one_by_one(
    sent: DataColumns, stored: StoredDocuments, rows: Mask, system_xattrs: bool
) -> StoredDocuments:
    """Return the documents with some rows, at least one, decoded from ``sent``."""
    datatype = stored.columns.datatype
    xattrs: list[str | None] = []
    bodies: list[bytes] = []
    details: list[str | None] = []
    for row in np.flatnonzero(rows).tolist():
        value = sent.value[row].as_py()
        try:
            document = decode_document(value, int(sent.datatype[row]))
        except FrameError as error:
            xattrs.append(None)
            bodies.append(value)
            details.append(
                "the value is kept as it was sent: document at vbucket "
                f"{sent.vbucket[row]} seqno {sent.seqno[row]}: {error}"
            )
        else:
            datatype[row] = document.datatype
            xattrs.append(_xattrs(document, system_xattrs=system_xattrs))
            bodies.append(document.body)
            details.append(None)
    value = _replaced(stored.columns.value, rows, pa.array(bodies, pa.binary()))
    return StoredDocuments(
        replace(stored.columns, value=value),
        _replaced(stored.xattrs, rows, pa.array(xattrs, pa.string())),
        _replaced(stored.detail, rows, pa.array(details, pa.string())),
    )


def _xattrs(document: Document, *, system_xattrs: bool) -> str | None:
    if document.xattrs is None:
        return None
    if system_xattrs:
        return xattrs_json(document.xattrs)
    users = tuple(each for each in document.xattrs if not is_hidden(each[0]))
    return xattrs_json(users) if users or not document.xattrs else None


def _chosen(column: pa.Array, rows: Mask) -> pa.Array:
    return column if rows.all() else column.filter(pa.array(rows))


def _replaced(column: pa.Array, rows: Mask, replacements: pa.Array) -> pa.Array:
    """Return ``column`` with consecutive replacements in ``rows``, at least one."""
    if rows.all():
        return replacements
    return pc.replace_with_mask(column, pa.array(rows), replacements)

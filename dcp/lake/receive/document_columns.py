"""Decodes document values for the lake (Snappy, xattrs); undecodable ones stay as sent."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.errors import FrameError
from dcp.lake.config.filter_settings import TRANSACTION_XATTR
from dcp.wire.columns import DataColumns
from dcp.wire.documents import Document, decode_document
from dcp.wire.vocabulary import Datatype
from dcp.wire.xattr import xattrs_json

_JSON: Final = np.uint8(Datatype.JSON)
_TRANSACTION: Final = TRANSACTION_XATTR.encode()


@dataclass(frozen=True, slots=True, eq=False)
class StoredDocuments:
    """Documents with ``value`` and ``datatype`` of their bodies, and two columns of ``changes``.

    ``xattrs`` is one JSON object as text, null where a value has no xattr section. ``detail`` says
    why a value is as it was sent, null where it is not.
    """

    columns: DataColumns
    xattrs: pa.StringArray
    detail: pa.StringArray


def stored_documents(columns: DataColumns, *, system_xattrs: bool = True) -> StoredDocuments:
    """Inflate values and split off their xattrs; only rows with layers are looked at one by one.

    Without ``system_xattrs`` those whose names begin with ``_``, and ``txn``, are left out.
    """
    nothing = pa.nulls(len(columns), pa.string())
    is_layered = columns.datatype > _JSON  # its only bit that says nothing of how it is sent
    if not is_layered.any():
        return StoredDocuments(columns, nothing, nothing)
    datatype = columns.datatype.copy()
    xattrs: list[str | None] = []
    bodies: list[bytes] = []
    details: list[str | None] = []
    for row in np.flatnonzero(is_layered).tolist():
        try:
            document = decode_document(columns.value[row].as_py(), int(datatype[row]))
        except FrameError as error:
            xattrs.append(None)
            bodies.append(columns.value[row].as_py())
            details.append(
                "the value is kept as it was sent: document at vbucket "
                f"{columns.vbucket[row]} seqno {columns.seqno[row]}: {error}"
            )
        else:
            datatype[row] = document.datatype
            xattrs.append(_xattrs(document, system_xattrs=system_xattrs))
            bodies.append(document.body)
            details.append(None)
    value = _replaced(columns.value, is_layered, pa.array(bodies, pa.binary()))
    return StoredDocuments(
        replace(columns, datatype=datatype, value=value),
        _replaced(nothing, is_layered, pa.array(xattrs, pa.string())),
        _replaced(nothing, is_layered, pa.array(details, pa.string())),
    )


def _xattrs(document: Document, *, system_xattrs: bool) -> str | None:
    if document.xattrs is None:
        return None
    if system_xattrs:
        return xattrs_json(document.xattrs)
    users = tuple(each for each in document.xattrs if not _is_of_system(each[0]))
    return xattrs_json(users) if users or not document.xattrs else None


def _is_of_system(name: bytes) -> bool:
    return name.startswith(b"_") or name == _TRANSACTION


def _replaced(column: pa.Array, rows: NDArray[np.bool_], replacements: pa.Array) -> pa.Array:
    """Return ``column`` with one replacement after the other in ``rows``, at least one."""
    if rows.all():
        return replacements
    return pc.replace_with_mask(column, pa.array(rows), replacements)

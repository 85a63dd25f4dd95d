"""Document values as the lake stores them; what cannot be decoded survives as it was sent."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcp.errors import FrameError
from dcp.wire.columns import DataColumns
from dcp.wire.documents import decode_documents


@dataclass(frozen=True, slots=True, eq=False)
class StoredDocuments:
    """Columns of ``changes``; ``detail`` says what is wrong with a value, null where nothing is."""

    datatype: NDArray[Any]
    xattrs: pa.StringArray
    value: pa.BinaryArray
    detail: pa.StringArray


def stored_documents(columns: DataColumns) -> StoredDocuments:
    """Inflate values and split off their xattrs, row by row only where one of them is broken."""
    try:
        documents = decode_documents(columns)
    except (FrameError, ValueError) as error:  # ValueError: together more than Arrow can hold
        if len(columns) == 1:
            return _as_sent(columns, str(error))
        middle = len(columns) // 2
        return _joined(
            stored_documents(columns.slice(0, middle)),
            stored_documents(columns.slice(middle, len(columns) - middle)),
        )
    return StoredDocuments(
        documents.datatype,
        documents.xattrs,
        documents.value,
        pa.nulls(len(columns), pa.string()),
    )


def _as_sent(columns: DataColumns, reason: str) -> StoredDocuments:
    return StoredDocuments(
        columns.datatype,
        pa.nulls(1, pa.string()),
        columns.value,
        pa.array([f"the value is kept as it was sent: {reason}"]),
    )


def _joined(first: StoredDocuments, second: StoredDocuments) -> StoredDocuments:
    return StoredDocuments(
        np.concatenate([first.datatype, second.datatype]),
        pa.concat_arrays([first.xattrs, second.xattrs]),
        pa.concat_arrays([first.value, second.value]),
        pa.concat_arrays([first.detail, second.detail]),
    )

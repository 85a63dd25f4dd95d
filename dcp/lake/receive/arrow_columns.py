"""Converts whole columns between numpy and the Arrow types of the lake's tables."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.lake.tables.schema import U64

Mask = NDArray[np.bool_]


def mask_of(column: pa.BooleanArray) -> Mask:
    mask: Mask = column.to_numpy(zero_copy_only=False)
    return mask


def byte_lengths(column: pa.Array) -> NDArray[np.int64]:
    """Return the size of each text or binary; 0 for null."""
    lengths: NDArray[np.int64] = pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
    return lengths


def u64_column(values: NDArray[np.uint64]) -> pa.Array:
    """Return DECIMAL(20,0) values, little-endian integers of 16 bytes: the value, then zeros."""
    words = np.zeros((len(values), 2), "<u8")
    words[:, 0] = values
    return pa.Array.from_buffers(U64, len(values), [None, pa.py_buffer(words)])


def integer_column(
    values: NDArray[Any], kind: pa.DataType, present: Mask | None = None
) -> pa.Array:
    mask = None if present is None or present.all() else ~present
    return pa.array(values.astype(kind.to_pandas_dtype(), copy=False), kind, mask=mask)


def constant_column(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def nullified(column: pa.Array, present: Mask) -> pa.Array:
    """Return a column without nulls as one with nulls for rows outside ``present``; copies no
    values.
    """
    if present.all():
        return column
    bits = np.concatenate([np.zeros(column.offset, np.bool_), present])
    validity = pa.py_buffer(np.packbits(bits, bitorder="little"))
    buffers = [validity, *column.buffers()[1:]]
    return pa.Array.from_buffers(column.type, len(column), buffers, offset=column.offset)

"""Reads and makes Arrow BINARY columns by their offsets: bytes are picked in bulk, never by row."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def offsets_of(column: pa.BinaryArray) -> NDArray[np.int64]:
    """Return where each value begins in ``octets_of``, and behind them where the last one ends."""
    if not len(column):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    return offsets.astype(np.int64)


def octets_of(column: pa.BinaryArray) -> memoryview:
    """Return the buffer that holds a column's values, not copied; perhaps others' bytes too."""
    data = column.buffers()[2]
    return memoryview(b"" if data is None else data).cast("B")


def segments(buffer: object, bounds: NDArray[np.signedinteger[Any]]) -> pa.BinaryArray:
    """Return the bytes between each two of ascending bounds into a buffer of less than 2 GiB.

    What is not wanted may lie between what is: ``picked`` leaves it out. Nothing is copied yet.
    """
    offsets = pa.py_buffer(bounds.astype(np.int32, copy=False).ravel())
    return pa.Array.from_buffers(
        pa.binary(), bounds.size - 1, [None, offsets, pa.py_buffer(buffer)]
    )


def picked(parts: pa.BinaryArray, indices: NDArray[np.int64]) -> pa.BinaryArray:
    """Return a copy of the parts at these indices, which are not checked."""
    return pc.take(parts, pa.array(indices), boundscheck=False)

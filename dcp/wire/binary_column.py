"""Reads and makes Arrow BINARY columns by their offsets, in bulk instead of by row."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def offsets_of(column: pa.BinaryArray) -> NDArray[np.int64]:
    """Return the start of each value in ``octets_of``, then the end of the last one."""
    if not len(column):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    return offsets.astype(np.int64)


def octets_of(column: pa.BinaryArray) -> memoryview:
    """Return the buffer that holds a column's values, not copied; it may hold other bytes too."""
    data = column.buffers()[2]
    return memoryview(b"" if data is None else data).cast("B")


def segments(buffer: object, bounds: NDArray[np.signedinteger[Any]]) -> pa.BinaryArray:
    """Return the bytes between each two neighbours of ascending bounds, not copied.

    The buffer must be shorter than 2 GiB. Segments that the caller does not want may lie between
    the others: ``picked`` leaves them out.
    """
    offsets = pa.py_buffer(bounds.astype(np.int32, copy=False).ravel())
    return pa.Array.from_buffers(
        pa.binary(), bounds.size - 1, [None, offsets, pa.py_buffer(buffer)]
    )


def picked(parts: pa.BinaryArray, indices: NDArray[np.int64]) -> pa.BinaryArray:
    """Return a copy of the parts at these indices, which must be valid."""
    return pc.take(parts, pa.array(indices), boundscheck=False)

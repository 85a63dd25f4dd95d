"""Detects damaged frames with one running CRC (CRC-32, IEEE) through all frames of a disk log.

The index has the CRC behind each frame. So one call checks any run of consecutive frames: from the
CRC before the first, its bytes must lead to the CRC behind the last. These CRCs are in memory only.
They are computed when a batch is written, or when a disk log is opened and the batch's own CRC
matched. Every read is checked, because a disk can damage data at any time.
"""

from zlib import crc32

import numpy as np
import numpy.typing as npt

from dcp.server.storage.disk_file import Data
from dcp.server.storage.disk_ranges import U64s

U32s = npt.NDArray[np.uint32]


def no_crcs() -> U32s:
    return np.empty(0, np.uint32)


class RunningCrcs:
    """Computes the CRC behind each frame of a batch, from parts of any length."""

    def __init__(self, sizes: U64s, crc: int) -> None:
        """``sizes``: bytes of each frame; ``crc``: the CRC behind the frame before them."""
        self.behind: U32s = np.zeros(len(sizes), np.uint32)
        self._cells = self.behind.data
        self._sizes = iter(sizes.data)
        self._row = 0
        self._crc = crc
        self._left_bytes: int | None = next(self._sizes, None)
        """Of the frame whose bytes come next; None after the last."""

    def add(self, data: Data) -> None:
        view, offset, crc = memoryview(data), 0, self._crc
        # Each frame that ends in this part.
        while self._left_bytes is not None and offset + self._left_bytes <= len(view):
            stop = offset + self._left_bytes
            crc = crc32(view[offset:stop], crc)
            self._cells[self._row] = crc
            self._row += 1
            offset, self._left_bytes = stop, next(self._sizes, None)
        if self._left_bytes is not None and offset < len(view):
            # The next part continues this frame.
            crc = crc32(view[offset:], crc)
            self._left_bytes -= len(view) - offset
        self._crc = crc

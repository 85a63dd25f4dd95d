"""Checks frames read from a log by CRCs: a running CRC behind each of them.

It runs (CRC-32, IEEE) from a log's first frame through all of them. So of any frames in a row, one
or a million, the CRC before the first and the one behind the last tell in one call whether a byte
changed. These CRCs are in memory alone, with the index: they are made when a batch is written, or
when a log is opened, of bytes for which the batch's own CRC vouches. What was read once is checked
again: a disk damages what it holds at any time.
"""

from zlib import crc32

import numpy as np
import numpy.typing as npt

from dcp.server.storage.disk_file import Data
from dcp.server.storage.disk_ranges import U64s

U32s = npt.NDArray[np.uint32]


class DamagedFrameError(OSError):
    """A frame on disk is not what was written there."""


def no_crcs() -> U32s:
    """Return an empty column of CRCs."""
    return np.empty(0, np.uint32)


class RunningCrcs:
    """The CRC behind each of a batch's frames, as their bytes come in parts of any length."""

    def __init__(self, sizes: U64s, crc: int) -> None:
        """``sizes`` (in bytes) are the frames'; ``crc`` is the one behind the frame before them."""
        self.behind: U32s = np.zeros(len(sizes), np.uint32)
        self._cells = self.behind.data
        self._sizes = iter(sizes.data)
        self._row = 0
        self._crc = crc
        self._left_bytes: int | None = next(self._sizes, None)  # of the frame that comes

    def add(self, data: Data) -> None:
        """Take the next bytes."""
        view, place, crc = memoryview(data), 0, self._crc
        while self._left_bytes is not None and place + self._left_bytes <= len(view):
            stop = place + self._left_bytes
            crc = crc32(view[place:stop], crc)
            self._cells[self._row] = crc
            self._row += 1
            place, self._left_bytes = stop, next(self._sizes, None)
        if self._left_bytes is not None and place < len(view):
            crc = crc32(view[place:], crc)
            self._left_bytes -= len(view) - place
        self._crc = crc

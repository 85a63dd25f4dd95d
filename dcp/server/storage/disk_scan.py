"""Reads a vbucket's disk log in seqno order: the frames of (after, end] as they are at the start.

A scan keeps only its row; it reads index and file when the caller asks for frames. So idle scans
cost nothing. Later changes do not affect it: a disk log only grows, replacements have seqnos above
the scan's end, and a rollback makes a new index. If compaction replaces the file, the old one stays
open for the remaining scans.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Final, Self
from zlib import crc32

import numpy as np
import numpy.typing as npt

from dcp.server.storage.disk_file import Data, DiskFile, Extent, ReadEach
from dcp.server.storage.disk_index import Columns, find
from dcp.server.storage.disk_ranges import U64s

_BLOCK_ROWS: Final = 8192
"""Most rows per step: few enough to keep each call short."""
_FEW_ROWS: Final = 16
"""Least rows per step, however few bytes the caller asks for."""
_LEAST_FRAME_BYTES: Final = 48
"""About the size of the smallest frame; it bounds the rows that can fit into the asked bytes."""
Indices = npt.NDArray[np.int64]
_NO_ROWS: Final = np.empty(0, np.int64)
_GAP_BYTES: Final = 64 * 1024
"""A smaller gap between two frames is read and dropped, which is cheaper than a second read."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Consecutive frames: frame i is ``data[ends[i] : ends[i + 1]]``, and ``ends[0]`` is 0.

    Do not change ``data``: it may be the store's own memory.
    """

    data: Data
    ends: npt.NDArray[np.int64]
    seqnos: U64s


class ScannedFile:
    """The file of one disk log generation, which counts its scans; any thread may use it."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._read_pinned: ReadEach | None = None
        self._pins = ExitStack()
        self._scans = 0
        self._lock = Lock()

    def read(self, offset: int, size: int) -> Data:
        """Read bytes of this generation, even after another has replaced it."""
        return self.read_each([(offset, size)])[0]

    def read_each(self, extents: Sequence[Extent]) -> list[Data]:
        return (self._read_pinned or self._file.read_each)(extents)

    def read_run(self, rows: Columns) -> Data:
        """Return the frames of consecutive rows, at least one.

        Raises OSError if they are not what was written, or cannot be read.
        """
        offset = int(rows.starts[0])
        data = self.read(offset, int(rows.starts[-1]) + int(rows.sizes[-1]) - offset)
        is_checked = self._file.may_decay
        if is_checked and crc32(data, int(rows.crcs_before[0])) != int(rows.crcs_behind[-1]):
            self._raise_damage(rows, data)
        return data

    def check_runs(
        self, rows: Columns, firsts: Indices, lasts: Indices, parts: Sequence[Data]
    ) -> None:
        """Check each part, the frames of rows first to last, against the CRCs of the index.

        Raises OSError if they do not match.
        """
        if not self._file.may_decay:
            return
        before, behind = rows.crcs_before[firsts].tolist(), rows.crcs_behind[lasts].tolist()
        # One CRC per run is cheap; only damage needs a look at each frame.
        if list(map(crc32, parts, before)) != behind:
            for first, last, part in zip(firsts.tolist(), lasts.tolist(), parts, strict=True):
                self._raise_damage(rows.take(slice(first, last + 1)), part)

    def _raise_damage(self, rows: Columns, data: Data) -> None:
        """Raise OSError for the first damaged frame, if there is one."""
        frame, base = memoryview(data), int(rows.starts[0])
        columns = rows.seqnos, rows.starts, rows.sizes, rows.crcs_before, rows.crcs_behind
        lists = [column.tolist() for column in columns]
        for seqno, at, size, before, expected in zip(*lists, strict=True):
            found = crc32(frame[at - base : at - base + size], before)
            if found != expected:
                raise OSError(
                    f"{self._file}: the frame of seqno {seqno} at byte {at} is damaged: "
                    f"found CRC {found:#010x}, expected {expected:#010x}"
                )

    @property
    def is_scanned(self) -> bool:
        return self._scans > 0

    def enter(self) -> None:
        with self._lock:
            self._scans += 1

    def leave(self) -> None:
        with self._lock:
            self._scans -= 1
            if not self._scans:
                # If the compaction failed, the next scan reads the file itself again.
                self._read_pinned = None
                self._pins.close()

    def retire(self) -> None:
        """Pin the file for open scans; call it before the file is replaced or given away."""
        with self._lock:
            if not self._scans:
                return
            self._read_pinned = self._pins.enter_context(self._file.pinned())


class Scan:
    """The frames of (``start_seqno``, ``end_seqno``] in seqno order.

    Close it, or use it as a context manager.
    """

    def __init__(
        self,
        file: ScannedFile,
        columns: Columns,
        bounds: tuple[int, int],
        *,
        each_key_once: bool,
    ) -> None:
        self.start_seqno, self.end_seqno = bounds
        self._each_key_once = each_key_once
        self._columns = columns
        self.item_count = len(columns)
        if each_key_once:
            self.item_count = int(np.count_nonzero(self._is_newest(columns)))
        self._next = 0
        self._scanned: ScannedFile | None = file
        file.enter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._scanned is not None:
            self._scanned.leave()
            self._scanned = None
            self._columns = self._columns.take(slice(0))

    def read(self, most_bytes: int) -> Frames | None:
        """Return the next frames, at least one and about ``most_bytes``; None at the end.

        Raises ValueError if the scan is closed. Raises OSError if the file cannot be read or a
        frame is damaged; the next call then tries the same frames again.
        """
        if self._scanned is None:
            raise ValueError(
                f"scan of seqnos {self.start_seqno} to {self.end_seqno}: read after it was closed"
            )
        rows = self._next_rows(min(_BLOCK_ROWS, max(_FEW_ROWS, most_bytes // _LEAST_FRAME_BYTES)))
        if not len(rows):
            return None
        ends = _ends_of(rows)
        fitting = max(1, int(np.searchsorted(ends, most_bytes, side="right")) - 1)
        if fitting < len(rows):
            self.go_back(int(rows.seqnos[fitting]))
            rows, ends = rows.take(slice(fitting)), ends[: fitting + 1]
        try:
            return Frames(_gathered(self._scanned, rows), ends, rows.seqnos)
        except OSError:
            self.go_back(int(rows.seqnos[0]))
            raise

    def go_back(self, seqno: int) -> None:
        self._next = int(np.searchsorted(self._columns.seqnos, np.uint64(seqno)))

    def read_again(self, first_seqno: int, before_seqno: int) -> Frames:
        """Return the frames of [``first_seqno``, ``before_seqno``) without moving ``read``'s row.

        Raises the errors of ``frames``.
        """
        bounds = np.array([first_seqno, before_seqno], np.uint64)
        first, last = np.searchsorted(self._columns.seqnos, bounds).tolist()
        return self.frames(self._newest_of(slice(first, last)).seqnos.tolist())

    def frame_bytes(self, seqno: int) -> int:
        """Return the bytes of one frame; raise ValueError if the scan does not have it."""
        return int(self._rows_at([seqno]).sizes[0])

    def frames(self, seqnos: Sequence[int]) -> Frames:
        """Return frames in the given order, without moving ``read``'s row.

        Raises ValueError if the scan is closed or lacks a seqno, and OSError if the file cannot be
        read or a frame is damaged.
        """
        rows = self._rows_at(seqnos)
        if self._scanned is None:
            raise AssertionError("a closed scan has no rows")
        extents = list(zip(rows.starts.tolist(), rows.sizes.tolist(), strict=True))
        parts = self._scanned.read_each(extents)
        each = np.arange(len(rows))
        self._scanned.check_runs(rows, each, each, parts)
        return Frames(b"".join(parts), _ends_of(rows), rows.seqnos)

    def _rows_at(self, seqnos: Sequence[int]) -> Columns:
        wanted, known = np.array(seqnos, np.uint64), self._columns.seqnos
        rows, found = find(known, wanted) if len(known) else (_NO_ROWS, np.zeros(len(wanted), bool))
        if self._scanned is None or not found.all():
            missing = int(wanted[np.argmin(found)])
            raise ValueError(
                f"scan of seqnos {self.start_seqno} to {self.end_seqno}: found no seqno {missing}"
            )
        return self._columns.take(rows)

    def _next_rows(self, most_rows: int) -> Columns:
        rows = self._columns.take(slice(0))
        while not len(rows) and self._next < len(self._columns):
            rows = self._newest_of(slice(self._next, self._next + most_rows))
            self._next = min(self._next + most_rows, len(self._columns))
            # Nothing of this step is the newest of its key, so look further ahead.
            most_rows = _BLOCK_ROWS
        return rows

    def _newest_of(self, chosen: slice) -> Columns:
        rows = self._columns.take(chosen)
        if self._each_key_once and not (newest := self._is_newest(rows)).all():
            rows = rows.take(newest)
        return rows

    def _is_newest(self, columns: Columns) -> npt.NDArray[np.bool_]:
        return columns.replaced_at > np.uint64(self.end_seqno)


def _ends_of(rows: Columns) -> npt.NDArray[np.int64]:
    ends = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(rows.sizes, out=ends[1:], dtype=np.int64)
    return ends


def _gathered(file: ScannedFile, rows: Columns) -> Data:
    """Return the frames of rows that may lie apart in the file."""
    stops = rows.starts + rows.sizes
    breaks = np.flatnonzero(rows.starts[1:] != stops[:-1]) + 1
    if not len(breaks):
        return file.read_run(rows)
    firsts = np.concatenate(([0], breaks))
    lasts = np.concatenate((breaks - 1, [len(rows) - 1]))
    starts, stops = rows.starts[firsts], stops[lasts]
    # Read frames that lie close together with the gaps between them, then cut the gaps out.
    wide = np.flatnonzero(starts[1:] - stops[:-1] > _GAP_BYTES) + 1
    groups = list(zip(np.split(starts, wide), np.split(stops, wide), strict=True))
    extents = [(int(near_starts[0]), int(near_stops[-1])) for near_starts, near_stops in groups]
    spans = file.read_each([(base, end - base) for base, end in extents])
    parts: list[memoryview] = []
    for (near_starts, near_stops), (base, _), span in zip(groups, extents, spans, strict=True):
        view = memoryview(span)
        parts += [
            view[start - base : stop - base]
            for start, stop in zip(near_starts.tolist(), near_stops.tolist(), strict=True)
        ]
    file.check_runs(rows, firsts, lasts, parts)
    return b"".join(parts)

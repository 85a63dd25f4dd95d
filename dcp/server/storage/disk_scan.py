"""Reading a vbucket's log in order: the frames of (after, end] as they were when the scan began.

A scan looks at the index and at the file only as it is read, and keeps nothing but its place: so
many scans that nobody reads cost nothing. Neither shows it anything new: a log
only grows, items are replaced at seqnos above the scan's end, and going back makes a new index.
Where compaction puts another file in the place of this one, the old is held open for the scans
that are left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Final, Self
from zlib import crc32

import numpy as np
import numpy.typing as npt

from dcp.server.storage.disk_file import Data, DiskFile, Extent, PinnedFile
from dcp.server.storage.disk_index import Columns, find
from dcp.server.storage.disk_ranges import U64s
from dcp.server.storage.frame_crcs import DamagedFrameError

_BLOCK_ROWS: Final = 8192
"""So many rows are looked at in a row for what is shown, where as much may be read."""
_FEW_ROWS: Final = 16
_LEAST_FRAME_BYTES: Final = 48
"""About what the shortest frames take: how many rows are worth a look."""
Indices = npt.NDArray[np.int64]
_NO_ROWS: Final = np.empty(0, np.int64)
_GAP_BYTES: Final = 64 * 1024
"""Less than this between two frames is read and thrown away: cheaper than another read."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Some frames in a row: frame i is ``data[ends[i] : ends[i + 1]]``; ``ends[0]`` is 0.

    ``data`` may be the store's own memory: it must not be changed.
    """

    data: Data
    ends: npt.NDArray[np.int64]
    seqnos: U64s


class ScannedFile:
    """The file of one generation of a log, and how many scans read it, in any thread."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._pinned: PinnedFile | None = None
        self._scans = 0
        self._lock = Lock()

    def read(self, offset: int, size: int) -> Data:
        """Return bytes of this generation, also when another has taken its place."""
        return self.read_each([(offset, size)])[0]

    def read_each(self, places: Sequence[Extent]) -> list[Data]:
        """Return the bytes of several places; the file is opened once, if need be."""
        return (self._pinned or self._file).read_each(places)

    def read_run(self, rows: Columns) -> Data:
        """Return the frames of some rows, at least one, that stand in a row in the file.

        Raises:
            DamagedFrameError: they are not what was written.
            OSError: the file cannot be read.
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
        """Compare what was read with what was written: each part has the rows of first to last.

        Raises:
            DamagedFrameError: they are not the same.
        """
        if not self._file.may_decay:
            return
        before, behind = rows.crcs_before[firsts].tolist(), rows.crcs_behind[lasts].tolist()
        if list(map(crc32, parts, before)) != behind:
            for first, last, part in zip(firsts.tolist(), lasts.tolist(), parts, strict=True):
                self._raise_damage(rows.take(slice(first, last + 1)), part)

    def _raise_damage(self, rows: Columns, data: Data) -> None:
        """Name the first frame that is damaged, of some in a row; nothing where none is."""
        frame, base = memoryview(data), int(rows.starts[0])
        columns = rows.seqnos, rows.starts, rows.sizes, rows.crcs_before, rows.crcs_behind
        lists = [column.tolist() for column in columns]
        for seqno, at, size, before, expected in zip(*lists, strict=True):
            found = crc32(frame[at - base : at - base + size], before)
            if found != expected:
                raise DamagedFrameError(
                    f"{self._file}: the frame of seqno {seqno} at byte {at} is damaged: "
                    f"found CRC {found:#010x}, expected {expected:#010x}"
                )

    @property
    def is_scanned(self) -> bool:
        """True if a scan is open."""
        return self._scans > 0

    def enter(self) -> None:
        """Count one scan more."""
        with self._lock:
            self._scans += 1

    def leave(self) -> None:
        """Count one scan less; the last one lets go of a file that was replaced."""
        with self._lock:
            self._scans -= 1
            is_last = not self._scans
        if is_last and self._pinned is not None:
            self._pinned.close()
            self._pinned = None  # where nothing took its place it is read on

    def retire(self) -> None:
        """Prepare for another file in this one's place, or another writer; to be called before."""
        if self._scans:
            self._pinned = self._file.pin()


class Scan:
    """The frames of (``start_seqno``, ``end_seqno``] in seqno order.

    A scan must be closed; it is its own context manager.
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
            self.item_count = int(np.count_nonzero(self._is_shown(columns)))
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
        """Let go of what the scan holds; more than once does no harm."""
        if self._scanned is not None:
            self._scanned.leave()
            self._scanned = None
            self._columns = self._columns.take(slice(0))

    def read(self, most_bytes: int) -> Frames | None:
        """Return the next frames, at least one and about ``most_bytes``; None after the last.

        Raises:
            ValueError: the scan is closed.
            OSError: the file cannot be read, or a frame is damaged; it is read again then.
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
        """Let what was read from a seqno on be read again."""
        self._next = int(np.searchsorted(self._columns.seqnos, np.uint64(seqno)))

    def read_again(self, first_seqno: int, before_seqno: int) -> Frames:
        """Return what is shown of [``first_seqno``, ``before_seqno``), wherever ``read`` stands.

        Raises as ``frames``.
        """
        bounds = np.array([first_seqno, before_seqno], np.uint64)
        first, last = np.searchsorted(self._columns.seqnos, bounds).tolist()
        return self.frames(self._shown(slice(first, last)).seqnos.tolist())

    def frame_bytes(self, seqno: int) -> int:
        """Return the length of one frame of the scan; raises ValueError as ``frames``."""
        return int(self._rows_at([seqno]).sizes[0])

    def frames(self, seqnos: Sequence[int]) -> Frames:
        """Return some frames of the scan in the given order, wherever ``read`` stands.

        Raises:
            ValueError: the scan is closed, or has nothing at one of the seqnos.
            OSError: the file cannot be read, or a frame is damaged.
        """
        rows = self._rows_at(seqnos)
        if self._scanned is None:
            raise AssertionError("a closed scan has no rows")
        places = list(zip(rows.starts.tolist(), rows.sizes.tolist(), strict=True))
        parts = self._scanned.read_each(places)
        each = np.arange(len(rows))
        self._scanned.check_runs(rows, each, each, parts)
        return Frames(b"".join(parts), _ends_of(rows), rows.seqnos)

    def _rows_at(self, seqnos: Sequence[int]) -> Columns:
        wanted, held = np.array(seqnos, np.uint64), self._columns.seqnos
        rows, found = find(held, wanted) if len(held) else (_NO_ROWS, np.zeros(len(wanted), bool))
        if self._scanned is None or not found.all():
            missing = int(wanted[np.argmin(found)])
            raise ValueError(
                f"scan of seqnos {self.start_seqno} to {self.end_seqno}: found no seqno {missing}"
            )
        return self._columns.take(rows)

    def _next_rows(self, most_rows: int) -> Columns:
        """Return what is shown of the next rows that show something; none after the last."""
        rows = self._columns.take(slice(0))
        while not len(rows) and self._next < len(self._columns):
            rows = self._shown(slice(self._next, self._next + most_rows))
            self._next = min(self._next + most_rows, len(self._columns))
            most_rows = _BLOCK_ROWS
        return rows

    def _shown(self, place: slice) -> Columns:
        rows = self._columns.take(place)
        if self._each_key_once and not (shown := self._is_shown(rows)).all():
            rows = rows.take(shown)
        return rows

    def _is_shown(self, columns: Columns) -> npt.NDArray[np.bool_]:
        return columns.replaced_at > np.uint64(self.end_seqno)


def _ends_of(rows: Columns) -> npt.NDArray[np.int64]:
    ends = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(rows.sizes, out=ends[1:], dtype=np.int64)
    return ends


def _gathered(file: ScannedFile, rows: Columns) -> Data:
    """Return the frames of some rows without what lies between them in the file."""
    stops = rows.starts + rows.sizes
    breaks = np.flatnonzero(rows.starts[1:] != stops[:-1]) + 1
    if not len(breaks):
        return file.read_run(rows)
    firsts = np.concatenate(([0], breaks))
    lasts = np.concatenate((breaks - 1, [len(rows) - 1]))
    starts, stops = rows.starts[firsts], stops[lasts]
    wide = np.flatnonzero(starts[1:] - stops[:-1] > _GAP_BYTES) + 1
    groups = list(zip(np.split(starts, wide), np.split(stops, wide), strict=True))
    places = [(int(near_starts[0]), int(near_stops[-1])) for near_starts, near_stops in groups]
    spans = file.read_each([(base, end - base) for base, end in places])
    parts: list[memoryview] = []
    for (near_starts, near_stops), (base, _), span in zip(groups, places, spans, strict=True):
        view = memoryview(span)
        parts += [
            view[start - base : stop - base]
            for start, stop in zip(near_starts.tolist(), near_stops.tolist(), strict=True)
        ]
    file.check_runs(rows, firsts, lasts, parts)
    return b"".join(parts)

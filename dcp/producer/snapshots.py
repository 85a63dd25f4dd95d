"""Snapshots on the wire: a marker, then frames in batches that fit the window.

A snapshot is taken at one instant: everything after the stream's seqno up to an end, each key at
most once with its newest version in that range. What is written later belongs to a later snapshot.
Frames are fetched a chunk at a time; a chunk knows the running sum of its frame lengths, so how
many messages the window lets pass is one binary search, and the stream's opaque is written into a
whole batch at once.

Where the item at the end is a purged tombstone, the client must still be able to complete the
snapshot: with Collections SEQNO_ADVANCED follows the items (``advances``; kv_engine
``docs/dcp/documentation/commands/seqno-advanced.md``), else the snapshot goes on to the next item
that is shown. It never ends earlier: without the tombstone that would be no state that there was.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from dcp.producer.history import Selection, VbucketHistory
from dcp.producer.manifest import DEFAULT_ID
from dcp.producer.stream_filter import StreamFilter
from dcp.producer.versions import OPAQUE_OFFSET, Flavour, Version
from dcp.wire.vocabulary import SnapshotFlag

CHUNK_ITEMS: Final = 2048
_COLLECTIONS: Final = int(Flavour.COLLECTIONS)
_OPAQUE_BYTES: Final = np.arange(OPAQUE_OFFSET, OPAQUE_OFFSET + 4)


class Chunk:
    """Some frames in a row, ready to be cut into batches."""

    def __init__(
        self,
        ends: npt.NDArray[np.int64],
        seqnos: npt.NDArray[np.uint64],
        buffer: memoryview | None,
        parts: list[bytes],
    ) -> None:
        """``ends[i]`` is the length of the first i frames, in buffer or as two parts each."""
        self._ends = ends
        self._seqnos = seqnos
        self._buffer = buffer
        self._parts = parts
        self._next = 0

    @property
    def is_empty(self) -> bool:
        """Whether all frames were taken."""
        return self._next == len(self._seqnos)

    def take(
        self, room_bytes: int, most_bytes: int, most_items: int, opaque: int
    ) -> tuple[bytearray, npt.NDArray[np.uint64]]:
        """Return the next frames as one buffer, and their seqnos; at least one frame.

        Frames are taken while less than ``room_bytes`` was taken before them, the rule of flow
        control; and until ``most_bytes`` would be exceeded or ``most_items`` are taken.
        """
        first = self._next
        base = int(self._ends[first])
        allowed = int(np.searchsorted(self._ends[:-1], base + room_bytes, side="left"))
        fitting = int(np.searchsorted(self._ends, base + most_bytes, side="right")) - 1
        last = max(first + 1, min(allowed, fitting, first + most_items))
        if self._buffer is not None:
            data = bytearray(self._buffer[base : int(self._ends[last])])
        else:
            data = bytearray().join(self._parts[2 * first : 2 * last])
        starts = self._ends[first:last] - base
        _write_opaque(data, starts, opaque)
        self._next = last
        return data, self._seqnos[first:last]


def _write_opaque(data: bytearray, starts: npt.NDArray[np.int64], opaque: int) -> None:
    cells = np.frombuffer(data, np.uint8)
    cells[starts[:, None] + _OPAQUE_BYTES] = np.frombuffer(opaque.to_bytes(4), np.uint8)


@dataclass(slots=True)
class Snapshot:
    """The bounds and flags for the marker, and the frames that follow it.

    ``advances``: the end is no item; SEQNO_ADVANCED brings the client there.
    """

    start: int
    end: int
    flags: int
    chunks: Iterator[Chunk]
    advances: bool = False
    chunk: Chunk | None = field(default=None)

    def next_chunk(self) -> Chunk | None:
        """Return the chunk to take from; None when everything was taken."""
        while self.chunk is None or self.chunk.is_empty:
            self.chunk = next(self.chunks, None)
            if self.chunk is None:
                return None
        return self.chunk


def chunks_of(selection: Selection, flavour: int) -> Iterator[Chunk]:
    """Yield the frames of a selection, encoding them only as they are needed."""
    segment = selection.segment
    for first in range(0, len(selection.rows), CHUNK_ITEMS):
        rows = selection.rows[first : first + CHUNK_ITEMS]
        if segment is None:
            raise AssertionError("rows without their segment")
        is_run = int(rows[-1]) - int(rows[0]) == len(rows) - 1
        if segment.serves(flavour) and is_run:
            size = segment.frame_bytes
            buffer = segment.buffer[int(rows[0]) * size : (int(rows[-1]) + 1) * size]
            ends = np.arange(len(rows) + 1, dtype=np.int64) * size
            seqnos = rows.astype(np.uint64) + np.uint64(segment.first_seqno)
            yield Chunk(ends, seqnos, buffer, [])
        else:
            yield _chunk_of_versions([segment.version(int(row)) for row in rows], flavour)
    for first in range(0, len(selection.versions), CHUNK_ITEMS):
        yield _chunk_of_versions(selection.versions[first : first + CHUNK_ITEMS], flavour)


def _chunk_of_versions(versions: list[Version], flavour: int) -> Chunk:
    wires = [version.wire(flavour) for version in versions]
    sizes = [len(head) + len(value) for head, value in wires]
    ends = np.fromiter(accumulate(sizes, initial=0), np.int64, len(sizes) + 1)
    seqnos = np.fromiter((version.seqno for version in versions), np.uint64, len(versions))
    return Chunk(ends, seqnos, None, [part for wire in wires for part in wire])


def take_snapshot(
    history: VbucketHistory,
    after: int,
    end: int,
    flavour: int,
    wanted: StreamFilter,
    *,
    start: int | None,
    flags: int,
) -> tuple[Snapshot | None, StreamFilter]:
    """Take (after, end] now, or a little more; None when it holds nothing to send.

    ``wanted`` says what is shown; what it is after the snapshot is returned as well. Where the last
    item is not shown a disk snapshot is followed by SEQNO_ADVANCED if the client knows that; any
    other snapshot ends at the last item that is shown. ``start`` is the marker's start; None lets
    it be the first item's seqno.
    """
    has_advanced = bool(flavour & _COLLECTIONS)
    advances = history.is_purged(end) and has_advanced
    if not advances:
        end = history.first_shown(end)
    selection, then = _shown(history.select(after, end), wanted)
    if not advances and (not len(selection) or selection.last_seqno < end):
        advances = has_advanced and bool(flags & SnapshotFlag.DISK)
        end = end if advances or not len(selection) else selection.last_seqno
    if not len(selection) and not advances:
        return None, then
    first = selection.first_seqno if len(selection) else end
    chunks = chunks_of(selection, flavour)
    return Snapshot(first if start is None else start, end, flags, chunks, advances), then


def _shown(selection: Selection, wanted: StreamFilter) -> tuple[Selection, StreamFilter]:
    """Return what passes of a selection, and the filter after its last item."""
    versions, then = wanted.split(selection.versions)
    if wanted.passes_collection(DEFAULT_ID):
        return replace(selection, versions=versions), then
    return Selection(None, selection.rows[:0], versions), then

"""Cuts consecutive frames into batches that fit the flow control window.

A chunk has the running sums of its frame lengths. So one binary search finds how many frames fit,
and one assignment writes the stream's opaque into all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from dcp.server.model.item_layouts import OPAQUE_AT, OPCODE_AT
from dcp.server.model.versions import Version
from dcp.server.streams.stream_id_frames import with_stream_id
from dcp.wire.vocabulary import Opcode

_OPAQUE_BYTES: Final = np.arange(OPAQUE_AT, OPAQUE_AT + 4)
_NO_SEQNOS: Final[npt.NDArray[np.uint64]] = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Frames to send, one after the other: one marker, one STREAM_END, or items."""

    data: bytes | bytearray
    """Empty if nothing was found in this turn; other streams should have theirs."""
    seqnos: npt.NDArray[np.uint64] = field(default_factory=lambda: _NO_SEQNOS)
    """Of the items; empty for other messages."""
    extra_bytes: int = 0
    """Flow control charges so much beyond the frames' length."""
    is_from_disk: bool = False
    """True if the items were read from disk, whatever their marker says."""

    @property
    def charged_bytes(self) -> int:
        return len(self.data) + self.extra_bytes


class Chunk:
    """Consecutive frames, of which the first may be taken already."""

    def __init__(
        self,
        ends: npt.NDArray[np.int64],
        seqnos: npt.NDArray[np.uint64],
        buffer: memoryview | None,
        parts: list[bytes],
    ) -> None:
        """``ends[i]`` is the length of the first i frames.

        The frames are in ``buffer``, or ``parts`` has two parts of each.
        """
        self._ends = ends
        self._charges = ends
        self._seqnos = seqnos
        self._buffer = buffer
        self._parts = parts
        self._next = 0

    def with_stream_id(self, stream_id: int) -> "Chunk":
        """Return the frames with a stream id added; call it before the first ``take``."""
        if self.is_empty:
            return self
        data = b"".join(self._parts) if self._buffer is None else self._buffer
        framed, ends = with_stream_id(data, self._ends, stream_id)
        return Chunk(ends, self._seqnos, memoryview(framed), [])

    def charging_prepares(self, extra_bytes: int) -> "Chunk":
        """Charge so many extra bytes for each prepare; return this chunk."""
        if self._buffer is None:
            opcodes = np.array([head[OPCODE_AT] for head in self._parts[::2]], np.uint8)
        else:
            opcodes = np.frombuffer(self._buffer, np.uint8)[self._ends[:-1] + OPCODE_AT]
        extras = np.where(opcodes == Opcode.DCP_PREPARE, extra_bytes, 0)
        self._charges = self._ends + np.concatenate(([0], np.cumsum(extras)))
        return self

    @property
    def left_seqnos(self) -> npt.NDArray[np.uint64]:
        return self._seqnos[self._next :]

    @property
    def frame_bytes(self) -> int:
        return int(self._ends[-1])

    @property
    def is_empty(self) -> bool:
        return self._next == len(self._seqnos)

    def take(
        self,
        room_bytes: int,
        most_bytes: int,
        most_items: int,
        opaque: int,
        *,
        is_from_disk: bool = False,
    ) -> FrameBatch:
        """Return the next frames, at least one if there is any.

        It stops at ``most_bytes`` or ``most_items``, or once ``room_bytes`` are charged. Flow
        control lets the last message exceed its room.
        """
        if self.is_empty:
            return FrameBatch(b"")
        first = self._next
        base = int(self._ends[first])
        charged = int(self._charges[first])
        allowed = int(np.searchsorted(self._charges[:-1], charged + room_bytes, side="left"))
        fitting = int(np.searchsorted(self._ends, base + most_bytes, side="right")) - 1
        last = max(first + 1, min(allowed, fitting, first + most_items))
        if self._buffer is not None:
            data = bytearray(self._buffer[base : int(self._ends[last])])
        else:
            data = bytearray().join(self._parts[2 * first : 2 * last])
        starts = self._ends[first:last] - base
        _write_opaque(data, starts, opaque)
        self._next = last
        charged = int(self._charges[last]) - charged
        return FrameBatch(data, self._seqnos[first:last], charged - len(data), is_from_disk)


def _write_opaque(data: bytearray, starts: npt.NDArray[np.int64], opaque: int) -> None:
    cells = np.frombuffer(data, np.uint8)
    cells[starts[:, None] + _OPAQUE_BYTES] = np.frombuffer(opaque.to_bytes(4), np.uint8)


def chunk_of(versions: Sequence[Version], flavour: int) -> Chunk:
    return chunk_of_wires(versions, [version.wire(flavour) for version in versions])


def chunk_of_wires(versions: Sequence[Version], wires: Sequence[tuple[bytes, bytes]]) -> Chunk:
    """Return a chunk of encoded frames, each in two parts."""
    sizes = [len(head) + len(value) for head, value in wires]
    ends = np.fromiter(accumulate(sizes, initial=0), np.int64, len(sizes) + 1)
    seqnos = np.fromiter((version.seqno for version in versions), np.uint64, len(versions))
    return Chunk(ends, seqnos, None, [part for wire in wires for part in wire])


def no_frames() -> Chunk:
    """Return an empty chunk: nothing was found in this turn, but there may be more items."""
    return Chunk(np.zeros(1, np.int64), np.empty(0, np.uint64), memoryview(b""), [])

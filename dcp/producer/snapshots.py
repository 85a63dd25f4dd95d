"""Snapshots on the wire: a marker, then frames in batches that fit the window.

A snapshot's items come from memory (a tuple taken from a checkpoint at one instant) or from disk
(a scan, read as it is sent). Frames are fetched a chunk at a time; a chunk knows the running sum of
its frame lengths, so how many messages the window lets pass is one binary search, and the stream's
opaque is written into a whole batch at once.

What is read from disk or encoded is no more than what may be sent at once, and is let go of as it
is taken: a stream holds no frames back, so a thousand streams that wait cost nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from dcp.producer.disk_scan import Frames, Scan
from dcp.producer.item_layouts import OPAQUE_AT
from dcp.producer.key_index import KeyIndex
from dcp.producer.manifest import DEFAULT_ID
from dcp.producer.stored_items import serves, versions_of
from dcp.producer.stream_filter import StreamFilter
from dcp.producer.stream_id_frames import with_stream_id
from dcp.producer.versions import Flavour, Version

CHUNK_ITEMS: Final = 2048
_OPAQUE_BYTES: Final = np.arange(OPAQUE_AT, OPAQUE_AT + 4)


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

    def with_stream_id(self, stream_id: int) -> "Chunk":
        """Return the same frames as a stream of that id sends them; none was taken yet."""
        data = b"".join(self._parts) if self._buffer is None else self._buffer
        framed, ends = with_stream_id(data, self._ends, stream_id)
        return Chunk(ends, self._seqnos, memoryview(framed), [])

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


def chunk_of(versions: Sequence[Version], flavour: int) -> Chunk:
    """Return versions as frames of a flavour."""
    return _chunk(versions, [version.wire(flavour) for version in versions])


def _chunk(versions: Sequence[Version], wires: Sequence[tuple[bytes, bytes]]) -> Chunk:
    sizes = [len(head) + len(value) for head, value in wires]
    ends = np.fromiter(accumulate(sizes, initial=0), np.int64, len(sizes) + 1)
    seqnos = np.fromiter((version.seqno for version in versions), np.uint64, len(versions))
    return Chunk(ends, seqnos, None, [part for wire in wires for part in wire])


class ItemSource(Protocol):
    """Where a snapshot's frames come from."""

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        """Return the next frames, about ``most_bytes`` and at least one; None at the end."""

    def close(self) -> None:
        """Let go of what is held for it."""


class MemoryItems:
    """Items that were taken from a checkpoint; encoded as they are needed."""

    def __init__(self, versions: Sequence[Version], flavour: int) -> None:
        self._versions = versions
        self._flavour = flavour
        self._next = 0

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        """Return the frames of the next items: at least one, more only as far as they fit."""
        first = self._next
        if first >= len(self._versions):
            return None
        wires: list[tuple[bytes, bytes]] = []
        left = most_bytes
        for version in self._versions[first : first + CHUNK_ITEMS]:
            head, value = version.wire(self._flavour)
            left -= len(head) + len(value)
            if wires and left < 0:
                break
            wires.append((head, value))
        self._next = first + len(wires)
        return _chunk(self._versions[first : self._next], wires)

    @property
    def last_visible_seqno(self) -> int | None:
        """The seqno of the last item that plain clients see; None where there is none."""
        visible = (each.seqno for each in reversed(self._versions) if each.is_visible)
        return next(visible, None)

    def close(self) -> None:
        """Forget the items."""
        self._versions = ()


class DiskItems:
    """What a scan of the disk reads, reshaped where the connection's flavour wants it."""

    def __init__(self, scan: Scan, flavour: int, wanted: StreamFilter, keys: KeyIndex) -> None:
        """``wanted`` says what is shown, ``keys`` whether there is anything but documents."""
        self.filter = wanted
        self._scan = scan
        self._shows_documents = wanted.passes_collection(DEFAULT_ID)
        # A scan that needs no bytes of a value reads none (as observed on a 7.0 server).
        needs_values = flavour & Flavour.XATTRS or not flavour & Flavour.NO_VALUE
        stored = flavour & ~Flavour.COMMITS  # a disk keeps the document, not that it was committed
        self.flavour = int(stored if needs_values else stored | Flavour.KEYS_ONLY)
        self._keys = keys

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        """Read the next frames from disk that are shown."""
        while (frames := self._scan.read(most_bytes)) is not None:
            is_plain = self._keys.holds_documents_only
            if is_plain and self._shows_documents and serves(frames, self.flavour):
                return Chunk(frames.ends, frames.seqnos, memoryview(frames.data), [])
            versions = self.shown(frames)
            if versions:
                return chunk_of(versions, self.flavour)
        return None

    def shown(self, frames: Frames) -> list[Version]:
        """Return what of some frames is shown, and let the filter stand behind them."""
        versions, self.filter = self.filter.split(versions_of(frames))
        return versions

    def close(self) -> None:
        """Let go of the disk snapshot."""
        self._scan.close()


@dataclass(slots=True)
class Snapshot:
    """The bounds and flags for the marker, and the frames that follow it.

    ``covers``: the seqno up to which the client needs nothing more, at or above the end.
    """

    start: int
    end: int
    flags: int
    source: ItemSource
    covers: int
    stream_id: int | None = None
    _chunk: Chunk | None = field(default=None, init=False)

    def take(
        self, room_bytes: int, most_bytes: int, most_items: int, opaque: int
    ) -> tuple[bytearray, npt.NDArray[np.uint64]] | None:
        """Return the next frames as ``Chunk.take`` does; None when everything was taken."""
        chunk = self._chunk or self._next_chunk(min(room_bytes, most_bytes))
        if chunk is None:
            return None
        taken = chunk.take(room_bytes, most_bytes, most_items, opaque)
        self._chunk = None if chunk.is_empty else chunk
        return taken

    def _next_chunk(self, most_bytes: int) -> Chunk | None:
        chunk = self.source.next_chunk(most_bytes)
        if chunk is None or self.stream_id is None:
            return chunk
        return chunk.with_stream_id(self.stream_id)

"""Sends a snapshot's frames in batches that fit the flow control window.

Items come from memory (part of a checkpoint) or from disk (a scan), and stay there until they are
sent. Each batch fetches a chunk of about the size that may be sent. Frames that do not fit after
all are put back and read again: a stream id or decompression made them longer, or prepares are
charged more. So a waiting stream holds no frames, and ten thousand of them cost nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from dcp.server.checkpoints.checkpoint_manager import CheckpointManager
from dcp.server.model.stream_filter import EVERYTHING, StreamFilter
from dcp.server.model.versions import Flavour, Version
from dcp.server.storage.disk_ranges import U64s
from dcp.server.storage.disk_scan import Frames, Scan
from dcp.server.storage.stored_items import versions_of
from dcp.server.streams.chunks import Chunk, FrameBatch, chunk_of, chunk_of_wires, no_frames
from dcp.server.streams.filtered_frames import (
    FilteredKey,
    filtered_chunk,
    filtered_keys,
    holds_events,
)

CHUNK_ITEMS: Final = 2048
_FEW_ITEMS: Final = 16
TURN_BYTES: Final = 4 * 1024 * 1024
"""A stream gives way to others after reading so much without an item that passes its filter."""
_ALL: Final = replace(EVERYTHING, sync_writes=True)
"""For frames that have passed the stream's filter already."""


class SnapshotItems(Protocol):
    """The items of a snapshot: from memory, from disk, or from disk in key order."""

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        """Return about ``most_bytes`` of frames, at least one; None at the end.

        An empty chunk means that nothing was found in this turn.
        """

    def put_back(self, seqnos: U64s) -> None:
        """Take back the last frames of the last chunk, which were not sent."""

    def close(self) -> None: ...


class MemoryItems:
    """Checkpoint items that were announced to a cursor; they stay there and are encoded as needed.

    The cursor follows ``sent_seqno``, so the checkpoint keeps the rest. After the cursor was
    dropped, ``next_chunk`` must not be called; ``sent_seqno`` and ``filter`` say where to continue.
    """

    def __init__(
        self,
        checkpoints: CheckpointManager,
        cursor: str,
        items: Sequence[Version],
        flavour: int,
        wanted: StreamFilter,
    ) -> None:
        """Look through ``items`` once; this does not keep them."""
        self.filter = wanted
        passed, self.filter_behind = wanted.split(items)
        self.is_empty = not passed
        self.passes_all = len(passed) == len(items)
        if passed:
            self.first_seqno, self.last_seqno = passed[0].seqno, passed[-1].seqno
        visible = (each.seqno for each in reversed(passed) if each.is_visible)
        self.last_visible_seqno = next(visible, None)
        """Seqno of the last passing item that is no prepare and no abort; None without one."""
        self.sent_seqno = self._chunk_after = items[0].seqno - 1
        self._end_seqno = items[-1].seqno
        self._is_plain = self.passes_all and self.filter_behind is wanted
        """True if the filter passes all items and stays the same, which is cheaper to send."""
        self._most_items = CHUNK_ITEMS
        """Items to read for the next chunk: about as many as fitted into the last one."""
        self._filter_before = wanted
        self._checkpoints, self._cursor, self._flavour = checkpoints, cursor, flavour

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        # Memory need not keep what was sent.
        self._checkpoints.advance(self._cursor, self.sent_seqno)
        self._chunk_after, self._filter_before = self.sent_seqno, self.filter
        while found := self._read(self._end_seqno, self._most_items):
            if self._is_plain:
                return self._plain_chunk(found, most_bytes)
            passed: list[Version] = []
            wires: list[tuple[bytes, bytes]] = []
            left, at = most_bytes, self.filter
            for version in found:
                if at.passes(version):
                    head, value = version.wire(self._flavour)
                    left -= len(head) + len(value)
                    if wires and left < 0:
                        break
                    passed.append(version)
                    wires.append((head, value))
                at = at.after(version)
                self.sent_seqno = version.seqno
            self.filter = at
            if passed:
                return chunk_of_wires(passed, wires)
        return None

    def _plain_chunk(self, found: list[Version], most_bytes: int) -> Chunk:
        wires: list[tuple[bytes, bytes]] = []
        left = most_bytes
        for version in found:
            head, value = version.wire(self._flavour)
            left -= len(head) + len(value)
            if wires and left < 0:
                break
            wires.append((head, value))
        passed = found[: len(wires)]
        self._most_items = min(CHUNK_ITEMS, 2 * len(wires) + _FEW_ITEMS)
        self.sent_seqno = passed[-1].seqno
        return chunk_of_wires(passed, wires)

    def put_back(self, seqnos: U64s) -> None:
        before, self.sent_seqno = int(seqnos[0]) - 1, self._chunk_after
        if self.filter is not self._filter_before:
            # Events among the items that were sent change the filter, so derive it again.
            kept = self._read(before, before - self.sent_seqno)
            _, self.filter = self._filter_before.split(kept)
        self.sent_seqno = before

    def _read(self, end_seqno: int, most_items: int) -> list[Version]:
        return self._checkpoints.read_on(self.sent_seqno, end_seqno, most_items)

    def close(self) -> None: ...


class DiskItems:
    """The items of a disk scan, encoded for the connection."""

    def __init__(
        self, scan: Scan, flavour: int, wanted: StreamFilter, history: Scan | None = None
    ) -> None:
        """``history`` is a scan of all versions, which follows ``scan``."""
        self.filter = wanted
        self._scan, self._history = scan, history
        # A scan that needs no bytes of a value reads none (as observed on a 7.0 server).
        # Underlying datatypes are behind the value (kv_engine ``dcp/active_stream.h``, isKeyOnly).
        read = Flavour.XATTRS | Flavour.UNDERLYING_DATATYPE
        needs_values = flavour & read or not flavour & Flavour.NO_VALUE
        # The disk does not record that a document was the commit of a sync write.
        stored = flavour & ~Flavour.COMMITS
        self._flavour = int(stored if needs_values else stored | Flavour.KEYS_ONLY)
        self._filter_before = wanted
        self._read_from = 0

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        read_bytes = 0
        while (frames := self._scan.read(most_bytes)) is not None:
            self._read_from, self._filter_before = int(frames.seqnos[0]), self.filter
            chunk = self._filtered(frames)
            if chunk is not None:
                return chunk
            read_bytes += len(frames.data)
            if read_bytes >= TURN_BYTES:
                return no_frames()
        return None

    def put_back(self, seqnos: U64s) -> None:
        first = int(seqnos[0])
        self._scan.go_back(first)
        if self.filter is not self._filter_before:
            kept = self._scan.read_again(self._read_from, first)
            _, self.filter = self._filter_before.split(versions_of(kept))

    def _filtered(self, frames: Frames) -> Chunk | None:
        """Return the frames that pass the filter, and update the filter."""
        if not holds_events(frames):
            return filtered_chunk(frames, self._flavour, self.filter)
        versions, self.filter = self.filter.split(versions_of(frames))
        return chunk_of(versions, self._flavour) if versions else None

    def filtered_keys(self, frames: Frames) -> list[FilteredKey]:
        """Return the keys of the frames that pass the filter, and update the filter."""
        if not holds_events(frames):
            return filtered_keys(frames, self.filter)
        versions, self.filter = self.filter.split(versions_of(frames))
        return [FilteredKey(each.event is None, each.key, each.seqno) for each in versions]

    def chunk_of_filtered(self, frames: Frames) -> Chunk | None:
        """Encode frames that have passed the filter already."""
        if holds_events(frames):
            return chunk_of(versions_of(frames), self._flavour)
        return filtered_chunk(frames, self._flavour, _ALL)

    def begin_history(self) -> bool:
        """Switch to the history scan, once; return False if there is none."""
        if self._history is None:
            return False
        self._scan.close()
        self._scan, self._history = self._history, None
        # kv_engine reads the real metadata here (scanHistoryCreate, NoLookupCallback).
        self._flavour &= ~int(Flavour.MADE_UP)
        return True

    def close(self) -> None:
        self._scan.close()
        if self._history is not None:
            self._history.close()


@dataclass(slots=True)
class Snapshot:
    """The bounds and flags of the marker, and the items to send."""

    start: int
    end: int
    flags: int
    items: SnapshotItems
    covers: int
    """After these items the client has everything up to this seqno. It lies below ``end`` while a
    replica vbucket still receives the snapshot: the rest follows under the same marker."""
    stream_id: int | None = None
    prepare_extra_bytes: int = 0
    """Flow control charges so much for a prepare beyond its length."""
    _growth: float = field(default=1.0, init=False)
    """Length of the last chunk, divided by the length requested; it corrects the next request."""

    def go_on_from(self, items: SnapshotItems) -> None:
        self.items = items

    def take(
        self, room_bytes: int, most_bytes: int, most_items: int, opaque: int
    ) -> FrameBatch | None:
        """Return the next frames as ``Chunk.take`` does; None at the end.

        No frames mean that nothing was found yet, and others should have a turn.
        """
        wanted_bytes = max(1, int(min(room_bytes, most_bytes) / self._growth))
        chunk = self._next_chunk(wanted_bytes)
        if chunk is None:
            return None
        is_from_disk = not isinstance(self.items, MemoryItems)
        taken = chunk.take(room_bytes, most_bytes, most_items, opaque, is_from_disk=is_from_disk)
        if not chunk.is_empty:
            self.items.put_back(chunk.left_seqnos)
        # A single frame is sent whatever its length, so it says nothing about the growth.
        has_many = len(taken.seqnos) > 1 or not chunk.is_empty
        self._growth = max(1.0, chunk.frame_bytes / wanted_bytes) if has_many else 1.0
        return taken

    def _next_chunk(self, most_bytes: int) -> Chunk | None:
        chunk = self.items.next_chunk(most_bytes)
        if chunk is None:
            return None
        if self.stream_id is not None:
            chunk = chunk.with_stream_id(self.stream_id)
        if self.prepare_extra_bytes:
            chunk = chunk.charging_prepares(self.prepare_extra_bytes)
        return chunk

"""Sends snapshots: a marker, then frames in batches that fit the window.

A snapshot's items come from memory (a part of a checkpoint, as it was at one instant) or from disk
(a scan); both stay where they are until they are sent. Frames are fetched a chunk at a time.

What is read from disk or encoded is about what may be sent at once. What of it is not sent, as it
became longer on the way (stream ids, values that were decompressed) or is charged more, goes back
and is read again: between two batches a stream holds no frames, so ten thousand that wait cost
nothing.
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
from dcp.server.streams.chunks import Chunk, TakenFrames, chunk_of, chunk_of_wires, no_frames
from dcp.server.streams.shown_frames import ShownKey, holds_events, shown_chunk, shown_keys

CHUNK_ITEMS: Final = 2048
_FEW_ITEMS: Final = 16
TURN_BYTES: Final = 4 * 1024 * 1024
"""So much of the disk is read in a row for something that is shown: then others have a turn."""
_ALL: Final = replace(EVERYTHING, sync_writes=True)


class ItemSource(Protocol):
    """The source of a snapshot's frames."""

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        """Return the next frames, about ``most_bytes`` and at least one; None at the end.

        An empty chunk: nothing was found in one turn, the next one goes on.
        """

    def put_back(self, seqnos: U64s) -> None:
        """Return the last frames of the last chunk, which were not sent, to be read again."""

    def close(self) -> None:
        """Release the resources."""


class MemoryItems:
    """Items of a checkpoint that a cursor was shown, where they stay; encoded as needed.

    The cursor follows what was sent, so memory keeps the rest, and counts it. Without the cursor
    it must not be read: ``sent_seqno`` says how far it came, and ``filter`` is the one there.
    """

    def __init__(
        self,
        checkpoints: CheckpointManager[Version],
        cursor: str,
        items: Sequence[Version],
        flavour: int,
        wanted: StreamFilter,
    ) -> None:
        """Look at the ``items`` that ``cursor`` was shown; they are not kept."""
        self.filter = wanted
        shown, self.filter_behind = wanted.split(items)
        self.is_empty = not shown
        self.shows_all = len(shown) == len(items)
        if shown:
            self.first_seqno, self.last_seqno = shown[0].seqno, shown[-1].seqno
        visible = (each.seqno for each in reversed(shown) if each.is_visible)
        self.last_visible_seqno = next(visible, None)
        """The seqno of the last item that plain clients see; None where there is none."""
        self.sent_seqno = self._chunk_after = items[0].seqno - 1
        self._end_seqno = items[-1].seqno
        self._is_plain = self.shows_all and self.filter_behind is wanted
        self._most_items = CHUNK_ITEMS  # are looked at for a chunk; later about as many as fitted
        self._filter_before = wanted
        self._checkpoints, self._cursor, self._flavour = checkpoints, cursor, flavour

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        """Return the frames of the next items: at least one, more only as far as they fit."""
        self._checkpoints.advance(self._cursor, self.sent_seqno)
        self._chunk_after, self._filter_before = self.sent_seqno, self.filter
        while found := self._read(self._end_seqno, self._most_items):
            if self._is_plain:
                return self._plain_chunk(found, most_bytes)
            shown: list[Version] = []
            wires: list[tuple[bytes, bytes]] = []
            left, at = most_bytes, self.filter
            for version in found:
                if at.passes(version):
                    head, value = version.wire(self._flavour)
                    left -= len(head) + len(value)
                    if wires and left < 0:
                        break
                    shown.append(version)
                    wires.append((head, value))
                at = at.after(version)
                self.sent_seqno = version.seqno
            self.filter = at
            if shown:
                return chunk_of_wires(shown, wires)
        return None

    def _plain_chunk(self, found: list[Version], most_bytes: int) -> Chunk:
        """Return the frames of the first items where all are shown."""
        wires: list[tuple[bytes, bytes]] = []
        left = most_bytes
        for version in found:
            head, value = version.wire(self._flavour)
            left -= len(head) + len(value)
            if wires and left < 0:
                break
            wires.append((head, value))
        shown = found[: len(wires)]
        self._most_items = min(CHUNK_ITEMS, 2 * len(wires) + _FEW_ITEMS)
        self.sent_seqno = shown[-1].seqno
        return chunk_of_wires(shown, wires)

    def put_back(self, seqnos: U64s) -> None:
        """Return the last items, to be read again."""
        before, self.sent_seqno = int(seqnos[0]) - 1, self._chunk_after
        if self.filter is not self._filter_before:
            kept = self._read(before, before - self.sent_seqno)
            _, self.filter = self._filter_before.split(kept)
        self.sent_seqno = before

    def _read(self, end_seqno: int, most_items: int) -> list[Version]:
        return self._checkpoints.read_on(self.sent_seqno, end_seqno, most_items)

    def close(self) -> None:
        """Leave the items to the checkpoint."""


class DiskItems:
    """The items of a disk scan, reshaped where the connection's flavour requires it."""

    def __init__(
        self, scan: Scan, flavour: int, wanted: StreamFilter, history: Scan | None = None
    ) -> None:
        """``wanted`` says what is shown; ``history`` follows on ``scan``, with all versions."""
        self.filter = wanted
        self._scan, self._history = scan, history
        # A scan that needs no bytes of a value reads none (as observed on a 7.0 server).
        # Underlying datatypes are behind the value (kv_engine ``dcp/active_stream.h``, isKeyOnly).
        read = Flavour.XATTRS | Flavour.UNDERLYING_DATATYPE
        needs_values = flavour & read or not flavour & Flavour.NO_VALUE
        stored = flavour & ~Flavour.COMMITS  # a disk keeps the document, not that it was committed
        self._flavour = int(stored if needs_values else stored | Flavour.KEYS_ONLY)
        self._filter_before = wanted
        self._read_from = 0

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        """Read the next frames from disk that are shown."""
        read_bytes = 0
        while (frames := self._scan.read(most_bytes)) is not None:
            self._read_from, self._filter_before = int(frames.seqnos[0]), self.filter
            chunk = self._shown(frames)
            if chunk is not None:
                return chunk
            read_bytes += len(frames.data)
            if read_bytes >= TURN_BYTES:
                return no_frames()
        return None

    def put_back(self, seqnos: U64s) -> None:
        """Go back to before some frames, and restore the filter of that place."""
        first = int(seqnos[0])
        self._scan.go_back(first)
        if self.filter is not self._filter_before:
            kept = self._scan.read_again(self._read_from, first)
            _, self.filter = self._filter_before.split(versions_of(kept))

    def _shown(self, frames: Frames) -> Chunk | None:
        """Return the shown ones of some frames, and advance the filter behind them."""
        if not holds_events(frames):
            return shown_chunk(frames, self._flavour, self.filter)
        versions, self.filter = self.filter.split(versions_of(frames))
        return chunk_of(versions, self._flavour) if versions else None

    def shown_keys(self, frames: Frames) -> list[ShownKey]:
        """Return the keys of the shown ones of some frames, and advance the filter behind them."""
        if not holds_events(frames):
            return shown_keys(frames, self.filter)
        versions, self.filter = self.filter.split(versions_of(frames))
        return [ShownKey(each.event is None, each.key, each.seqno) for each in versions]

    def chunk_of_shown(self, frames: Frames) -> Chunk | None:
        """Return frames that are shown, as the connection gets them."""
        if holds_events(frames):
            return chunk_of(versions_of(frames), self._flavour)
        return shown_chunk(frames, self._flavour, _ALL)

    def begin_history(self) -> bool:
        """Go on with all versions, once, where that was asked for; return whether it does."""
        if self._history is None:
            return False
        self._scan.close()
        self._scan, self._history = self._history, None
        self._flavour &= ~int(Flavour.MADE_UP)  # kv_engine scanHistoryCreate, NoLookupCallback
        return True

    def close(self) -> None:
        """Release the disk snapshot."""
        self._scan.close()
        if self._history is not None:
            self._history.close()


@dataclass(slots=True)
class Snapshot:
    """The bounds and flags for the marker, and the frames that follow it.

    ``covers``: the seqno up to which the client needs nothing more, at or above the end.
    ``prepare_extra_bytes``: what flow control charges for a prepare beyond its length.
    """

    start: int
    end: int
    flags: int
    source: ItemSource
    covers: int
    stream_id: int | None = None
    prepare_extra_bytes: int = 0
    _growth: float = field(default=1.0, init=False)
    """The last chunk's length by the requested one; the next request is divided by it."""

    def go_on_from(self, source: ItemSource) -> None:
        """Take the rest of the items from another source."""
        self.source = source

    def take(
        self, room_bytes: int, most_bytes: int, most_items: int, opaque: int
    ) -> TakenFrames | None:
        """Return the next frames as ``Chunk.take`` does; None when everything was taken.

        None of them where there is nothing yet: others are to have a turn.
        """
        wanted_bytes = max(1, int(min(room_bytes, most_bytes) / self._growth))
        chunk = self._next_chunk(wanted_bytes)
        if chunk is None:
            return None
        taken = chunk.take(room_bytes, most_bytes, most_items, opaque)
        if not chunk.is_empty:
            self.source.put_back(chunk.left_seqnos)
        has_many = len(taken.seqnos) > 1 or not chunk.is_empty
        self._growth = max(1.0, chunk.frame_bytes / wanted_bytes) if has_many else 1.0
        return taken

    def _next_chunk(self, most_bytes: int) -> Chunk | None:
        chunk = self.source.next_chunk(most_bytes)
        if chunk is None:
            return None
        if self.stream_id is not None:
            chunk = chunk.with_stream_id(self.stream_id)
        if self.prepare_extra_bytes:
            chunk = chunk.charging_prepares(self.prepare_extra_bytes)
        return chunk

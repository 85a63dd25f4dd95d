"""One DCP stream of one vbucket: from disk if memory lacks something, then from memory.

    phase          event             next phase
    BACKFILLING    BACKFILL_DONE     IN_MEMORY
    IN_MEMORY      CURSOR_DROPPED    BACKFILLING
    either         END               ENDING       (must send a STREAM_END)
    either         DROP              DEAD         (closes without a message)
    ENDING         END_SENT          DEAD

A backfill sends everything on disk after the stream's seqno as one snapshot. When it opens, a
cursor behind its end makes memory keep all later items. From memory, each look of the cursor is one
point-in-time snapshot. If low memory drops the cursor, the stream returns to the disk; the client
notices this only in the marker's flags.

A snapshot that has begun is sent to its end, even beyond the end that the client asked for: part of
a snapshot is no state that the vbucket had. If the cursor is dropped meanwhile, the rest comes from
disk. If compaction removed a part of the rest, a new disk snapshot with the same start replaces it.

From a replica inside a snapshot the client gets that same snapshot: disk and memory under one
marker, which ends where the active's snapshot ends, and then the rest as the replica receives it.
Filtered and disk-only streams wait until the snapshot is whole (DCP concepts document, "Streaming
from a replica vbucket").

``backfill.py`` decides which items come from disk and in which order. ``takeover.py`` continues a
takeover stream that has sent everything. Markers start as kv_engine's do: the first at the client's
snap_start, later ones at their first item (kv_engine ``dcp/active_stream.cc``,
``docs/dcp/documentation/commands/snapshot-marker.md``).
"""

import logging
from dataclasses import replace
from enum import Enum
from typing import Final

from dcp.errors import FrameError
from dcp.server.checkpoints.checkpoint import CheckpointKind
from dcp.server.checkpoints.checkpoint_values import CursorItems
from dcp.server.model.resume_rules import Verdict
from dcp.server.model.stream_filter import EVERYTHING, StreamFilter
from dcp.server.model.versions import Flavour
from dcp.server.storage.disk_scan import Scan
from dcp.server.streams.backfill import (
    items_of,
    messages_behind,
    misses_purged,
    scan_of,
    snapshot_end,
)
from dcp.server.streams.chunks import FrameBatch
from dcp.server.streams.dcp_options import StreamSettings
from dcp.server.streams.key_order import KeyOrderItems
from dcp.server.streams.markers import marker_of
from dcp.server.streams.snapshots import DiskItems, MemoryItems, Snapshot
from dcp.server.streams.takeover import Takeover
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame_info import stream_id_info
from dcp.wire.vocabulary import (
    EndReason,
    Magic,
    Opcode,
    OsoFlag,
    SnapshotFlag,
    StreamFlag,
)

_LOGGER = logging.getLogger(__name__)
_DISK: Final = int(SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT)
_HISTORY: Final = int(_DISK | SnapshotFlag.HISTORY | SnapshotFlag.MAY_CONTAIN_DUPLICATES)
_MEMORY: Final = int(SnapshotFlag.MEMORY)
_FIRST_MEMORY: Final = int(SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT)


class ActiveStreamPhase(Enum):
    BACKFILLING = "backfilling"
    IN_MEMORY = "in memory"
    ENDING = "ending"
    DEAD = "dead"


class _Event(Enum):
    BACKFILL_DONE = "backfill done"
    CURSOR_DROPPED = "cursor dropped"
    END = "end"
    DROP = "drop"
    END_SENT = "end sent"


_NEXT: Final = {
    (ActiveStreamPhase.BACKFILLING, _Event.BACKFILL_DONE): ActiveStreamPhase.IN_MEMORY,
    (ActiveStreamPhase.IN_MEMORY, _Event.CURSOR_DROPPED): ActiveStreamPhase.BACKFILLING,
    (ActiveStreamPhase.BACKFILLING, _Event.END): ActiveStreamPhase.ENDING,
    (ActiveStreamPhase.IN_MEMORY, _Event.END): ActiveStreamPhase.ENDING,
    (ActiveStreamPhase.BACKFILLING, _Event.DROP): ActiveStreamPhase.DEAD,
    (ActiveStreamPhase.IN_MEMORY, _Event.DROP): ActiveStreamPhase.DEAD,
    (ActiveStreamPhase.ENDING, _Event.END_SENT): ActiveStreamPhase.DEAD,
}


class ActiveStream:
    """An accepted stream. Statistics read many of its attributes."""

    def __init__(
        self,
        data: VbucketData,
        opaque: int,
        verdict: Verdict,
        flags: int,
        settings: StreamSettings,
        wanted: StreamFilter = EVERYTHING,
        *,
        vb_uuid: int = 0,
    ) -> None:
        """``vb_uuid`` is the one of the request, for statistics."""
        self.vbucket = data.vbucket
        self.opaque = opaque
        self.stream_id = wanted.stream_id
        # Streams of one connection with stream ids need a cursor each.
        named = "" if wanted.stream_id is None else f"sid_{wanted.stream_id}:"
        self.cursor = named + settings.cursor
        self.sent_seqno = max(verdict.start, data.base_seqno)
        """The client has everything up to this seqno."""
        self.end_seqno = verdict.end
        self.flags, self.vb_uuid = flags, vb_uuid
        self.start_seqno, self.snap_start_seqno = verdict.start, verdict.snap_start
        self.items_from_disk = self.items_from_memory = 0
        self.sent_snap_end_seqno = 0
        self.acknowledged_seqno = 0
        self._data = data
        self._settings = settings
        self._filter = wanted
        self._disk_only = bool(flags & StreamFlag.DISK_ONLY)
        self.takeover = Takeover() if flags & StreamFlag.TAKEOVER else None
        self._ignores_purged = bool(flags & StreamFlag.IGNORE_PURGED_TOMBSTONES)
        self._first_start: int | None = min(verdict.snap_start, verdict.start)
        """Where the next marker must start; None: at its first item."""
        self._memory_flags = _FIRST_MEMORY
        self._snapshot: Snapshot | None = None
        self._marker_start = 0
        self._open_end: int | None = None
        """End of a marker that was sent before all its items are here; None without one."""
        self._closing: list[bytes] = []
        """Messages that end an out-of-order snapshot."""
        self._reason = EndReason.OK
        self._has_cursor = False
        self.phase = self._first_phase()

    def _first_phase(self) -> ActiveStreamPhase:
        if self._disk_only:
            return ActiveStreamPhase.BACKFILLING
        self._has_cursor = self._place_cursor(self.sent_seqno)
        if self._has_cursor:
            return ActiveStreamPhase.IN_MEMORY
        self._data.checkpoints.remove(self.cursor)
        return ActiveStreamPhase.BACKFILLING

    def _place_cursor(self, after_seqno: int) -> bool:
        return self._data.checkpoints.register(
            self.cursor, after_seqno, droppable=not self._settings.options.keeps_cursors
        )

    def _on(self, event: _Event) -> None:
        self.phase = _NEXT[self.phase, event]

    def is_of(self, data: VbucketData) -> bool:
        return self._data is data

    @property
    def is_sending(self) -> bool:
        return self.phase in (ActiveStreamPhase.BACKFILLING, ActiveStreamPhase.IN_MEMORY)

    @property
    def is_inside_snapshot(self) -> bool:
        """True if items of the current snapshot must still be sent."""
        if self._open_end is not None:
            return True
        return self._snapshot is not None and self.sent_seqno < self._snapshot.end

    @property
    def has_change_streams(self) -> bool:
        return self._settings.options.change_streams

    @property
    def has_cursor(self) -> bool:
        """True if memory keeps the next items."""
        return self._has_cursor and self.is_sending

    def acknowledged(self, seqno: int) -> None:
        """Record up to which prepare the client, a replica, has acknowledged."""
        self.acknowledged_seqno = max(self.acknowledged_seqno, seqno)

    def cursor_dropped(self) -> None:
        """Return to the disk, because memory does not keep the next items."""
        self._has_cursor = False
        if self.phase is ActiveStreamPhase.IN_MEMORY:
            self._on(_Event.CURSOR_DROPPED)

    def end(self, reason: EndReason, *, announce: bool) -> None:
        """Stop sending items; ``announce`` sends a STREAM_END."""
        if self.is_sending:
            self._reason = reason
            self._let_go()
            self._on(_Event.END if announce else _Event.DROP)

    def _let_go(self) -> None:
        if self._snapshot is not None:
            self._snapshot.items.close()
            self._snapshot = None
        self._data.checkpoints.remove(self.cursor)

    # --- sending

    def next_batch(self, room_bytes: int, most_bytes: int, most_items: int) -> FrameBatch | None:
        """Return the next frames, at least one message; None if there is nothing to send.

        ``room_bytes``, the room of flow control, must be positive.
        """
        try:
            return self._next_batch(room_bytes, most_bytes, most_items)
        # An unreadable disk, or a value that cannot be re-encoded, ends this stream only. The
        # connection goes on.
        except (OSError, FrameError) as error:
            text = "vbucket %d: stream %s ends with BACKFILL_FAILED behind seqno %d: %s"
            _LOGGER.warning(text, self.vbucket, self.cursor, self.sent_seqno, error)
            self.end(EndReason.BACKFILL_FAILED, announce=True)
            return self._next_batch(room_bytes, most_bytes, most_items)

    def _next_batch(self, room_bytes: int, most_bytes: int, most_items: int) -> FrameBatch | None:
        while self.is_sending:
            if self._closing:
                return FrameBatch(self._closing.pop(0))
            if self._snapshot is not None:
                batch = self._next_items(self._snapshot, room_bytes, most_bytes, most_items)
            elif self._filter.is_empty:
                self.end(self._filter.end_reason, announce=True)
                break
            elif self.sent_seqno >= self.end_seqno and self._open_end is None:
                self.end(EndReason.OK, announce=True)
                break
            elif self._waits_for_whole:
                return None
            elif self.phase is ActiveStreamPhase.BACKFILLING:
                batch = self._open_backfill()
            elif (found := self._data.checkpoints.next_items(self.cursor)) is not None:
                batch = self._open_memory_snapshot(found)
            elif self.takeover is not None and (state := self.takeover.all_sent()) is not None:
                body = m.SetVbucketState(state)
                return FrameBatch(self._frame(body, Opcode.DCP_SET_VBUCKET_STATE))
            else:
                return None
            if batch is not None:
                return batch
        if self.phase is not ActiveStreamPhase.ENDING:
            return None
        self._on(_Event.END_SENT)
        return FrameBatch(self._frame(m.StreamEnd(self._reason), Opcode.DCP_STREAM_END))

    def _next_items(
        self, snapshot: Snapshot, room_bytes: int, most_bytes: int, most_items: int
    ) -> FrameBatch | None:
        if isinstance(snapshot.items, MemoryItems) and not self._has_cursor:
            self._leave_memory(snapshot, snapshot.items)
            if self._snapshot is None:
                return None
        batch = snapshot.take(room_bytes, most_bytes, most_items, self.opaque)
        if batch is None:
            if isinstance(snapshot.items, DiskItems) and snapshot.items.begin_history():
                return self._begin(replace(snapshot, flags=_HISTORY))
            self._finish(snapshot)
            if isinstance(snapshot.items, KeyOrderItems):
                behind = messages_behind(snapshot.items, snapshot.end, self._settings)
                self._closing += [self._frame(body, opcode) for body, opcode in behind]
                return None
            is_over = self._open_end is None and self._knows_collections
            return self._advance_to(snapshot.end) if is_over else None
        if not len(batch.seqnos):
            return batch
        # In key order no seqno is complete before the snapshot's end.
        if not isinstance(snapshot.items, KeyOrderItems):
            self.sent_seqno = int(batch.seqnos[-1])
            if self.sent_seqno >= snapshot.end:
                self._finish(snapshot)
        if batch.is_from_disk:
            self.items_from_disk += len(batch.seqnos)
        else:
            self.items_from_memory += len(batch.seqnos)
        return batch

    def _advance_to(self, end: int) -> FrameBatch:
        return FrameBatch(self._frame(m.SeqnoAdvanced(end), Opcode.DCP_SEQNO_ADVANCED))

    @property
    def _passes_all(self) -> bool:
        """True if the client gets every item, so that a snapshot may end without one."""
        return self._filter.is_pass_through and self._knows_collections

    @property
    def _waits_for_whole(self) -> bool:
        """True if the next snapshot is unfinished, and this client may get it only as a whole."""
        checkpoints = self._data.checkpoints
        if checkpoints.is_snapshot_complete:
            return False
        if self._passes_all and not self._disk_only:
            return False
        return self.phase is ActiveStreamPhase.BACKFILLING or not checkpoints.next_is_whole(
            self.cursor
        )

    def _finish(self, snapshot: Snapshot) -> None:
        self.sent_seqno = snapshot.covers
        if isinstance(snapshot.items, MemoryItems):
            self._pass_by(snapshot.items, snapshot.covers)
        elif isinstance(snapshot.items, DiskItems | KeyOrderItems):
            self._filter = snapshot.items.filter
        snapshot.items.close()
        self._snapshot = None
        if self.phase is ActiveStreamPhase.BACKFILLING and self._has_cursor:
            self._on(_Event.BACKFILL_DONE)

    def _pass_by(self, items: MemoryItems, seqno: int) -> None:
        self._filter = items.filter_behind
        self._data.checkpoints.advance(self.cursor, seqno)

    def _leave_memory(self, snapshot: Snapshot, items: MemoryItems) -> None:
        """Continue a snapshot from disk after its cursor was dropped, or else abandon it."""
        self._filter, scan = items.filter, None
        # The disk does not record commits, so it cannot continue a snapshot that has them.
        if not self._settings.flavour & Flavour.COMMITS:
            scan = self._data.disk.scan_state(
                items.sent_seqno,
                snapshot.covers,
                each_key_once=not self._settings.options.change_streams,
            )
        if scan is None:
            # The next disk snapshot has to start where this one did.
            self._snapshot, self._first_start = None, self._marker_start
        else:
            snapshot.go_on_from(DiskItems(scan, self._settings.flavour, self._filter))

    def _open_backfill(self) -> FrameBatch | None:
        """Begin the backfill; None if it is empty, or lacks tombstones that the client needs."""
        scan = scan_of(self._data, self._settings, self.sent_seqno)
        try:
            return self._begin_backfill(scan)
        except OSError:
            scan.close()
            raise

    def _begin_backfill(self, scan: Scan) -> FrameBatch | None:
        needs_deletions = not (self._ignores_purged or self._has_nothing)
        if needs_deletions and misses_purged(self._data, self._filter, self.sent_seqno):
            scan.close()
            self.end(EndReason.ROLLBACK, announce=True)
            return None
        covers = max(self.sent_seqno, scan.end_seqno, self._data.disk.persisted_seqno)
        end = snapshot_end(self._data, scan, self._settings, self._filter)
        if not self._disk_only:
            self._place_cursor_behind(covers)
        if end is None:
            scan.close()
            self.sent_seqno = covers
            if self._disk_only:
                self.end(EndReason.OK, announce=True)
            else:
                self._on(_Event.BACKFILL_DONE)
            return None
        self._memory_flags = _FIRST_MEMORY
        checkpoints, self._open_end = self._data.checkpoints, None
        if self._passes_all and not self._disk_only:
            # What memory has beyond the disk follows under the same marker.
            self._open_end = checkpoints.received_end_at(covers)
        elif not checkpoints.is_snapshot_complete:
            self._open_end = checkpoints.snapshot.end
        if self._open_end is not None:
            end = self._open_end
        items = items_of(self._data, scan, self._settings, self._filter, is_first=self._has_nothing)
        if isinstance(items, KeyOrderItems):
            return self._begin_out_of_order(items, end, covers)
        flags = _HISTORY if not scan.item_count and items.begin_history() else _DISK
        if self._open_end is not None and checkpoints.joins_snapshots(self.sent_seqno, covers):
            flags |= SnapshotFlag.MAY_CONTAIN_DUPLICATES
        return self._begin(Snapshot(self.sent_seqno + 1, end, flags, items, covers))

    def _begin_out_of_order(self, items: KeyOrderItems, end: int, covers: int) -> FrameBatch:
        # OSO_SNAPSHOT replaces the marker, so the next marker is the stream's first.
        self._snapshot = self._with_extras(Snapshot(1, end, _DISK, items, covers))
        begin = m.OsoSnapshot(OsoFlag.START)
        return FrameBatch(self._frame(begin, Opcode.DCP_OSO_SNAPSHOT))

    @property
    def _knows_collections(self) -> bool:
        return bool(self._settings.flavour & Flavour.COLLECTIONS)

    @property
    def _has_nothing(self) -> bool:
        """True if the client began at 0 and has received nothing; seqnos may begin higher."""
        return self.start_seqno == 0 and self.sent_seqno <= self._data.base_seqno

    def _place_cursor_behind(self, seqno: int) -> None:
        if not self._place_cursor(seqno):
            raise AssertionError(
                f"vbucket {self.vbucket}: seqnos above {seqno} are neither on disk nor in memory"
            )
        self._has_cursor = True

    def _open_memory_snapshot(self, found: CursorItems) -> FrameBatch | None:
        """Begin a snapshot of the cursor's items; None if the filter passes none."""
        end, got = found.snapshot_end, found.items[-1].seqno
        goes_on, self._open_end = self._open_end == end, end if got < end else None
        items = MemoryItems(
            self._data.checkpoints, self.cursor, found.items, self._settings.flavour, self._filter
        )
        if goes_on:
            # The rest of a replica's snapshot follows under the marker that was sent at its start.
            self._snapshot = self._with_extras(Snapshot(got, end, _MEMORY, items, got))
            return None
        if items.is_empty:
            self.sent_seqno, self._open_end = got, None
            self._pass_by(items, got)
            return None
        flags = self._flags_of(found)
        if self.takeover is not None:
            # In a takeover the client answers each marker.
            flags |= SnapshotFlag.ACK
            self.takeover.marker_sent()
        # The snapshot ends at the last passing item: nothing changed behind it for this client
        # (observed on a 7.0 server).
        if self._open_end is None and not items.passes_all:
            end = items.last_seqno
        return self._begin(Snapshot(items.first_seqno, end, flags, items, got))

    def _flags_of(self, found: CursorItems) -> int:
        extra = int(SnapshotFlag.HISTORY) if self._settings.options.change_streams else 0
        if found.may_repeat:
            extra |= SnapshotFlag.MAY_CONTAIN_DUPLICATES
        if found.kind is CheckpointKind.DISK:
            self._memory_flags = _FIRST_MEMORY
            return _DISK | extra
        flags, self._memory_flags = self._memory_flags, _MEMORY
        return (_FIRST_MEMORY if found.begins_checkpoint else flags) | extra

    def _begin(self, snapshot: Snapshot) -> FrameBatch:
        if self._first_start is not None:
            snapshot, self._first_start = replace(snapshot, start=self._first_start), None
        self._snapshot = self._with_extras(snapshot)
        self._marker_start, self.sent_snap_end_seqno = snapshot.start, snapshot.end
        marker = marker_of(snapshot, self._settings.options, self._data)
        return FrameBatch(self._frame(marker, Opcode.DCP_SNAPSHOT_MARKER))

    def _with_extras(self, snapshot: Snapshot) -> Snapshot:
        extra_bytes = self._settings.prepare_extra_bytes
        return replace(snapshot, stream_id=self.stream_id, prepare_extra_bytes=extra_bytes)

    def _frame(self, body: m.Body, opcode: int) -> bytes:
        magic, infos = Magic.REQUEST, b""
        if self.stream_id is not None:
            magic, infos = Magic.ALT_REQUEST, stream_id_info(self.stream_id)
        return encode(
            body,
            opcode,
            magic=magic,
            vbucket=self.vbucket,
            opaque=self.opaque,
            framing_extras=infos,
        ).to_bytes()

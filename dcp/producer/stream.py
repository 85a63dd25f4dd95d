"""One DCP stream of one vbucket: marker, items, next marker, and at last STREAM_END.

    state     on                              goes to
    READING   end reached                     ENDING (reason OK)
    READING   closed with a STREAM_END        ENDING (its reason)
    READING   closed without                  DEAD
    ENDING    STREAM_END was sent             DEAD

A stream that starts far behind reads one disk snapshot of everything first; after that, and near
the end of the history, memory snapshots. Markers start as kv_engine's do: the first at the
client's own snap_start, later ones at their first item (kv_engine ``dcp/active_stream.cc``,
``docs/dcp/documentation/commands/snapshot-marker.md``).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from dcp.producer.failover import Verdict
from dcp.producer.history import VbucketHistory
from dcp.producer.snapshots import Snapshot, take_snapshot
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import EndReason, Opcode, SnapshotFlag, StreamFlag

_NO_SEQNOS: Final[npt.NDArray[np.uint64]] = np.empty(0, np.uint64)
_DISK: Final = int(SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT)
_MEMORY: Final = int(SnapshotFlag.MEMORY)
_FIRST_MEMORY: Final = int(SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT)
_MARKER_V2_2: Final = 2


class StreamState(Enum):
    """What the stream will do next."""

    READING = "reading"
    ENDING = "ending"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames to send: one marker, one STREAM_END, or items whose seqnos are ``seqnos``."""

    data: bytes | bytearray
    seqnos: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What the connection decides for all its streams."""

    flavour: int
    checkpoint_items: int
    marker_v2: bool = False


class ActiveStream:
    """An accepted stream; ``sent_seqno`` is how far the client has everything."""

    def __init__(
        self,
        history: VbucketHistory,
        opaque: int,
        verdict: Verdict,
        flags: int,
        settings: StreamSettings,
    ) -> None:
        self.vbucket = history.vbucket
        self.opaque = opaque
        self.state = StreamState.READING
        self.sent_seqno = verdict.start
        self.end_seqno = verdict.end
        self._history = history
        self._settings = settings
        self._disk_only = bool(flags & StreamFlag.DISK_ONLY)
        self._ignores_purged = bool(flags & StreamFlag.IGNORE_PURGED_TOMBSTONES)
        self._first_start: int | None = min(verdict.snap_start, verdict.start)
        self._memory_flags = _FIRST_MEMORY
        self._snapshot: Snapshot | None = None
        self._reason = EndReason.OK

    @property
    def is_inside_snapshot(self) -> bool:
        """Whether items of the snapshot in force are still to be sent."""
        return self._snapshot is not None and self.sent_seqno < self._snapshot.end

    def would_miss_purged(self, purge_seqno: int) -> bool:
        """Whether tombstones up to ``purge_seqno`` are gone that the client still needs.

        A snapshot under way was taken before; a client without anything needs no deletion; a
        bounded stream that is at its end reads no more (kv_engine ``dcp/active_stream.cc``,
        scheduleBackfill).
        """
        reached = self.sent_seqno if self._snapshot is None else self._snapshot.end
        return not self._ignores_purged and 0 < reached < min(purge_seqno, self.end_seqno)

    def end(self, reason: EndReason, *, announce: bool) -> None:
        """Stop sending items; with ``announce`` a STREAM_END will follow."""
        if self.state is StreamState.READING:
            self._reason = reason
            self._snapshot = None
            self.state = StreamState.ENDING if announce else StreamState.DEAD

    def next_batch(self, room_bytes: int, most_bytes: int, most_items: int) -> Batch | None:
        """Return what to send next, at least one message; None while there is nothing.

        ``room_bytes`` is what flow control has left; it must be positive.
        """
        if self.state is StreamState.READING and self._snapshot is None:
            started = self._start_snapshot()
            if started is not None:
                return Batch(started, _NO_SEQNOS)
            if self.sent_seqno >= self.end_seqno or self._nothing_can_come():
                self.state = StreamState.ENDING
        if self.state is StreamState.ENDING:
            self.state = StreamState.DEAD
            return Batch(self._frame(m.StreamEnd(self._reason), Opcode.DCP_STREAM_END), _NO_SEQNOS)
        if self._snapshot is None:
            return None
        return self._next_items(self._snapshot, room_bytes, most_bytes, most_items)

    def _next_items(
        self, snapshot: Snapshot, room_bytes: int, most_bytes: int, most_items: int
    ) -> Batch:
        chunk = snapshot.next_chunk()
        if chunk is None:
            return self._advance_to(snapshot.end)
        data, seqnos = chunk.take(room_bytes, most_bytes, most_items, self.opaque)
        self.sent_seqno = int(seqnos[-1])
        if snapshot.next_chunk() is None and not snapshot.advances:
            self.sent_seqno = snapshot.end
            self._snapshot = None
        return Batch(data, seqnos)

    def _advance_to(self, end: int) -> Batch:
        """Return the SEQNO_ADVANCED that ends a snapshot whose last item is not shown."""
        self.sent_seqno = end
        self._snapshot = None
        return Batch(self._frame(m.SeqnoAdvanced(end), Opcode.DCP_SEQNO_ADVANCED), _NO_SEQNOS)

    def _start_snapshot(self) -> bytes | None:
        """Take the next snapshot and return its marker; None while there is nothing to take."""
        high, on_disk = self._history.high_seqno, self._history.persisted_seqno
        if self.sent_seqno >= min(self.end_seqno, on_disk if self._disk_only else high):
            return None
        is_first = self._first_start is not None
        far_behind = on_disk - self.sent_seqno > self._settings.checkpoint_items
        from_disk = self._disk_only or (is_first and far_behind)
        end = on_disk if from_disk else min(high, self.end_seqno)
        snapshot = take_snapshot(
            self._history,
            self.sent_seqno,
            end,
            self._settings.flavour,
            start=self._first_start,
            flags=_DISK if from_disk else self._memory_flags,
        )
        if snapshot is None:
            return None
        if not from_disk and self._history.begins_checkpoint(self.sent_seqno, end):
            snapshot.flags = _FIRST_MEMORY
        self._first_start = None
        self._memory_flags = _FIRST_MEMORY if from_disk else _MEMORY
        self._snapshot = snapshot
        return self._marker(snapshot)

    def _marker(self, snapshot: Snapshot) -> bytes:
        if self._settings.marker_v2 and snapshot.flags & SnapshotFlag.DISK:
            body = m.SnapshotMarker(
                snapshot.start,
                snapshot.end,
                snapshot.flags,
                version=_MARKER_V2_2,
                max_visible_seqno=snapshot.end,
                high_completed_seqno=0,
                purge_seqno=self._history.purge_seqno,
                high_prepared_seqno=0,
            )
        else:
            body = m.SnapshotMarker(snapshot.start, snapshot.end, snapshot.flags)
        return self._frame(body, Opcode.DCP_SNAPSHOT_MARKER)

    def _nothing_can_come(self) -> bool:
        """Whether a bounded stream has passed the last item below its end."""
        seen = self._history.persisted_seqno if self._disk_only else self._history.high_seqno
        return self.end_seqno <= seen

    def _frame(self, body: m.Body, opcode: int) -> bytes:
        return encode(body, opcode, vbucket=self.vbucket, opaque=self.opaque).to_bytes()

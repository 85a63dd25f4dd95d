"""The checkpoint manager of one vbucket: what is queued, and the cursors that read it.

    closed ... closed | open         checkpoints, oldest first
           ^cursor       ^cursor     a cursor is a seqno: it had everything up to there

An ACTIVE vbucket queues items, seqno after seqno, and decides where a checkpoint ends: when it is
full, on ``close_open``, and where a received one comes before. A REPLICA takes over the boundaries
it is told: ``begin_snapshot`` for a received marker, ``receive`` for its items, with gaps.

A point-in-time snapshot is formed when a cursor asks (``next_items``): the rest of the checkpoint
that it stands in, so that no key comes twice. It starts at its first item's seqno; where the cursor
enters a checkpoint whose snapshot starts above what the cursor had, it starts there. It ends at the
last item; of a received snapshot that is not complete, at the marker's end, however often asked.

A cursor that had all of a closed checkpoint stands in the next one. Memory is given back only when
asked for (``checkpoint_memory``); kv_engine also removes a closed checkpoint as soon as its last
cursor leaves it, here it serves late streams until memory is short. Sources: kv_engine
``engines/ep/src/checkpoint_manager.cc``, ``dcp/active_stream.cc`` (``snapshot``),
``dcp/passive_stream.cc`` (``processMarker``), and the DCP concepts document.
"""

from collections.abc import Mapping
from typing import Generic

from dcp.errors import LocalProtocolError
from dcp.producer.checkpoint import CheckpointKind, Q, Queued
from dcp.producer.checkpoint_cursors import Cursor, Cursors
from dcp.producer.checkpoint_list import CheckpointList
from dcp.producer.checkpoint_values import (
    CheckpointFacts,
    CheckpointLimits,
    CursorFacts,
    Items,
    Registration,
)
from dcp.types import SnapshotRange, require_unsigned

__all__ = [
    "CheckpointFacts",
    "CheckpointKind",
    "CheckpointLimits",
    "CheckpointManager",
    "CursorFacts",
    "Items",
    "Queued",
    "Registration",
]


class CheckpointManager(Generic[Q]):
    """Checkpoints and cursors of a vbucket; all up to ``high_seqno`` was there before, on disk.

    ``consistent_seqno``: the newest seqno at which a whole snapshot was here; on an active vbucket
    always the high seqno. A branch begins there when a replica becomes active (kv_engine
    ``CheckpointManager::getFailoverSeqno``).
    """

    def __init__(self, vbucket: int, limits: CheckpointLimits, high_seqno: int = 0) -> None:
        require_unsigned("high_seqno", high_seqno)
        self.vbucket = vbucket
        self.limits = limits
        self.consistent_seqno = high_seqno
        self._checkpoints: CheckpointList[Q] = CheckpointList(high_seqno)
        self._cursors = Cursors(vbucket)

    @property
    def high_seqno(self) -> int:
        """The newest seqno."""
        return self._checkpoints.open.high_seqno

    @property
    def memory_bytes(self) -> int:
        """What all items in memory take, with ``ITEM_OVERHEAD_BYTES`` for each."""
        return self._checkpoints.memory_bytes

    @property
    def snapshot(self) -> SnapshotRange:
        """The snapshot in force: of the open checkpoint, up to the high seqno once complete.

        A received marker counts from its first item on.
        """
        start = self._checkpoints.open.head.snapshot_start
        return SnapshotRange(min(start, self.high_seqno), self._end_in_force)

    @property
    def is_snapshot_complete(self) -> bool:
        """Whether the end of the snapshot in force was received; always on an active vbucket."""
        return self.consistent_seqno == self.high_seqno

    @property
    def checkpoints(self) -> tuple[CheckpointFacts, ...]:
        """All checkpoints, oldest first; the last one is open."""
        standing = [cursor.checkpoint_id for cursor in self.cursors.values()]
        return tuple(
            CheckpointFacts(
                each.head.id,
                each.head.kind,
                each.head.snapshot_start,
                self._end_of(each.head.id, each.snapshot_end),
                each.high_seqno,
                each.item_count,
                each.memory_bytes,
                standing.count(each.head.id),
            )
            for each in self._checkpoints
        )

    @property
    def open_checkpoint(self) -> CheckpointFacts:
        """The checkpoint that items are added to."""
        return self.checkpoints[-1]

    @property
    def cursors(self) -> Mapping[str, CursorFacts]:
        """All cursors by name."""
        return {
            name: CursorFacts(
                cursor.seqno,
                self._checkpoints.next_after(cursor.seqno).head.id,
                cursor.is_droppable,
            )
            for name, cursor in self._cursors
        }

    def queue(self, item: Q) -> None:
        """Add the newest item of an ACTIVE vbucket; an older one of its key goes away.

        An item without a de-duplication key of whose key the open checkpoint may hold another
        wants ``close_open`` first, so that no snapshot has the key twice.

        Raises:
            LocalProtocolError: its seqno is not the one after the high seqno.
        """
        seqno = item.seqno
        if seqno != self.high_seqno + 1:
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, queue: found seqno {seqno}, "
                f"expected {self.high_seqno + 1}"
            )
        if self._checkpoints.open.is_received or self._is_full:
            self.close_open()
        self._checkpoints.open.add(item)
        self.consistent_seqno = seqno

    def begin_snapshot(
        self,
        start: int,
        end: int,
        kind: CheckpointKind,
        *,
        begins_checkpoint: bool = False,
        high_completed_seqno: int | None = None,
    ) -> None:
        """Take the marker that a REPLICA received; its items follow.

        A MEMORY snapshot after another one, not behind a gap and without the marker's CHECKPOINT
        flag (``begins_checkpoint``), extends the open checkpoint; all others begin one.

        Raises:
            LocalProtocolError: no item can follow, the end is not above the high seqno.
            ValueError: the start lies beyond the end, or one of them is not unsigned 64-bit;
                ``high_completed_seqno`` without DISK.
        """
        bounds = SnapshotRange(start, end)
        if end <= self.high_seqno:
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, snapshot [{start}, {end}]: "
                f"found its end not above the high seqno {self.high_seqno}"
            )
        if high_completed_seqno is not None and kind is not CheckpointKind.DISK:
            raise ValueError(
                f"snapshot [{start}, {end}]: found high completed seqno {high_completed_seqno} "
                f"and kind {kind.name}, expected it with DISK only"
            )
        extends = kind is CheckpointKind.MEMORY and not begins_checkpoint
        if not (extends and self._checkpoints.open.extend(bounds)):
            self._checkpoints.begin(
                kind,
                start,
                received_end=end,
                high_completed_seqno=high_completed_seqno,
                closed_end=self._end_in_force,
            )

    def receive(self, item: Q) -> None:
        """Add an item of the snapshot that a REPLICA is receiving.

        Raises:
            LocalProtocolError: its seqno is not above the high seqno or outside the snapshot.
        """
        last = self._checkpoints.open
        first, end = max(last.head.snapshot_start, self.high_seqno + 1), last.snapshot_end
        if not last.is_received or not first <= item.seqno <= end:
            expected = f"{first} to {end}" if last.is_received else "a snapshot marker first"
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, receive: found seqno {item.seqno}, expected {expected}"
            )
        last.add(item)
        if item.seqno == end:
            self.consistent_seqno = end

    def close_open(self) -> None:
        """Let the next item begin a checkpoint; only on an ACTIVE vbucket.

        A received snapshot of which items are missing ends here with what there is: the vbucket
        is active now, and what it holds is the state that there was.
        """
        self.consistent_seqno = high = self.high_seqno
        self._checkpoints.begin(
            CheckpointKind.MEMORY,
            high + 1,
            received_end=None,
            high_completed_seqno=None,
            closed_end=high,
        )

    def close_full(self) -> bool:
        """Do ``close_open`` if the open checkpoint is an active's and full; say whether it was."""
        closes = self._is_full and not self._checkpoints.open.is_received
        if closes:
            self.close_open()
        return closes

    def register(self, cursor: str, after_seqno: int, *, droppable: bool = True) -> Registration:
        """Place a cursor so that it had everything up to a seqno; one of that name is replaced.

        Raises:
            LocalProtocolError: the seqno lies above the high seqno.
        """
        self._require_seqno(f"cursor {cursor}", after_seqno)
        gone = self._checkpoints.gone_seqno
        seqno = max(after_seqno, gone)
        checkpoint = self._checkpoints.next_after(seqno)
        is_inside = after_seqno > checkpoint.expelled_seqno
        entered = checkpoint.head.id if is_inside else None
        self._cursors.place(cursor, Cursor(seqno, droppable, entered))
        return Registration(seqno + 1, needs_backfill=after_seqno < gone)

    def remove(self, cursor: str) -> None:
        """Forget a cursor, if it is there: it may have been dropped, or lost in a cut."""
        self._cursors.forget(cursor)

    def pending(self, cursor: str) -> bool:
        """Tell whether ``next_items`` has anything.

        Raises:
            LocalProtocolError: there is no such cursor.
        """
        return self._cursors.named(cursor).seqno < self.high_seqno

    def next_items(self, cursor: str) -> Items[Q] | None:
        """Form a snapshot of what the cursor has not had of its checkpoint, and advance it.

        None when there is nothing.

        Raises:
            LocalProtocolError: there is no such cursor.
        """
        place = self._cursors.named(cursor)
        if place.seqno >= self.high_seqno:
            return None
        checkpoint = self._checkpoints.next_after(place.seqno)
        head = checkpoint.head
        items = checkpoint.after(place.seqno)
        begins = place.entered != head.id
        starts_above = begins and head.snapshot_start > place.seqno
        place.seqno, place.entered = items[-1].seqno, head.id
        return Items(
            items,
            head.snapshot_start if starts_above else items[0].seqno,
            self._end_of(head.id, checkpoint.snapshot_end),
            head.kind,
            begins,
            head.high_completed_seqno,
        )

    def expel(self) -> int:
        """Forget the items of the oldest checkpoint that every cursor has had; return the bytes.

        A closed checkpoint that no cursor stands in is not for this, but for ``remove_closed``.
        """
        return self._checkpoints.expel(self._cursors.lowest_seqno(self.high_seqno))

    def remove_closed(self) -> int:
        """Remove the closed checkpoints before all cursors; return the bytes that this frees."""
        return self._checkpoints.remove_closed(self._cursors.lowest_seqno(self.high_seqno))

    def droppable_cursors(self) -> tuple[str, ...]:
        """Return the cursors that may be dropped, the farthest behind first.

        They stand in checkpoints before that of the last cursor that may not be dropped (the
        persistence cursor), and never in the open one.
        """
        kept = self._cursors.lowest_kept_seqno(self.high_seqno)
        return self._cursors.droppable_below(self._checkpoints.next_after(kept).head.begins_after)

    def drop_cursors(self) -> tuple[str, ...]:
        """Forget all ``droppable_cursors`` and return them; their streams go back to backfill."""
        dropped = self.droppable_cursors()
        for name in dropped:
            self._cursors.forget(name)
        return dropped

    def cut(self, seqno: int) -> None:
        """Lose all above ``seqno``, everything else that is in memory, and all cursors.

        Raises:
            LocalProtocolError: the seqno lies above the high seqno.
        """
        self._require_seqno("cut", seqno)
        self._checkpoints = CheckpointList(seqno, self._checkpoints.open.head.id + 1)
        self._cursors = Cursors(self.vbucket)
        self.consistent_seqno = seqno

    @property
    def _is_full(self) -> bool:
        return self._checkpoints.open.is_full(self.limits.max_items, self.limits.max_bytes)

    @property
    def _end_in_force(self) -> int:
        """Where the open checkpoint's snapshot ends: what was announced, unless nothing is due."""
        complete = self.is_snapshot_complete
        return self.high_seqno if complete else self._checkpoints.open.snapshot_end

    def _end_of(self, checkpoint_id: int, closed_end: int) -> int:
        is_open = checkpoint_id == self._checkpoints.open.head.id
        return self._end_in_force if is_open else closed_end

    def _require_seqno(self, what: str, seqno: int) -> None:
        if not 0 <= seqno <= self.high_seqno:
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, {what}: found seqno {seqno}, "
                f"expected 0 to {self.high_seqno}"
            )

"""The checkpoint manager of one vbucket: its checkpoints, and the cursors that read them.

    closed ... closed | open         checkpoints, oldest first
           ^cursor       ^cursor     a cursor is a seqno: it had everything up to there

A point-in-time snapshot is formed when a cursor asks (``next_items``): the rest of the checkpoint
that it stands in, so that no key comes twice. It starts at its first item's seqno, or where the
checkpoint's snapshot starts if the cursor had nothing from there on. It ends at the last item; of a
received snapshot that is not complete, at the marker's end, however often asked. A slow reader
peeks at it (``show_items``) and reads it piece by piece (``read_on``, ``advance``): shown items
stay in memory, and are counted, until the cursor has moved on.

A cursor that had all of a closed checkpoint stands in the next one. Closed checkpoints before all
cursors are removed when their items are on disk (``persistence``: after each flush), as kv_engine
removes one when its last cursor leaves it; what else there is goes when memory is short
(``checkpoint_memory``). Sources: kv_engine
``engines/ep/src/checkpoint_manager.cc``, ``engines/ep/src/dcp/active_stream.cc`` (``snapshot``),
and the DCP concepts document.
"""

from collections.abc import Mapping

from dcp.server.checkpoints.checkpoint import CheckpointKind, Q, QueuedItem
from dcp.server.checkpoints.checkpoint_cursors import Cursor, Cursors
from dcp.server.checkpoints.checkpoint_queue import CheckpointQueue
from dcp.server.checkpoints.checkpoint_values import (
    CheckpointFacts,
    CheckpointLimits,
    CursorFacts,
    CursorItems,
)

__all__ = [
    "CheckpointFacts",
    "CheckpointKind",
    "CheckpointLimits",
    "CheckpointManager",
    "CursorFacts",
    "CursorItems",
    "QueuedItem",
]


class CheckpointManager(CheckpointQueue[Q]):
    """Checkpoints of a vbucket with the cursors that read them."""

    def __init__(self, vbucket: int, limits: CheckpointLimits, high_seqno: int = 0) -> None:
        super().__init__(vbucket, limits, high_seqno)
        self._cursors = Cursors(vbucket)

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
    def gone_seqno(self) -> int:
        """The seqno up to which nothing is in memory any more."""
        return self._checkpoints.gone_seqno

    @property
    def open_item_count(self) -> int:
        """The number of items in the open checkpoint."""
        return self._checkpoints.open.item_count

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

    def register(self, cursor: str, after_seqno: int, *, droppable: bool = True) -> bool:
        """Place a cursor that has everything up to a seqno; one of that name is replaced.

        Return whether memory has all that comes after it; else it stands where that begins.

        Raises:
            LocalProtocolError: the seqno lies above the high seqno.
        """
        self._require_seqno(f"cursor {cursor}", after_seqno)
        gone = self._checkpoints.gone_seqno
        seqno = max(after_seqno, gone)
        checkpoint = self._checkpoints.next_after(seqno)
        is_inside = after_seqno > checkpoint.expelled_seqno
        entered = checkpoint.head.id if is_inside else None
        self._checkpoints.open.shown.pop(cursor, None)
        self._cursors.place(cursor, Cursor(seqno, droppable, entered))
        return after_seqno >= gone

    def remove(self, cursor: str) -> None:
        """Forget a cursor, if it is there: it may have been dropped."""
        self._checkpoints.open.shown.pop(cursor, None)
        self._cursors.forget(cursor)

    def next_is_whole(self, cursor: str) -> bool:
        """Return whether the result of ``next_items`` would end where its snapshot ends.

        Raises:
            LocalProtocolError: there is no such cursor.
        """
        seqno = self._cursors.named(cursor).seqno
        is_open = self._checkpoints.next_after(seqno) is self._checkpoints.open
        return self.is_snapshot_complete or not is_open

    def received_end_at(self, seqno: int) -> int | None:
        """Return the end of the received snapshot that a seqno lies in, below its end.

        None where it lies in none: what a disk holds up to it is a state then. A disk may lag
        behind memory, and so end inside a snapshot that is whole here.
        """
        checkpoint = self._checkpoints.next_after(seqno)
        is_inside = checkpoint.head.snapshot_start <= seqno < checkpoint.snapshot_end
        return checkpoint.snapshot_end if checkpoint.head.is_received and is_inside else None

    def next_items(self, cursor: str) -> CursorItems[Q] | None:
        """Form a snapshot of the cursor's unread items in its checkpoint, and advance it.

        None when there is nothing.

        Raises:
            LocalProtocolError: there is no such cursor.
        """
        items = self.show_items(cursor)
        if items is not None:
            self.advance(cursor, items.items[-1].seqno)
        return items

    def take_all(self, cursor: str) -> list[Q]:
        """Return all items that a cursor has not had, of all checkpoints, and advance it.

        Raises:
            LocalProtocolError: there is no such cursor.
        """
        place = self._cursors.named(cursor)
        taken: list[Q] = []
        while place.seqno < self.high_seqno:
            taken += self._checkpoints.next_after(place.seqno).after(place.seqno)
            place.advance(taken[-1].seqno)
        return taken

    def read_on(self, after_seqno: int, end_seqno: int, most_items: int) -> list[Q]:
        """Return the first items above a seqno of the snapshot shown to a cursor, up to another."""
        return self._checkpoints.next_after(after_seqno).between(after_seqno, end_seqno, most_items)

    def advance(self, cursor: str, seqno: int) -> None:
        """Note that the reader has everything up to a seqno.

        Raises:
            LocalProtocolError: there is no such cursor.
        """
        place = self._cursors.named(cursor)
        place.advance(seqno)
        if place.seqno >= place.shown_seqno:
            self._checkpoints.open.shown.pop(cursor, None)

    def show_items(self, cursor: str) -> CursorItems[Q] | None:
        """Form a snapshot as ``next_items``, and leave the cursor where it is.

        Nothing of it is replaced until ``advance`` says that it was had.

        Raises:
            LocalProtocolError: there is no such cursor.
        """
        place = self._cursors.named(cursor)
        if place.seqno >= self.high_seqno:
            return None
        checkpoint = self._checkpoints.next_after(place.seqno)
        head = checkpoint.head
        items = checkpoint.after(place.seqno)
        starts_above, begins = head.snapshot_start > place.seqno, place.entered != head.id
        place.show(items[-1].seqno, head.id)
        if checkpoint is self._checkpoints.open:
            self._checkpoints.open.shown[cursor] = place.shown_seqno
        return CursorItems(
            items,
            head.snapshot_start if starts_above else items[0].seqno,
            self._end_of(head.id, checkpoint.snapshot_end),
            head.kind,
            begins,
        )

    def items_after(self, seqno: int) -> int:
        """Return about how many items there are above a seqno: not more than seqnos."""
        return min(self.high_seqno - seqno, self._checkpoints.item_count)

    def expel(self) -> int:
        """Expel the items of the oldest checkpoint that every cursor has read; return the bytes.

        A closed checkpoint that no cursor stands in is not for this, but for ``remove_closed``.
        """
        if not self._checkpoints.item_count:  # thousands of cursors need no look then
            return 0
        return self._checkpoints.expel(self._cursors.lowest_seqno(self.high_seqno))

    def remove_closed(self) -> int:
        """Remove the closed checkpoints before all cursors; return the bytes that this frees."""
        if not self._checkpoints.has_closed:
            return 0
        return self._checkpoints.remove_closed(self._cursors.lowest_seqno(self.high_seqno))

    def droppable_cursors(self) -> tuple[str, ...]:
        """Return the cursors that may be dropped, the farthest behind first.

        They stand in closed checkpoints, before the checkpoint of the hindmost cursor that must
        stay (that of persistence, or of a copy).
        """
        kept = self._cursors.lowest_kept_seqno(self.high_seqno)
        return self._cursors.droppable_below(self._checkpoints.next_after(kept).head.begins_after)

    def _end_of(self, checkpoint_id: int, closed_end: int) -> int:
        is_open = checkpoint_id == self._checkpoints.open.head.id
        return self._end_in_force if is_open else closed_end

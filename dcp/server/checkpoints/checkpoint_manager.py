"""The checkpoint manager of one vbucket: its checkpoints, and the cursors that read them.

    closed ... closed | open         checkpoints, oldest first
           ^cursor       ^cursor     a cursor has every item up to its seqno

A cursor is announced a snapshot: the rest of the checkpoint that it stands in (``next_items``). Its
reader reads it in pieces (``read_on``) and advances. Announced items stay in memory until then.

Sources: kv_engine ``engines/ep/src/checkpoint_manager.cc``, ``engines/ep/src/dcp/active_stream.cc``
(``snapshot``), and the DCP concepts document.
"""

from collections.abc import Mapping

from dcp.server.checkpoints.checkpoint_cursors import Cursor, Cursors
from dcp.server.checkpoints.checkpoint_queue import CheckpointQueue
from dcp.server.checkpoints.checkpoint_values import (
    CheckpointFacts,
    CursorFacts,
    CursorItems,
)
from dcp.server.model.server_settings import ServerSettings
from dcp.server.model.versions import Version


class CheckpointManager(CheckpointQueue):
    """Checkpoints of a vbucket with the cursors that read them.

    A cursor at the end of a closed checkpoint stands in the next one. Closed checkpoints before all
    cursors go after each flush (``persistence.py``). The rest goes when memory is short
    (``checkpoint_memory.py``).
    """

    def __init__(self, vbucket: int, settings: ServerSettings, high_seqno: int = 0) -> None:
        super().__init__(vbucket, settings, high_seqno)
        self._cursors = Cursors(vbucket)

    @property
    def checkpoints(self) -> tuple[CheckpointFacts, ...]:
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
        """All items up to this seqno have left memory."""
        return self._checkpoints.gone_seqno

    @property
    def open_item_count(self) -> int:
        return self._checkpoints.open.item_count

    @property
    def cursors(self) -> Mapping[str, CursorFacts]:
        return {
            name: CursorFacts(
                cursor.seqno,
                self._checkpoints.next_after(cursor.seqno).head.id,
                cursor.is_droppable,
            )
            for name, cursor in self._cursors
        }

    def register(self, name: str, after_seqno: int, *, droppable: bool = True) -> bool:
        """Place a cursor that has every item up to ``after_seqno``; it replaces its namesake.

        Return False if memory lacks items above that seqno. The cursor then stands at the first
        item that memory has, and the reader must get the rest from disk.

        Raises:
            LocalProtocolError: the seqno lies above the high seqno.
        """
        self._require_seqno(f"cursor {name}", after_seqno)
        gone = self._checkpoints.gone_seqno
        seqno = max(after_seqno, gone)
        checkpoint = self._checkpoints.next_after(seqno)
        # A cursor in the middle of a checkpoint has had its beginning: no CHECKPOINT flag.
        is_inside = after_seqno > checkpoint.expelled_seqno
        entered = checkpoint.head.id if is_inside else None
        self._checkpoints.open.announced.pop(name, None)
        self._cursors.put(name, Cursor(seqno, droppable, entered))
        return after_seqno >= gone

    def remove(self, name: str) -> None:
        self._checkpoints.open.announced.pop(name, None)
        self._cursors.forget(name)

    def next_is_whole(self, name: str) -> bool:
        """Return True if the cursor's next snapshot has all its items here.

        Raises LocalProtocolError if there is no such cursor.
        """
        seqno = self._cursors.named(name).seqno
        is_open = self._checkpoints.next_after(seqno) is self._checkpoints.open
        return self.is_snapshot_complete or not is_open

    def received_end_at(self, seqno: int) -> int | None:
        """Return the end of the received snapshot around ``seqno``; None if there is none.

        A disk that ends inside such a snapshot holds no complete state, even if memory has it
        all.
        """
        checkpoint = self._checkpoints.next_after(seqno)
        is_inside = checkpoint.head.snapshot_start <= seqno < checkpoint.snapshot_end
        return checkpoint.snapshot_end if checkpoint.head.is_received and is_inside else None

    def joins_snapshots(self, after_seqno: int, seqno: int) -> bool:
        """Return True if several received snapshots have items above ``after_seqno``, up to the end
        of the snapshot around ``seqno``.

        Each of them has each key once; all together may not.
        """
        checkpoint = self._checkpoints.next_after(seqno)
        return checkpoint.may_repeat or after_seqno < checkpoint.head.begins_after

    def take_all(self, name: str) -> list[Version]:
        """Return all unread items of a cursor, across checkpoints, and advance it.

        Raises LocalProtocolError if there is no such cursor.
        """
        cursor = self._cursors.named(name)
        taken: list[Version] = []
        while cursor.seqno < self.high_seqno:
            taken += self._checkpoints.next_after(cursor.seqno).after(cursor.seqno)
            cursor.advance(taken[-1].seqno)
        return taken

    def read_on(self, after_seqno: int, end_seqno: int, most_items: int) -> list[Version]:
        """Return the first items in (``after_seqno``, ``end_seqno``] of an announced snapshot."""
        return self._checkpoints.next_after(after_seqno).between(after_seqno, end_seqno, most_items)

    def advance(self, name: str, seqno: int) -> None:
        """Note that the reader has every item up to ``seqno``.

        Raises LocalProtocolError if there is no such cursor.
        """
        cursor = self._cursors.named(name)
        cursor.advance(seqno)
        if cursor.seqno >= cursor.announced_seqno:
            self._checkpoints.open.announced.pop(name, None)

    def next_items(self, name: str) -> CursorItems | None:
        """Return the cursor's unread items in its checkpoint; None if there are none.

        The items stay in memory until ``advance``.

        Raises LocalProtocolError if there is no such cursor.
        """
        cursor = self._cursors.named(name)
        if cursor.seqno >= self.high_seqno:
            return None
        checkpoint = self._checkpoints.next_after(cursor.seqno)
        head = checkpoint.head
        items = checkpoint.after(cursor.seqno)
        # A cursor before the checkpoint's snapshot gets the start of that snapshot. A cursor inside
        # it gets its own first item's seqno.
        starts_above, begins = head.snapshot_start > cursor.seqno, cursor.entered != head.id
        cursor.announce(items[-1].seqno, head.id)
        if checkpoint is self._checkpoints.open:
            self._checkpoints.open.announced[name] = cursor.announced_seqno
        return CursorItems(
            items,
            head.snapshot_start if starts_above else items[0].seqno,
            self._end_of(head.id, checkpoint.snapshot_end),
            head.kind,
            begins,
            checkpoint.may_repeat,
        )

    def items_after(self, seqno: int) -> int:
        """Return an upper estimate of the number of items above ``seqno``."""
        return min(self.high_seqno - seqno, self._checkpoints.item_count)

    def expel(self) -> int:
        """Expel items of the oldest checkpoint that all cursors have read; return bytes freed."""
        if not self._checkpoints.item_count:  # skips the search through thousands of cursors
            return 0
        return self._checkpoints.expel(self._cursors.lowest_seqno(self.high_seqno))

    def remove_closed(self) -> int:
        if not self._checkpoints.has_closed:
            return 0
        return self._checkpoints.remove_closed(self._cursors.lowest_seqno(self.high_seqno))

    def droppable_cursors(self) -> tuple[str, ...]:
        """Return the droppable cursors that hold back closed checkpoints, the slowest first."""
        # An undroppable cursor (the flusher's, or of a replica's stream) keeps all checkpoints from
        # its own on. Dropping cursors ahead of it frees nothing.
        kept = self._cursors.lowest_kept_seqno(self.high_seqno)
        return self._cursors.droppable_below(self._checkpoints.next_after(kept).head.begins_after)

    def _end_of(self, checkpoint_id: int, closed_end: int) -> int:
        # An incomplete received snapshot ends at its marker's end, not at the last item so far.
        is_open = checkpoint_id == self._checkpoints.open.head.id
        return self._end_in_force if is_open else closed_end

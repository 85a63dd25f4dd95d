"""Assembles snapshots: which snapshot a stream is in, and when all of it has arrived.

A marker announces bounds. It is *pending* until the first item of it arrives: until then the
consumer still stands in the old snapshot, and resumes there. Each item lies within the marker's
bounds and above the item before it; gaps are normal (de-duplication, filters). The snapshot is
*complete* when an item, or SEQNO_ADVANCED, reaches its end; only then may its rows be published.

A new marker before the old end was reached completes nothing: the rows that wait go on waiting,
until an end at or beyond both has been reached. (De-duplication may have moved a change that
belongs below the new end to anywhere below the old one.)

A snapshot may span branches. Which of them a position names is said in ``position.py``; ``log`` is
always the failover log that the stream was accepted with.
Source: kv_engine ``docs/dcp/documentation/commands/snapshot-marker.md`` and ``seqno-advanced.md``.
"""

from dataclasses import dataclass, replace

from dcp.errors import RemoteProtocolError
from dcp.protocol.position import Position
from dcp.types import FailoverLog, SnapshotRange


@dataclass(frozen=True, slots=True)
class SnapshotAssembly:
    """The position of a stream, and the marker in force as sent (None: none came yet)."""

    position: Position
    marker: SnapshotRange | None = None
    flags: int = 0

    @property
    def is_marker_reached(self) -> bool:
        """True if the end of the marker in force has been reached."""
        return self.marker is not None and self.position.seqno == self.marker.end

    def begin(self, marker: SnapshotRange, flags: int) -> "SnapshotAssembly":
        """Put a marker into force; the position does not move.

        Raises:
            RemoteProtocolError: the marker ends before what was already delivered.
        """
        if marker.end < self.position.seqno:
            raise RemoteProtocolError(
                f"snapshot marker going backwards: found [{marker.start}, {marker.end}], "
                f"expected an end at or beyond seqno {self.position.seqno}"
            )
        return replace(self, marker=marker, flags=flags)

    def item(self, first_seqno: int, last_seqno: int, log: FailoverLog) -> "SnapshotAssembly":
        """Take a run of items, checked to ascend, of which these are the first and the last.

        Raises:
            RemoteProtocolError: they do not lie above the position and within the marker.
        """
        if self.marker is None:
            raise RemoteProtocolError(f"item before marker: found seqno {first_seqno}")
        if first_seqno <= self.position.seqno:
            raise RemoteProtocolError(
                f"seqno repeated or going backwards: found {first_seqno} "
                f"after {self.position.seqno}"
            )
        if first_seqno < self.marker.start or last_seqno > self.marker.end:
            beyond = last_seqno > self.marker.end
            raise RemoteProtocolError(
                f"item {'beyond' if beyond else 'below'} marker: found seqno "
                f"{last_seqno if beyond else first_seqno}, expected it in "
                f"[{self.marker.start}, {self.marker.end}]"
            )
        position = self._position_at(last_seqno, self.marker, log)
        return SnapshotAssembly(position, self.marker, self.flags)

    def advanced(self, seqno: int, log: FailoverLog) -> "SnapshotAssembly":
        """Take SEQNO_ADVANCED: nothing more for us up to ``seqno``.

        Where no snapshot is under way it is a complete snapshot of its own.

        Raises:
            RemoteProtocolError: it lies below the position or beyond the snapshot under way.
        """
        if seqno < self.position.seqno:
            raise RemoteProtocolError(
                f"SEQNO_ADVANCED going backwards: found {seqno} after {self.position.seqno}"
            )
        bounds = self._snapshot_under_way()
        if bounds is None:
            return replace(self, position=Position.complete_at(log.uuid_at(seqno), seqno))
        if seqno > bounds.end:
            raise RemoteProtocolError(
                f"SEQNO_ADVANCED beyond marker: found {seqno}, expected at most {bounds.end}"
            )
        return replace(self, position=self._position_at(seqno, bounds, log))

    def _snapshot_under_way(self) -> SnapshotRange | None:
        if self.marker is not None and not self.is_marker_reached:
            return self.marker
        return None if self.position.is_complete else self.position.snapshot

    def _position_at(self, seqno: int, bounds: SnapshotRange, log: FailoverLog) -> Position:
        waiting_end = 0 if self.position.is_complete else self.position.snap_end
        end = max(bounds.end, waiting_end)
        if seqno >= end:
            return Position.complete_at(log.uuid_at(seqno), seqno)
        if seqno == self.position.complete_seqno:
            return self.position  # nothing of this snapshot has arrived yet
        return self.position.inside(log.uuid_at(end), seqno, SnapshotRange(bounds.start, end))

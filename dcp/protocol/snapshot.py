"""Assembles snapshots: which snapshot a stream is in, and whether it is complete.

A snapshot is complete when an item or SEQNO_ADVANCED reaches its end; only then may its rows be
published. Source: kv_engine ``docs/dcp/documentation/commands/snapshot-marker.md`` and
``seqno-advanced.md``.
"""

from dataclasses import dataclass, replace

from dcp.errors import RemoteProtocolError
from dcp.protocol.position import Position
from dcp.types import FailoverLog, SnapshotRange


@dataclass(frozen=True, slots=True)
class SnapshotAssembly:
    """The position of a stream, and its newest marker.

    Methods take the ``failover_log`` that the producer accepted the stream with.
    """

    position: Position
    marker: SnapshotRange | None = None
    """As sent; None before the first marker."""
    flags: int = 0

    @property
    def is_marker_reached(self) -> bool:
        return self.marker is not None and self.position.seqno == self.marker.end

    def begin(self, marker: SnapshotRange, flags: int) -> "SnapshotAssembly":
        """Take a marker. The position moves only with its first item: until then a resume needs the
        old one.

        Raises RemoteProtocolError if the marker ends below the position.
        """
        if marker.end < self.position.seqno:
            raise RemoteProtocolError(
                f"snapshot marker going backwards: found [{marker.start}, {marker.end}], "
                f"expected an end at or beyond seqno {self.position.seqno}"
            )
        return replace(self, marker=marker, flags=flags)

    def item(
        self, first_seqno: int, last_seqno: int, failover_log: FailoverLog
    ) -> "SnapshotAssembly":
        """Take a run of ascending items, from its first and last seqno.

        Raises RemoteProtocolError unless they lie above the position and within the marker.
        """
        if self.marker is None:
            raise RemoteProtocolError(f"item before marker: found seqno {first_seqno}")
        # Gaps between seqnos are normal: de-duplication and filters make them.
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
        position = self._position_at(last_seqno, self.marker, failover_log)
        return SnapshotAssembly(position, self.marker, self.flags)

    def advanced(self, seqno: int, failover_log: FailoverLog) -> "SnapshotAssembly":
        """Take SEQNO_ADVANCED: there is nothing for this stream up to ``seqno``.

        Raises RemoteProtocolError if ``seqno`` lies below the position or beyond the snapshot.
        """
        if seqno < self.position.seqno:
            raise RemoteProtocolError(
                f"SEQNO_ADVANCED going backwards: found {seqno} after {self.position.seqno}"
            )
        bounds = self._snapshot_under_way()
        # Between snapshots SEQNO_ADVANCED is a complete snapshot of its own.
        if bounds is None:
            return replace(self, position=Position.complete_at(failover_log.uuid_at(seqno), seqno))
        if seqno > bounds.end:
            raise RemoteProtocolError(
                f"SEQNO_ADVANCED beyond marker: found {seqno}, expected at most {bounds.end}"
            )
        return replace(self, position=self._position_at(seqno, bounds, failover_log))

    def _snapshot_under_way(self) -> SnapshotRange | None:
        if self.marker is not None and not self.is_marker_reached:
            return self.marker
        return None if self.position.is_complete else self.position.snapshot

    def _position_at(
        self, seqno: int, bounds: SnapshotRange, failover_log: FailoverLog
    ) -> Position:
        # A new marker that comes before the old end does not complete the old snapshot.
        # De-duplication may have moved a change from below the new end to above it, up to the old
        # end. So rows wait until both ends are reached.
        waiting_end = 0 if self.position.is_complete else self.position.snap_end
        end = max(bounds.end, waiting_end)
        if seqno >= end:
            return Position.complete_at(failover_log.uuid_at(seqno), seqno)
        if seqno == self.position.complete_seqno:
            return self.position  # nothing of this snapshot has arrived yet
        uuid = failover_log.uuid_at(end)
        return self.position.inside(uuid, seqno, SnapshotRange(bounds.start, end))

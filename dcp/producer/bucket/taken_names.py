"""DCP connections whose names others took while they still had streams, which go in rounds.

The cursors of their streams keep the names they have; those of the newer connection get others, so
that it may open streams at once.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dcp.producer.bucket.dcp_connection import DcpConnection


class TakenNames:
    """Used with the bucket's lock held."""

    def __init__(self) -> None:
        self._older: set[DcpConnection] = set()
        self._numbers = count(2)

    def take(self, older: DcpConnection | None, newer: DcpConnection) -> None:
        """Close an older connection, and give the cursors of the newer one names of their own."""
        if older is not None:
            older.close_session()
            if older.is_internal:  # a node: what it pins is not to wait
                older.drop_streams()
            else:
                self._older.add(older)
        if any(each.key == newer.key for each in self._older):
            newer.cursor_name = f"{next(self._numbers)}:{newer.told_name}"

    def gone(self, connection: DcpConnection) -> None:
        """Forget a connection that has no streams any more."""
        self._older.discard(connection)

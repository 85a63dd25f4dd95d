"""Stream requests of clients that have something already."""

from dcp.types import END_OF_TIME
from dcp.wire import messages as m


def resuming(
    start: int,
    vb_uuid: int,
    snap_start: int,
    snap_end: int,
    end: int = END_OF_TIME,
    flags: int = 0,
) -> m.StreamRequest:
    """Return the request of a client that has everything of a branch up to ``start``."""
    return m.StreamRequest(flags, start, end, vb_uuid, snap_start, snap_end)

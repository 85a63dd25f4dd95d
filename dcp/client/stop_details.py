"""Words the report of a vbucket that is given up: the reason, the duration, and the last state."""

from typing import Final

from dcp.client.consumer_events import StopReason
from dcp.client.node_links import NodeLink
from dcp.client.vbucket_track import Phase, VbucketTrack

_AWAITED: Final = {
    Phase.REQUESTED: "the answer to the stream request",
    Phase.ROLLING_BACK: "the failover log after a rollback",
    Phase.CLOSING: "the answer to closing the stream",
}


def stop_details(track: VbucketTrack, link: NodeLink | None, now: float) -> tuple[StopReason, str]:
    """Return the reason and the detail of a vbucket past its deadline; ``link`` is its node's."""
    reason, detail = track.reason, track.detail
    awaited = _AWAITED.get(track.phase)
    if awaited is None and link is not None and link.connection is not None and not link.is_ready:
        awaited = "the connection to be set up"
    if awaited is not None and track.failures == 0:
        reason, detail = StopReason.NODE_UNAVAILABLE, f"waiting for {awaited}"
    elif awaited is not None:  # what went wrong before tells more than what is tried now
        detail += f"; now waiting for {awaited}"
    where = f"{track.address}: " if track.address else ""
    seconds = now - track.trouble_since
    return reason, (
        f"{where}no progress for {seconds:.1f} s, {track.failures} failures; last: {detail}"
    )

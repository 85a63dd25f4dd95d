"""Maps a refused or ended stream to the consumer's reaction: two tables, by status and by reason.

Source: kv_engine ``docs/dcp/documentation/commands/{stream-request,stream-end}.md``, and the
behaviour of the Java DCP client and gocbcore. A number outside the tables comes from a newer
server. The consumer tries again until the node deadline, as for any trouble that may pass.
"""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from dcp.wire.vocabulary import EndReason, Status


class Reaction(Enum):
    """The consumer's reaction to a refused or ended stream."""

    FINISH = auto()
    """Report the vbucket as finished."""
    RETRY = auto()
    """Ask the same node again, after a delay."""
    REOPEN = auto()
    """Ask the same node again at once."""
    REROUTE = auto()
    """Get a new cluster map and ask the vbucket's new node."""
    STOP = auto()
    """Another request cannot help: report it."""
    FAIL_BUCKET = auto()
    """No access to the bucket: the whole consumer fails with BucketError."""


REFUSALS: Final[Mapping[int, Reaction]] = MappingProxyType(
    {
        Status.KEY_ENOENT: Reaction.RETRY,
        Status.KEY_EEXISTS: Reaction.RETRY,  # our own stream of before, being closed
        Status.EINVAL: Reaction.STOP,
        Status.NOT_MY_VBUCKET: Reaction.REROUTE,
        Status.NO_BUCKET: Reaction.FAIL_BUCKET,
        Status.EACCESS: Reaction.FAIL_BUCKET,
        Status.DCP_STREAM_NOT_FOUND: Reaction.RETRY,
        Status.ECONFIG_ONLY: Reaction.REROUTE,
        Status.ERANGE: Reaction.STOP,
        Status.UNKNOWN_COMMAND: Reaction.STOP,
        Status.ENOMEM: Reaction.RETRY,
        Status.NOT_SUPPORTED: Reaction.STOP,
        Status.EBUSY: Reaction.RETRY,
        Status.ETMPFAIL: Reaction.RETRY,
        Status.UNKNOWN_COLLECTION: Reaction.STOP,
        Status.UNKNOWN_SCOPE: Reaction.STOP,
        Status.DCP_STREAM_ID_INVALID: Reaction.STOP,
    }
)
"""By status of a refused stream request. ROLLBACK is no refusal: it has an event of its own."""

ENDINGS: Final[Mapping[int, Reaction]] = MappingProxyType(
    {
        EndReason.OK: Reaction.FINISH,
        EndReason.CLOSED: Reaction.RETRY,  # by somebody else; ours is expected and handled before
        EndReason.STATE_CHANGED: Reaction.REROUTE,
        EndReason.DISCONNECTED: Reaction.RETRY,
        EndReason.SLOW: Reaction.RETRY,
        EndReason.BACKFILL_FAILED: Reaction.RETRY,
        EndReason.ROLLBACK: Reaction.REOPEN,  # the request will be answered by a ROLLBACK
        EndReason.FILTER_EMPTY: Reaction.FINISH,
        EndReason.LOST_PRIVILEGES: Reaction.FAIL_BUCKET,
    }
)
"""By reason of STREAM_END."""


def end_reason_name(reason: int) -> str:
    """Return ``NAME (n)``."""
    known = {int(each): each.name for each in EndReason}
    return f"{known.get(reason, 'unknown reason')} ({reason})"

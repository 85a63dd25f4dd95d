"""Lists what a consumer asks a server for: the features of HELLO and the controls of DCP.

Two tables, with the reason for each line and what is lost where the server refuses it. The
bootstrap asks for what they say, ``dcplake doctor`` explains a refusal by them, and
``docs/reference/negotiation.md`` is written from them. Source: kv_engine
``include/mcbp/protocol/feature.h``, ``docs/dcp/documentation/commands/control.md``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dcp.protocol.window_resize import CONNECTION_WINDOW
from dcp.wire.vocabulary import HelloFeature

ALWAYS: Final = "always"

Release = tuple[int, int]
"""Major and minor version of a server; zeros: any."""
MAKES_UP_METADATA: Final[Release] = (7, 6)
"""The first release that answers NO_VALUE wrongly from disk, and so do all that follow to 8.0.

Its items are made up there: CAS, flags and expiry are 0, and deletions are mutations (kv_engine
``dcp/backfill_disk.cc``, ``CacheCallback::callback``).
"""


@dataclass(frozen=True, slots=True)
class FeatureTerm:
    """A feature that HELLO always asks for: why, and what is lost without it."""

    feature: HelloFeature
    why: str
    lost: str


@dataclass(frozen=True, slots=True)
class ControlTerm:
    """A DCP_CONTROL: its value in words, when it is sent, why, and what is lost without it.

    A server that refuses a required one cannot be read, and is refused by the control's name. None
    is sent to servers of a version below ``since``, which log a warning of each control that they
    do not know.
    """

    value: str
    asked: str
    why: str
    lost: str
    is_required: bool = False
    since: Release = (0, 0)


FEATURE_TERMS: Final = (
    FeatureTerm(
        HelloFeature.XATTR,
        "documents come with their extended attributes",
        "the column xattrs stays empty",
    ),
    FeatureTerm(
        HelloFeature.XERROR,
        "a refusal is an answer, with its status and the server's words",
        "the server refuses by closing the connection: the error names the step, not the reason",
    ),
    FeatureTerm(
        HelloFeature.SELECT_BUCKET,
        "the bucket is chosen by its name",
        "the connection has the bucket that the server gives to the user",
    ),
    FeatureTerm(
        HelloFeature.JSON,
        "the server says of each value whether it is JSON",
        "nothing but time: the views look into each value",
    ),
    FeatureTerm(
        HelloFeature.DUPLEX,
        "the server may send requests of its own; map pushes need it",
        "no map pushes",
    ),
    FeatureTerm(
        HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION,
        "a new cluster map is pushed when vbuckets move",
        "a move is noticed when a stream ends or a request is refused: some seconds later",
    ),
    FeatureTerm(
        HelloFeature.COLLECTIONS,
        "documents of all collections come",
        "only the default collection is replicated",
    ),
    FeatureTerm(
        HelloFeature.SNAPPY,
        "values come compressed where they are stored so, and no node inflates them for us",
        "nothing but bytes: nodes inflate what they store compressed",
    ),
)

FEATURES: Final = tuple(term.feature for term in FEATURE_TERMS)
"""The features that every consumer asks for."""

STREAM_WINDOW: Final = "stream_buffer_size"
"""The control that no data server has, only the document."""
CHANGE_STREAMS: Final = "change_streams"
"""The control for all versions of documents, of buckets that retain history."""
OUT_OF_ORDER: Final = "enable_out_of_order_snapshots"
"""The control for snapshots in the order of keys."""
GROUP_TAG: Final = "receiver_group_tag"
"""The control of our own relay: which group of its receivers a consumer belongs to."""

CONTROL_TERMS: Final[Mapping[str, ControlTerm]] = {
    "enable_noop": ControlTerm(
        "true",
        ALWAYS,
        "a node that is alive says so however quiet its streams are",
        "a dead node would be waited for without end",
        is_required=True,
    ),
    "set_noop_interval": ControlTerm(
        "`source.noop_interval_seconds`",
        ALWAYS,
        "both sides wait equally long before they give the other up",
        "the node would be called dead too early, or too late",
        is_required=True,
    ),
    CONNECTION_WINDOW: ControlTerm(
        "the window of `flow_control`",
        "unless `flow_control.window_policy` is none",
        "the node stops sending when so much is not acknowledged: the bound on memory",
        "memory would have no bound",
        is_required=True,
    ),
    STREAM_WINDOW: ControlTerm(
        "`flow_control.stream_window_bytes`",
        "where that is not 0",
        "each stream has a window of its own beside the connection's",
        "the connection's window holds alone; data servers refuse it",
    ),
    "enable_expiry_opcode": ControlTerm(
        "true",
        ALWAYS,
        "a document that expired is told apart from one that was deleted",
        "expirations come as deletions",
    ),
    "supports_cursor_dropping_vulcan": ControlTerm(
        "true",
        ALWAYS,
        "a node that is short of memory may go on from disk with a slow consumer's stream",
        "the node keeps in memory what a slow consumer has not read",
    ),
    "send_stream_end_on_client_close_stream": ControlTerm(
        "true",
        ALWAYS,
        "a closed stream ends with a message, behind all that was sent",
        "the answer to CLOSE_STREAM ends it, and what comes later is dropped",
    ),
    "max_marker_version": ControlTerm(
        "2.2",
        ALWAYS,
        "snapshot markers tell the purge seqno: a purge that is known orders no rollback",
        "a purge above the seqno that a lake stands at, also inside a snapshot that it has read in "
        "part, orders a rollback to 0: the vbucket is read again",
        since=(8, 0),
    ),
    "backfill_order": ControlTerm(
        "sequential",
        ALWAYS,
        "a node reads one vbucket's disk snapshot to its end before the next: a first load that is "
        "cut short publishes the vbuckets that are complete",
        "large vbuckets become complete together, near the end of a first load; on a slow line one "
        "may wait in its snapshot for longer than `round.node_deadline_seconds`: it ends its round "
        "there, and goes on in the next",
        since=(7, 0),
    ),
    CHANGE_STREAMS: ControlTerm(
        "true",
        "by a lake",
        "of a bucket that retains history all versions of a document come, not only the newest, "
        "and markers tell which snapshots may hold a key twice",
        "of several changes of a document in one snapshot only the newest comes: so it is of every "
        "bucket without change history; those that are not of Magma refuse this",
        since=(7, 2),
    ),
    GROUP_TAG: ControlTerm(
        "`source.receiver_group_tag`",
        "where that is set",
        "the lake is one of a relay's group of receivers",
        "the node is no relay",
        is_required=True,
    ),
}
"""By name."""

_FEATURE_LOSSES: Final = {int(term.feature): term.lost for term in FEATURE_TERMS}


def refused_features(granted: Iterable[int]) -> dict[str, str]:
    """Return what a server did not grant of what it was asked for, and what each costs."""
    refused = sorted(_FEATURE_LOSSES.keys() - set(granted))
    return {HelloFeature(code).name: _FEATURE_LOSSES[code] for code in refused}


def refused_controls(names: Iterable[str]) -> dict[str, str]:
    """Return what each of the refused controls costs."""
    return {name: CONTROL_TERMS[name].lost for name in names if name in CONTROL_TERMS}

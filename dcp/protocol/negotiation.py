"""Lists what a consumer asks a server for: the features of HELLO and the controls of DCP.

The bootstrap sends them, ``dcplake doctor`` explains refusals with them, and they make
``docs/reference/negotiation.md``. Source: kv_engine ``include/mcbp/protocol/feature.h``,
``docs/dcp/documentation/commands/control.md``.
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
"""The first release that answers NO_VALUE wrongly from disk; so do all later ones up to 8.0.

It makes up items: CAS, flags and expiry are 0, and deletions are mutations (kv_engine
``dcp/backfill_disk.cc``, ``CacheCallback::callback``)."""


@dataclass(frozen=True, slots=True)
class FeatureTerm:
    """A feature that HELLO always asks for."""

    feature: HelloFeature
    why: str
    lost: str
    """What a connection lacks without it."""


@dataclass(frozen=True, slots=True)
class ControlTerm:
    """A DCP_CONTROL, with texts for people."""

    value: str
    asked: str
    """When the consumer sends it."""
    why: str
    lost: str
    """What a connection lacks without it."""
    is_required: bool = False
    """The consumer cannot read a server that refuses this control."""
    since: Release = (0, 0)
    """Older servers do not get this control: they would log a warning about it."""


FEATURE_TERMS: Final = (
    FeatureTerm(
        HelloFeature.XATTR,
        "documents arrive with their extended attributes",
        "the column xattrs stays empty",
    ),
    FeatureTerm(
        HelloFeature.XERROR,
        "the server refuses with an answer that has a status and a text",
        "the server refuses by closing the connection: the error names the step, not the reason",
    ),
    FeatureTerm(
        HelloFeature.SELECT_BUCKET,
        "the consumer selects the bucket by name",
        "the server selects a bucket for the user",
    ),
    FeatureTerm(
        HelloFeature.JSON,
        "the server says of each value whether it is JSON",
        "only time: the views examine each value",
    ),
    FeatureTerm(
        HelloFeature.DUPLEX,
        "the server may send requests, for instance new cluster maps",
        "the server pushes no cluster maps",
    ),
    FeatureTerm(
        HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION,
        "the server pushes a new cluster map when vbuckets move",
        "the consumer notices a move when a stream ends or a request fails: some seconds later",
    ),
    FeatureTerm(
        HelloFeature.COLLECTIONS,
        "documents of all collections arrive",
        "only the default collection is replicated",
    ),
    FeatureTerm(
        HelloFeature.SNAPPY,
        "nodes send compressed values as they store them, without inflating them",
        "only bytes on the network: nodes inflate compressed values",
    ),
)

FEATURES: Final = tuple(term.feature for term in FEATURE_TERMS)
"""The features that every consumer asks for."""

STREAM_WINDOW: Final = "stream_buffer_size"
"""kv_engine's document describes this control; no data server has it."""
STREAM_END_ON_CLOSE: Final = "send_stream_end_on_client_close_stream"
"""STREAM_END follows the answer to CLOSE_STREAM."""
CHANGE_STREAMS: Final = "change_streams"
"""All versions of documents, for buckets that retain history."""
OUT_OF_ORDER: Final = "enable_out_of_order_snapshots"
"""Snapshots in the order of keys."""
GROUP_TAG: Final = "receiver_group_tag"
"""A control of our relay only: the receiver group that the consumer joins."""

CONTROL_TERMS: Final[Mapping[str, ControlTerm]] = {
    "enable_noop": ControlTerm(
        "true",
        ALWAYS,
        "a healthy node sends NOOPs even if its streams are quiet",
        "the consumer would wait forever for a dead node",
        is_required=True,
    ),
    "set_noop_interval": ControlTerm(
        "`source.noop_interval_seconds`",
        ALWAYS,
        "both sides give up a silent peer after the same time",
        "the consumer would give up the node too early or too late",
        is_required=True,
    ),
    CONNECTION_WINDOW: ControlTerm(
        "the window of `flow_control`",
        "unless `flow_control.window_policy` is none",
        "the node stops sending when this many bytes are unacknowledged: this bounds memory",
        "memory would have no bound",
        is_required=True,
    ),
    STREAM_WINDOW: ControlTerm(
        "`flow_control.stream_window_bytes`",
        "if it is not 0",
        "each stream has a window of its own, in addition to the connection's",
        "only the connection's window limits; data servers refuse this control",
    ),
    "enable_expiry_opcode": ControlTerm(
        "true",
        ALWAYS,
        "the consumer can distinguish an expired document from a deleted one",
        "expirations come as deletions",
    ),
    "supports_cursor_dropping_vulcan": ControlTerm(
        "true",
        ALWAYS,
        "a node that is short of memory may continue a slow consumer's stream from disk",
        "the node keeps items in memory until a slow consumer has read them",
    ),
    STREAM_END_ON_CLOSE: ControlTerm(
        "true",
        ALWAYS,
        "a closed stream ends with a message after its last item",
        "the answer to CLOSE_STREAM ends it, and the consumer drops later messages",
    ),
    "max_marker_version": ControlTerm(
        "2.2",
        ALWAYS,
        "snapshot markers carry the purge seqno: a purge that the lake knows causes no rollback",
        "a purge above the lake's seqno causes a rollback to 0, even inside a snapshot that it has "
        "read in part. Then the lake reads the vbucket again",
        since=(8, 0),
    ),
    "backfill_order": ControlTerm(
        "sequential",
        ALWAYS,
        "a node reads one vbucket's disk snapshot to its end before the next: an interrupted first "
        "load publishes the vbuckets that are complete",
        "large vbuckets become complete together, near the end of a first load. On a slow network "
        "one may wait in its snapshot beyond `round.node_deadline_seconds`, and continue in the "
        "next round",
        since=(7, 0),
    ),
    CHANGE_STREAMS: ControlTerm(
        "true",
        "by a lake",
        "a bucket that retains history sends all versions of a document, not only the newest. Its "
        "markers say which snapshots may hold a key twice",
        "a snapshot has only the newest of several changes of a document, as in each bucket "
        "without change history; only Magma buckets accept this control",
        since=(7, 2),
    ),
    GROUP_TAG: ControlTerm(
        "`source.receiver_group_tag`",
        "if it is set",
        "the lake is one of a relay's group of receivers",
        "the node is no relay",
        is_required=True,
    ),
}
"""By name."""

_FEATURE_LOSSES: Final = {int(term.feature): term.lost for term in FEATURE_TERMS}


def refused_features(granted: Iterable[int]) -> dict[str, str]:
    """Return the features that the server has not granted, and the cost of each."""
    refused = sorted(_FEATURE_LOSSES.keys() - set(granted))
    return {HelloFeature(code).name: _FEATURE_LOSSES[code] for code in refused}


def refused_controls(names: Iterable[str]) -> dict[str, str]:
    """Return the cost of each refused control."""
    return {name: CONTROL_TERMS[name].lost for name in names if name in CONTROL_TERMS}

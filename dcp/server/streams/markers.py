"""Builds snapshot markers.

    version   for                                     contains
    1         all others                              bounds and flags
    2.0       replicas that acknowledge prepares      also how far sync writes have come
    2.2       disk snapshots, if the client asked     also the purge seqno

Source: kv_engine ``dcp/active_stream.cc`` (snapshot), ``docs/dcp/documentation/commands/
snapshot-marker.md``.
"""

from dataclasses import replace
from typing import Final

from dcp.server.model.durability import Durability
from dcp.server.streams.dcp_options import DcpOptions
from dcp.server.streams.snapshots import MemoryItems, Snapshot
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire import messages as m
from dcp.wire.vocabulary import SnapshotFlag

_V2_0: Final = 0
_V2_2: Final = 2


def marker_of(snapshot: Snapshot, options: DcpOptions, data: VbucketData) -> m.SnapshotMarker:
    body = m.SnapshotMarker(snapshot.start, snapshot.end, snapshot.flags)
    is_v2_2 = options.marker_v2 and bool(snapshot.flags & SnapshotFlag.DISK)
    if not (options.acknowledges or is_v2_2):
        return body
    # A client without sync writes sees every item.
    durability = Durability(snapshot.end, 0, 0)
    if options.acknowledges:
        durability = _durability_of(snapshot, data)
    body = replace(
        body,
        version=_V2_0,
        max_visible_seqno=durability.max_visible_seqno,
        high_completed_seqno=durability.high_completed_seqno,
    )
    if is_v2_2:
        body = replace(
            body,
            version=_V2_2,
            purge_seqno=data.disk.purge_seqno,
            high_prepared_seqno=durability.high_prepared_seqno,
        )
    return body


def _durability_of(snapshot: Snapshot, data: VbucketData) -> Durability:
    """Return a snapshot's durability seqnos; from memory only its last visible seqno."""
    if not isinstance(snapshot.items, MemoryItems):
        return data.durability_at(snapshot.end)
    visible = snapshot.items.last_visible_seqno
    if visible is None:
        visible = data.durability_at(snapshot.end).max_visible_seqno
    return Durability(visible, 0, 0)

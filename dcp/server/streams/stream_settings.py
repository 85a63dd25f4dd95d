"""The settings that a connection gives to the streams that it opens."""

from dataclasses import dataclass, field
from enum import Enum

from dcp.server.model.key_quota import KeyQuota


class OutOfOrder(Enum):
    """The permission to send a first snapshot in key order, and to end it with SEQNO_ADVANCED."""

    NO = "no"
    YES = "yes"
    WITH_SEQNO_ADVANCED = "with SEQNO_ADVANCED"


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The connection's settings for all its streams.

    ``change_streams``: all versions that are there are sent, in snapshots whose flags say so.
    ``marker_v2``: disk markers have version 2.2. ``tells_durability``: all markers tell how far
    sync writes have come, in version 2.0 where it is not 2.2. ``keeps_cursor``: its streams are not
    sent back to the disk when memory is short. ``cursor``: what its cursors are called.
    ``prepare_extra_bytes``: what flow control charges for a prepare beyond its length.
    ``key_quota``: those that snapshots in the order of keys hold, of all streams together.
    """

    flavour: int
    change_streams: bool = False
    marker_v2: bool = False
    tells_durability: bool = False
    out_of_order: OutOfOrder = OutOfOrder.NO
    keeps_cursor: bool = False
    cursor: str = "stream"
    prepare_extra_bytes: int = 0
    key_quota: KeyQuota = field(default_factory=KeyQuota)

"""The settings of a connection for all its streams."""

from dataclasses import dataclass, field
from enum import Enum

from dcp.server.model.key_quota import KeyQuota


class OutOfOrder(Enum):
    """The client's permission for a first snapshot in key order, which may end with
    SEQNO_ADVANCED.
    """

    NO = "no"
    YES = "yes"
    WITH_SEQNO_ADVANCED = "with SEQNO_ADVANCED"


@dataclass(frozen=True, slots=True)
class StreamSettings:
    flavour: int
    change_streams: bool = False
    """True if streams send all versions, in snapshots whose flags say so."""
    marker_v2: bool = False
    """True if markers of disk snapshots have version 2.2."""
    tells_durability: bool = False
    """True if all markers have at least version 2.0, which says how far sync writes have come."""
    out_of_order: OutOfOrder = OutOfOrder.NO
    keeps_cursor: bool = False
    """True if low memory must not drop the streams' cursors."""
    cursor: str = "stream"
    """Name of the streams' cursors."""
    prepare_extra_bytes: int = 0
    """Flow control charges so much for a prepare beyond its length."""
    key_quota: KeyQuota = field(default_factory=KeyQuota)
    """Limits the keys in memory for key order, of all streams together."""

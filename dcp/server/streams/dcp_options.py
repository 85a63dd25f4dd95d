"""A DCP connection's client, as DCP_OPEN describes it, and the options that it negotiates.

Together they decide the flavour of items: which bytes an item has on this connection.
"""

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Final

from dcp.server.model.connection_name import display_name
from dcp.server.model.key_quota import KeyQuota
from dcp.server.model.versions import Flavour
from dcp.wire.vocabulary import HelloFeature, OpenFlag

ConnectionKey = tuple[int, bytes]
"""A node and a connection name: a client may use the same name at all nodes (gocbcore does)."""

_FLAVOUR_OF_OPEN: Final = {
    OpenFlag.INCLUDE_XATTRS: Flavour.XATTRS,
    OpenFlag.INCLUDE_DELETE_TIMES: Flavour.DELETE_TIMES,
    OpenFlag.NO_VALUE: Flavour.NO_VALUE,
    OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE: Flavour.NO_VALUE | Flavour.UNDERLYING_DATATYPE,
    OpenFlag.INCLUDE_DELETED_USER_XATTRS: Flavour.DELETED_USER_XATTRS,
}
_FLAVOUR_OF_FEATURE: Final = {
    HelloFeature.COLLECTIONS: Flavour.COLLECTIONS,
    HelloFeature.SNAPPY: Flavour.SNAPPY,
}


@dataclass(frozen=True)
class DcpClient:
    """The client of one DCP connection."""

    key: ConnectionKey
    flags: int = 0
    """Of DCP_OPEN."""
    features: frozenset[int] = frozenset()
    """Granted by HELLO."""
    user: str = ""
    is_internal: bool = False
    """True if the client is a node of this cluster that fills a replica."""

    @cached_property
    def display_name(self) -> str:
        return display_name(self.key[1])

    @property
    def is_producer(self) -> bool:
        """True if DCP_OPEN asked this side to be the producer, so the client receives streams."""
        return bool(self.flags & OpenFlag.PRODUCER)

    @property
    def needs_noop(self) -> bool:
        """True if the client must enable NOOPs before it opens a stream."""
        return bool(
            self.flags & OpenFlag.INCLUDE_XATTRS or HelloFeature.COLLECTIONS in self.features
        )


class OutOfOrder(Enum):
    """The client's permission for a first snapshot in key order, which may end with
    SEQNO_ADVANCED.
    """

    NO = "no"
    YES = "yes"
    WITH_SEQNO_ADVANCED = "with SEQNO_ADVANCED"


@dataclass(frozen=True, slots=True)
class DcpOptions:
    """The options of DCP_CONTROL (``controls.py``), except windows and NOOPs."""

    keeps_cursors: bool = False
    """True if low memory never drops the connection's cursors. Only replicas may have this: a slow
    client would fill the memory of all.
    """
    announces_closed_streams: bool = False
    change_streams: bool = False
    """True if streams send all versions, in snapshots whose flags say so."""
    expiry_opcode: bool = False
    forces_compression: bool = False
    marker_v2: bool = False
    """True if markers of disk snapshots have version 2.2."""
    stream_ids: bool = False
    sync_writes: bool = False
    consumer_name: bytes = b""
    out_of_order: OutOfOrder = OutOfOrder.NO

    @property
    def acknowledges(self) -> bool:
        """True if the client is a replica that acknowledges prepares; these need its name.

        All its markers have at least version 2.0, which says how far sync writes have come.
        """
        return self.sync_writes and bool(self.consumer_name)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of a connection for the streams that open from now on."""

    flavour: int
    options: DcpOptions = DcpOptions()
    cursor: str = "stream"
    """Name of the streams' cursors."""
    prepare_extra_bytes: int = 0
    """Flow control charges so much for a prepare beyond its length."""
    key_quota: KeyQuota = field(default_factory=KeyQuota)
    """Limits the keys in memory for key order, of all streams together."""


def flavour_of(client: DcpClient, options: DcpOptions, *, makes_up_metadata: bool = False) -> int:
    """Return the flavour of items on a connection.

    ``makes_up_metadata``: a scan of keys alone yields made-up metadata.
    """
    flavour = Flavour.MADE_UP if makes_up_metadata else Flavour(0)
    for flag, bit in _FLAVOUR_OF_OPEN.items():
        if client.flags & flag:
            flavour |= bit
    for feature, bit in _FLAVOUR_OF_FEATURE.items():
        if feature in client.features:
            flavour |= bit
    if options.expiry_opcode:
        flavour |= Flavour.EXPIRY_OPCODE
    # Replicas get whole documents instead of commits.
    if options.sync_writes and not client.is_internal:
        flavour |= Flavour.COMMITS
    if options.forces_compression:
        flavour |= Flavour.COMPRESSED
    return int(flavour)

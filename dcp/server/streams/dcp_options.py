"""A DCP connection's client as DCP_OPEN tells of it, and the options that it negotiates then.

Both decide the flavour of items: which bytes they have on the connection.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dcp.server.model.connection_name import display_name
from dcp.server.model.versions import Flavour
from dcp.server.streams.stream_settings import OutOfOrder
from dcp.wire.vocabulary import HelloFeature, OpenFlag

ConnectionKey = tuple[int, bytes]
"""A node and the name of a connection to it: clients use one name at all nodes (gocbcore)."""

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
    """A client; ``features`` are those that HELLO granted, ``flags`` those of DCP_OPEN.

    ``is_internal``: it is a node of the cluster, which copies what is there.
    """

    key: ConnectionKey
    flags: int = 0
    features: frozenset[int] = frozenset()
    user: str = ""
    is_internal: bool = False

    @cached_property
    def display_name(self) -> str:
        """The connection's name in statistics and logs."""
        return display_name(self.key[1])

    @property
    def is_producer(self) -> bool:
        """True if the client receives streams (DCP_OPEN as producer)."""
        return bool(self.flags & OpenFlag.PRODUCER)

    @property
    def needs_noop(self) -> bool:
        """True if NOOPs must be enabled before a stream may be opened."""
        return bool(
            self.flags & OpenFlag.INCLUDE_XATTRS or HelloFeature.COLLECTIONS in self.features
        )


@dataclass(frozen=True, slots=True)
class DcpOptions:
    """The settings of DCP_CONTROL (``controls.py``), but for windows and NOOPs.

    ``keeps_cursors``: streams are never sent back to the disk. Nobody but a copy may ask for that,
    as what a client does not read would fill the memory of all.
    """

    keeps_cursors: bool
    announces_closed_streams: bool = False
    change_streams: bool = False
    expiry_opcode: bool = False
    forces_compression: bool = False
    marker_v2: bool = False
    stream_ids: bool = False
    sync_writes: bool = False
    consumer_name: bytes = b""
    out_of_order: OutOfOrder = OutOfOrder.NO

    @property
    def acknowledges(self) -> bool:
        """True if the client is a replica that acknowledges prepares; it must have a name."""
        return self.sync_writes and bool(self.consumer_name)


def flavour_of(client: DcpClient, options: DcpOptions, *, makes_up_metadata: bool = False) -> int:
    """Return which bytes items have on a connection.

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
    if options.sync_writes and not client.is_internal:  # our copies want whole documents
        flavour |= Flavour.COMMITS
    if options.forces_compression:
        flavour |= Flavour.COMPRESSED
    return int(flavour)

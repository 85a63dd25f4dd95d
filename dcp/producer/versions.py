"""One version of a document, and the DCP frame it becomes for each kind of connection.

A frame is kept as two byte strings, everything before the value and the value: the value is stored
once however many connection flavours ask for it, and nothing is encoded twice. The opaque in the
frame is 0; whoever sends it writes the stream's own at offset 12.
"""

from enum import IntFlag
from struct import Struct
from typing import Final, NamedTuple

from dcp.producer.values import system_xattrs_only, without_xattrs, xattrs_only
from dcp.types import U64_MAX
from dcp.wire.snappy import inflate
from dcp.wire.vocabulary import Datatype, Magic, Opcode

NEVER: Final = U64_MAX
"""``replaced_at`` of a version that is still the newest of its key."""
OPAQUE_OFFSET: Final = 12

_HEADER: Final = Struct(">BBHBBHIIQ")
_MUTATION: Final = Struct(">QQIIIHB")
_DELETION: Final = Struct(">QQH")
_DELETION_WITH_TIME: Final = Struct(">QQIB")
_EXPIRATION: Final = Struct(">QQI")
_DEFAULT_COLLECTION: Final = b"\x00"
_CACHE_HINT: Final = 2
"""The ``nru`` byte of a new document (kv_engine ``item.h``, INITIAL_NRU_VALUE)."""
_XATTR: Final = int(Datatype.XATTR)
_SNAPPY: Final = int(Datatype.SNAPPY)


class Flavour(IntFlag):
    """What a connection negotiated that changes the bytes of an item."""

    COLLECTIONS = 0x01
    XATTRS = 0x02
    SNAPPY = 0x04
    DELETE_TIMES = 0x08
    EXPIRY_OPCODE = 0x10
    NO_VALUE = 0x20
    UNDERLYING_DATATYPE = 0x40
    DELETED_USER_XATTRS = 0x80


# Plain ints: an IntFlag operation costs as much as the rest of an encoding.
_COLLECTIONS: Final = int(Flavour.COLLECTIONS)
_NO_VALUE: Final = int(Flavour.NO_VALUE)
_DELETE_TIMES: Final = int(Flavour.DELETE_TIMES)
_RESHAPING: Final = _XATTR | _SNAPPY
_MUTATION_OPCODE: Final = int(Opcode.DCP_MUTATION)
_REQUEST: Final = int(Magic.REQUEST)


class Content(NamedTuple):
    """What a version holds: a document, or with another opcode than MUTATION its tombstone.

    ``value`` and ``datatype`` are as stored, an xattr section included. ``expiry`` and
    ``delete_time`` are in seconds since 1970, 0 is none.
    """

    value: bytes = b""
    datatype: int = 0
    flags: int = 0
    expiry: int = 0
    opcode: int = _MUTATION_OPCODE
    delete_time: int = 0


class Version:
    """What one key held from ``seqno`` on, until ``replaced_at``."""

    __slots__ = (
        "_wire",
        "cas",
        "datatype",
        "delete_time",
        "expiry",
        "flags",
        "key",
        "opcode",
        "replaced_at",
        "rev",
        "seqno",
        "value",
        "vbucket",
    )

    def __init__(
        self, vbucket: int, key: bytes, content: Content, *, seqno: int, rev: int, cas: int
    ) -> None:
        self.vbucket = vbucket
        self.key = key
        self.seqno = seqno
        self.rev = rev
        self.cas = cas
        self.value, self.datatype, self.flags, self.expiry, self.opcode, self.delete_time = content
        self.replaced_at = NEVER
        self._wire: dict[int, tuple[bytes, bytes]] = {}

    @property
    def is_deleted(self) -> bool:
        """Whether the key holds no document from here on."""
        return self.opcode != _MUTATION_OPCODE

    def wire(self, flavour: int) -> tuple[bytes, bytes]:
        """Return the frame for this flavour as (all before the value, value); opaque 0."""
        parts = self._wire.get(flavour)
        if parts is None:
            parts = self._wire[flavour] = self._encode(flavour)
        return parts

    def _encode(self, flavour: int) -> tuple[bytes, bytes]:
        value, datatype = self._value_for(flavour)
        opcode, extras = self._extras_for(flavour)
        key = _DEFAULT_COLLECTION + self.key if flavour & _COLLECTIONS else self.key
        head = _HEADER.pack(
            _REQUEST,
            opcode,
            len(key),
            len(extras),
            datatype,
            self.vbucket,
            len(extras) + len(key) + len(value),
            0,
            self.cas,
        )
        return head + extras + key, value

    def _extras_for(self, flavour: int) -> tuple[int, bytes]:
        seqno, rev = self.seqno, self.rev
        if not self.is_deleted:
            extras = _MUTATION.pack(seqno, rev, self.flags, self.expiry, 0, 0, _CACHE_HINT)
            return _MUTATION_OPCODE, extras
        if not flavour & _DELETE_TIMES:
            return Opcode.DCP_DELETION, _DELETION.pack(seqno, rev, 0)
        if self.opcode == Opcode.DCP_EXPIRATION and flavour & Flavour.EXPIRY_OPCODE:
            return Opcode.DCP_EXPIRATION, _EXPIRATION.pack(seqno, rev, self.delete_time)
        return Opcode.DCP_DELETION, _DELETION_WITH_TIME.pack(seqno, rev, self.delete_time, 0)

    def _value_for(self, flavour: int) -> tuple[bytes, int]:
        """Shape the stored value: inflate, strip xattrs or the body, as the connection wants it."""
        value, datatype = self.value, self.datatype
        if not datatype & _RESHAPING and not flavour & _NO_VALUE:
            return value, datatype
        reshaped = datatype & _XATTR and (
            not flavour & Flavour.XATTRS or flavour & Flavour.NO_VALUE or self.is_deleted
        )
        if datatype & _SNAPPY and (reshaped or not flavour & Flavour.SNAPPY):
            value, datatype = inflate(value), datatype & ~_SNAPPY
        if datatype & _XATTR and not flavour & Flavour.XATTRS:
            value, datatype = without_xattrs(value), datatype & ~_XATTR
        elif datatype & _XATTR and self.is_deleted and not flavour & Flavour.DELETED_USER_XATTRS:
            value = system_xattrs_only(value)
            datatype = datatype if value else 0
        if flavour & Flavour.NO_VALUE:
            value = xattrs_only(value) if datatype & _XATTR else b""
            if not flavour & Flavour.UNDERLYING_DATATYPE:
                datatype &= _XATTR
            else:
                datatype = self.datatype
        return value, datatype

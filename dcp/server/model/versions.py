"""One version of a document, or one event of a vbucket, and the DCP frame for it.

opcode                           meaning
MUTATION, DELETION, EXPIRATION   a document; with a ``prepared_seqno``, a commit
PREPARE, ABORT                   a sync write begun, or given up; plain clients see neither
SYSTEM_EVENT                     a collection or scope came or went
"""

from enum import IntFlag
from functools import cache
from typing import Final, NamedTuple

from dcp.server.model.item_layouts import (
    COMPLETION,
    DELETION,
    DELETION_WITH_TIME,
    EXPIRATION,
    HEADER,
    MUTATION,
    PREPARE,
    SYSTEM_EVENT,
)
from dcp.server.model.values import system_xattrs_only, without_xattrs, xattrs_only
from dcp.wire.leb128 import encode_leb128
from dcp.wire.snappy import deflate, inflate
from dcp.wire.system_event import (
    CollectionBegun,
    CollectionEnded,
    CollectionFlushed,
    ManifestEvent,
    ScopeCreated,
    ScopeDropped,
    encode_system_event,
)
from dcp.wire.vocabulary import Datatype, Magic, Opcode

NO_COLLECTION: Final = -1
"""``collection`` of scope events, which belong to none."""
OVERHEAD_BYTES: Final = 700
"""Approximate memory of a version beside key and value, with the head of one frame."""

_CACHE_HINT: Final = 2
"""The ``nru`` byte of a new document (kv_engine ``item.h``, INITIAL_NRU_VALUE)."""
_XATTR: Final = int(Datatype.XATTR)
_SNAPPY: Final = int(Datatype.SNAPPY)


class Flavour(IntFlag):
    """The negotiated features of a connection that change the bytes of an item."""

    COLLECTIONS = 0x01
    XATTRS = 0x02
    SNAPPY = 0x04
    DELETE_TIMES = 0x08
    EXPIRY_OPCODE = 0x10
    NO_VALUE = 0x20
    UNDERLYING_DATATYPE = 0x40
    DELETED_USER_XATTRS = 0x80
    COMMITS = 0x100
    """Commits go as COMMIT, for streams of sync writes from memory; the disk has the document
    only."""
    COMPRESSED = 0x200
    """Values that Snappy makes smaller are sent compressed."""
    KEYS_ONLY = 0x400
    """Read from disk without values: documents keep the datatype of the value that was not read."""
    MADE_UP = 0x800
    """Documents and tombstones read without values have invented metadata, except key and seqno.

    Servers of 7.6 to 8.0 send these (kv_engine ``dcp/backfill_disk.cc``,
    ``CacheCallback::callback``)."""


# Plain ints, and methods bound once: one IntFlag operation costs as much as the rest of an
# encoding.
_COLLECTIONS: Final = int(Flavour.COLLECTIONS)
_NO_VALUE: Final = int(Flavour.NO_VALUE)
_MADE_UP: Final = int(Flavour.KEYS_ONLY | Flavour.MADE_UP)
_DELETE_TIMES: Final = int(Flavour.DELETE_TIMES)
_COMMITS: Final = int(Flavour.COMMITS)
_RESHAPING: Final = _XATTR | _SNAPPY
_SELDOM: Final = _NO_VALUE | int(Flavour.COMPRESSED)
_MUTATION_OPCODE: Final = int(Opcode.DCP_MUTATION)
_EXPIRATION_OPCODE: Final = int(Opcode.DCP_EXPIRATION)
_EVENT_OPCODE: Final = int(Opcode.DCP_SYSTEM_EVENT)
_pack_head: Final = HEADER.pack
_pack_mutation: Final = MUTATION.pack
_PREPARE_OPCODE: Final = int(Opcode.DCP_PREPARE)
_ABORT_OPCODE: Final = int(Opcode.DCP_ABORT)
_REQUEST: Final = int(Magic.REQUEST)

VersionKey = tuple[int, int, bytes]
"""Namespace, collection or scope, and key: versions with the same one replace each other."""
COMMITTED: Final = 0
"""Namespace of documents and tombstones."""
PREPARED: Final = 1
"""Namespace of prepares and aborts."""
_COLLECTION_EVENT: Final = 2
_SCOPE_EVENT: Final = 3

_prefix = cache(encode_leb128)


class SyncWrite(NamedTuple):
    """A version's part in a sync write."""

    prepared_seqno: int = 0
    """Seqno of the prepare that this commit or abort completes."""
    level: int = 0
    """Durability level of a prepare."""
    deletes: bool = False
    """True if the prepare deletes its document."""


class Content(NamedTuple):
    """The content of a document; an opcode other than MUTATION makes it a tombstone."""

    value: bytes = b""
    """As stored, with the xattr section, if any."""
    datatype: int = 0
    flags: int = 0
    expiry: int = 0
    """Seconds since 1970; 0: none."""
    opcode: int = _MUTATION_OPCODE
    delete_time: int = 0
    """Seconds since 1970; 0: none."""
    sync: SyncWrite | None = None
    """None unless part of a sync write."""


class Version:
    """The state of one key from ``seqno`` on.

    Its fields are those of a DCP frame. A frame is kept as two byte strings, head and value, so
    many flavours share one value.
    """

    __slots__ = (
        "_wire",
        "cas",
        "collection",
        "datatype",
        "delete_time",
        "event",
        "expiry",
        "flags",
        "key",
        "opcode",
        "rev",
        "seqno",
        "stored_key",
        "sync",
        "value",
        "vbucket",
    )

    def __init__(
        self,
        vbucket: int,
        key: bytes,
        content: Content,
        *,
        seqno: int,
        rev: int,
        cas: int,
        collection: int = 0,
    ) -> None:
        self.vbucket = vbucket
        self.collection = collection
        self.key = key
        self.seqno = seqno
        self.rev = rev
        self.cas = cas
        self.value = content.value
        self.datatype = content.datatype
        self.flags = content.flags
        self.expiry = content.expiry
        self.opcode = content.opcode
        self.delete_time = content.delete_time
        self.sync = content.sync
        self.event: ManifestEvent | None = None
        # A prepare must not replace the document that is still committed under its key.
        namespace = COMMITTED if content.opcode <= _EXPIRATION_OPCODE else PREPARED
        self.stored_key: VersionKey = (namespace, collection, key)
        """The key of which a disk keeps only the newest item; collection events have one, too."""
        self._wire: dict[int, tuple[bytes, bytes]] = {}

    @classmethod
    def of_event(cls, vbucket: int, event: ManifestEvent, *, seqno: int) -> "Version":
        message = encode_system_event(event, seqno)
        content = Content(message.value, opcode=_EVENT_OPCODE)
        collection = getattr(event, "collection_id", NO_COLLECTION)
        found = cls(vbucket, message.key, content, seqno=seqno, rev=1, cas=0, collection=collection)
        found.event = event
        if isinstance(event, ScopeCreated | ScopeDropped):
            found.stored_key = _SCOPE_EVENT, event.scope_id, b""
        else:
            found.stored_key = _COLLECTION_EVENT, collection, b""
        return found

    @property
    def is_mutation(self) -> bool:
        """True if the key holds a document from here on."""
        return self.opcode == _MUTATION_OPCODE

    @property
    def is_document(self) -> bool:
        return self.opcode <= _EXPIRATION_OPCODE

    @property
    def is_deleted(self) -> bool:
        return _MUTATION_OPCODE < self.opcode <= _EXPIRATION_OPCODE

    @property
    def is_visible(self) -> bool:
        """True if clients without sync writes see it."""
        return self.opcode not in (_PREPARE_OPCODE, _ABORT_OPCODE)

    @property
    def emptied_collection(self) -> int | None:
        """The collection whose older items all vanish here: dropped, flushed or new."""
        event = self.event
        if event is not None and isinstance(
            event, CollectionBegun | CollectionEnded | CollectionFlushed
        ):
            return event.collection_id
        return None

    @property
    def dedup_key(self) -> VersionKey | None:
        """The key of which a checkpoint keeps only the newest item; None for system events.

        Prepares and aborts have keys of their own, apart from documents.
        """
        return None if self.event is not None else self.stored_key

    @property
    def is_deduplicated(self) -> bool:
        """True if a checkpoint may replace it, or replace another by it; False for sync writes."""
        # A client must not get a prepare without its commit, or an abort without its prepare
        # (kv_engine ``engines/ep/src/checkpoint.cc``, ``Checkpoint::canDedup``).
        return self.sync is None

    @property
    def body(self) -> bytes:
        """The document as its readers see it: inflated, and without xattrs."""
        value = inflate(self.value) if self.datatype & _SNAPPY else self.value
        return without_xattrs(value) if self.datatype & _XATTR else value

    @property
    def size_bytes(self) -> int:
        return len(self.value) + len(self.key) + OVERHEAD_BYTES

    def wire(self, flavour: int) -> tuple[bytes, bytes]:
        """Return the frame for a flavour in two parts: head and value.

        The opaque is 0; the sender patches in the stream's.
        """
        parts = self._wire.get(flavour)
        if parts is None:
            parts = self._encode(flavour)
            # Another value than the stored one is not kept: ``size_bytes`` does not count it, and
            # inflated it can be many times as large.
            if parts[1] is self.value or not parts[1]:
                self._wire[flavour] = parts
        return parts

    def _encode(self, flavour: int) -> tuple[bytes, bytes]:
        if self.event is not None:
            message = encode_system_event(self.event, self.seqno)
            extras = SYSTEM_EVENT.pack(self.seqno, message.event, message.version)
            return self._head(_EVENT_OPCODE, extras, self.key, self.value), self.value
        if flavour & _MADE_UP == _MADE_UP and self.is_document:
            return self._made_up()._encode(flavour & ~_MADE_UP)
        key = _prefix(self.collection) + self.key if flavour & _COLLECTIONS else self.key
        sync = self.sync
        if (
            sync is not None
            and sync.prepared_seqno
            and (flavour & _COMMITS or not self.is_document)
        ):
            opcode = _ABORT_OPCODE if self.opcode == _ABORT_OPCODE else int(Opcode.DCP_COMMIT)
            extras = COMPLETION.pack(sync.prepared_seqno, self.seqno)
            return self._head(opcode, extras, key, b""), b""
        value, datatype = self._value_for(flavour)
        opcode, extras = self._extras_for(flavour)
        return self._head(opcode, extras, key, value, datatype, self.cas), value

    def _made_up(self) -> "Version":
        """Return the document that such a server invents for this key and seqno."""
        return Version(
            self.vbucket,
            self.key,
            Content(),
            seqno=self.seqno,
            rev=1,
            cas=0,
            collection=self.collection,
        )

    def _head(
        self, opcode: int, extras: bytes, key: bytes, value: bytes, datatype: int = 0, cas: int = 0
    ) -> bytes:
        header = _pack_head(
            _REQUEST,
            opcode,
            len(key),
            len(extras),
            datatype,
            self.vbucket,
            len(extras) + len(key) + len(value),
            0,
            cas,
        )
        return header + extras + key

    def _extras_for(self, flavour: int) -> tuple[int, bytes]:
        seqno, rev = self.seqno, self.rev
        if self.opcode == _MUTATION_OPCODE:
            extras = _pack_mutation(seqno, rev, self.flags, self.expiry, 0, 0, _CACHE_HINT)
            return _MUTATION_OPCODE, extras
        if self.opcode == _PREPARE_OPCODE:
            sync = self.sync or SyncWrite()
            return _PREPARE_OPCODE, PREPARE.pack(
                seqno, rev, self.flags, self.expiry, 0, 0, sync.deletes, sync.level
            )
        if not flavour & _DELETE_TIMES:
            return Opcode.DCP_DELETION, DELETION.pack(seqno, rev, 0)
        if self.opcode == _EXPIRATION_OPCODE and flavour & Flavour.EXPIRY_OPCODE:
            return _EXPIRATION_OPCODE, EXPIRATION.pack(seqno, rev, self.delete_time)
        return Opcode.DCP_DELETION, DELETION_WITH_TIME.pack(seqno, rev, self.delete_time, 0)

    def _value_for(self, flavour: int) -> tuple[bytes, int]:
        """Shape the stored value for the connection: inflate, strip xattrs or the body."""
        value, datatype = self.value, self.datatype
        if not datatype & _RESHAPING and not flavour & _SELDOM:
            return value, datatype
        # A deletion keeps system xattrs; its user xattrs go to clients that asked for them.
        lacks_xattrs = self.is_deleted and not flavour & Flavour.DELETED_USER_XATTRS
        reshaped = datatype & _XATTR and (
            not flavour & Flavour.XATTRS or flavour & Flavour.NO_VALUE or lacks_xattrs
        )
        # Only an inflated value can be taken apart.
        if datatype & _SNAPPY and (reshaped or not flavour & Flavour.SNAPPY):
            value, datatype = inflate(value), datatype & ~_SNAPPY
        if datatype & _XATTR and not flavour & Flavour.XATTRS:
            value, datatype = without_xattrs(value), datatype & ~_XATTR
        elif datatype & _XATTR and self.is_deleted and not flavour & Flavour.DELETED_USER_XATTRS:
            value = system_xattrs_only(value)
            datatype = datatype if value else 0
        if flavour & Flavour.NO_VALUE:
            value = xattrs_only(value) if datatype & _XATTR else b""
            keeps = flavour & Flavour.UNDERLYING_DATATYPE
            keeps |= flavour & Flavour.KEYS_ONLY and not self.is_deleted
            datatype = self.datatype if keeps else datatype & _XATTR
        if flavour & Flavour.COMPRESSED and not datatype & _SNAPPY:
            block = deflate(value)
            if len(block) < len(value):
                return block, datatype | _SNAPPY
        return value, datatype

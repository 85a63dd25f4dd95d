"""System events of DCP_SYSTEM_EVENT: collections and scopes appear and disappear.

Layouts of versions 0 and 1: kv_engine ``engines/ep/src/collections/system_event_types.h``. The
drawing in kv_engine's ``docs/dcp/documentation/commands/system_event.md`` swaps scope and
collection id. A producer sends version 2 (FlatBuffers) only to consumers that ask for it.
"""

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, get_args

from dcp.errors import FrameError
from dcp.types import U32_MAX, require_unsigned
from dcp.wire.messages import SystemEvent
from dcp.wire.vocabulary import SystemEventKind

_COLLECTION = Struct(">QII")
_COLLECTION_WITH_TTL = Struct(">QIII")
# The id of the collection in FLUSH_COLLECTION, of the scope in CREATE_SCOPE and DROP_SCOPE.
_ONE_ID = Struct(">QI")


@dataclass(frozen=True, slots=True)
class ManifestEvent:
    """A change of a collection or scope."""

    kind: ClassVar[SystemEventKind]
    manifest_uid: int
    """The manifest of the last complete change: of several events of a change only the last has its
    uid."""

    def __post_init__(self) -> None:
        require_unsigned("manifest uid", self.manifest_uid)
        for name in ("scope_id", "collection_id", "max_ttl_seconds"):
            value = getattr(self, name, None)
            if value is not None:
                require_unsigned(name, value, U32_MAX)


@dataclass(frozen=True, slots=True)
class CollectionBegun(ManifestEvent):
    """A collection was created, or flushed if its id exists: then its older items are gone."""

    kind = SystemEventKind.BEGIN_COLLECTION
    scope_id: int
    collection_id: int
    name: bytes
    max_ttl_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class CollectionEnded(ManifestEvent):
    """A collection was dropped, with all its items."""

    kind = SystemEventKind.END_COLLECTION
    scope_id: int
    collection_id: int


@dataclass(frozen=True, slots=True)
class CollectionFlushed(ManifestEvent):
    """All items of a collection are gone; newer servers send ``CollectionBegun`` instead."""

    kind = SystemEventKind.FLUSH_COLLECTION
    collection_id: int


EndOfDocuments = CollectionBegun | CollectionEnded | CollectionFlushed
"""After such an event, its vbucket has no document of the collection with a lower seqno.

A flush arrives as the begin of an existing collection, so every begin counts. A new collection has
no older documents.
"""

ENDS_DOCUMENTS: Final = frozenset(each.kind for each in get_args(EndOfDocuments))
"""The kinds of `EndOfDocuments`."""


@dataclass(frozen=True, slots=True)
class ScopeCreated(ManifestEvent):
    kind = SystemEventKind.CREATE_SCOPE
    scope_id: int
    name: bytes


@dataclass(frozen=True, slots=True)
class ScopeDropped(ManifestEvent):
    """A scope was dropped; the ends of its collections precede this event."""

    kind = SystemEventKind.DROP_SCOPE
    scope_id: int


_LAYOUTS: Final[dict[tuple[int, int], Struct]] = {
    (SystemEventKind.BEGIN_COLLECTION, 0): _COLLECTION,
    (SystemEventKind.BEGIN_COLLECTION, 1): _COLLECTION_WITH_TTL,
    (SystemEventKind.END_COLLECTION, 0): _COLLECTION,
    (SystemEventKind.FLUSH_COLLECTION, 0): _ONE_ID,
    (SystemEventKind.CREATE_SCOPE, 0): _ONE_ID,
    (SystemEventKind.DROP_SCOPE, 0): _ONE_ID,
}


def decode_system_event(event: SystemEvent) -> ManifestEvent | None:
    """Return the event; None for a kind or version that this code does not know.

    Raises:
        FrameError: the value's length does not fit kind and version.
    """
    layout = _LAYOUTS.get((event.event, event.version))
    if layout is None:
        return None
    if len(event.value) != layout.size:
        raise FrameError(
            f"system event {event.event} v{event.version} at seqno {event.by_seqno}: "
            f"found a value of {len(event.value)} bytes, expected {layout.size}"
        )
    uid, *ids = layout.unpack(event.value)
    match event.event:
        case SystemEventKind.BEGIN_COLLECTION:
            # The event's key is the name of the collection.
            scope_id, collection_id, *max_ttl = ids
            return CollectionBegun(uid, scope_id, collection_id, event.key, *max_ttl)
        case SystemEventKind.END_COLLECTION:
            return CollectionEnded(uid, *ids)
        case SystemEventKind.FLUSH_COLLECTION:
            return CollectionFlushed(uid, *ids)
        case SystemEventKind.CREATE_SCOPE:
            return ScopeCreated(uid, ids[0], event.key)
    return ScopeDropped(uid, *ids)


def encode_system_event(event: ManifestEvent, by_seqno: int) -> SystemEvent:
    """Return the message of ``event``; the inverse of ``decode_system_event``.

    Raises:
        TypeError: not one of this file's events.
    """
    uid, version, name = event.manifest_uid, 0, b""
    match event:
        case CollectionBegun(max_ttl_seconds=None):
            name = event.name
            value = _COLLECTION.pack(uid, event.scope_id, event.collection_id)
        case CollectionBegun(max_ttl_seconds=max_ttl):
            name, version = event.name, 1
            value = _COLLECTION_WITH_TTL.pack(uid, event.scope_id, event.collection_id, max_ttl)
        case CollectionEnded():
            value = _COLLECTION.pack(uid, event.scope_id, event.collection_id)
        case CollectionFlushed():
            value = _ONE_ID.pack(uid, event.collection_id)
        case ScopeCreated():
            name = event.name
            value = _ONE_ID.pack(uid, event.scope_id)
        case ScopeDropped():
            value = _ONE_ID.pack(uid, event.scope_id)
        case _:
            raise TypeError(f"encode system event: found {type(event).__name__}")
    return SystemEvent(by_seqno, int(event.kind), version, name, value)

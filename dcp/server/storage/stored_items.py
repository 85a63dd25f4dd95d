"""Items in the disk's format: the frames of a connection that has all features.

A backfill sends them unchanged to such a connection. For any other it decodes the frames to
versions, and encodes these again (``filtered_frames.py``).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from dcp.server.model.item_layouts import (
    COMPLETION,
    EXPIRATION,
    HEADER,
    MUTATION,
    PREPARE,
    SYSTEM_EVENT,
    VBUCKET_AT,
)
from dcp.server.model.versions import Content, Flavour, SyncWrite, Version
from dcp.server.storage.disk_scan import Frames
from dcp.server.storage.disk_store import StoredItem
from dcp.wire.leb128 import decode_leb128
from dcp.wire.messages import SystemEvent
from dcp.wire.system_event import decode_system_event
from dcp.wire.vocabulary import HEADER_BYTES, Opcode

STORED_FLAVOUR: Final = int(
    Flavour.COLLECTIONS
    | Flavour.XATTRS
    | Flavour.SNAPPY
    | Flavour.DELETE_TIMES
    | Flavour.EXPIRY_OPCODE
    | Flavour.DELETED_USER_XATTRS
)
"""Features of the stored frames: nothing is left out or decompressed."""
_unpack_head: Final = HEADER.unpack_from
_unpack_mutation: Final = MUTATION.unpack_from


def stored_item(version: Version, replaces: Sequence[int], completes: int) -> StoredItem:
    """Return a version as an item for the disk; ``replaces`` are seqnos on disk."""
    head, value = version.wire(STORED_FLAVOUR)
    return StoredItem(
        version.seqno, head, value, replaces, completes, version.is_deleted, version.delete_time
    )


def version_of(frame: bytes | memoryview) -> Version:
    _, opcode, key_bytes, extras_bytes, datatype, vbucket, body_bytes, _, cas = _unpack_head(frame)
    key_at = HEADER_BYTES + extras_bytes
    value_at = key_at + key_bytes
    wire_key = bytes(frame[key_at:value_at])
    value = bytes(frame[value_at : HEADER_BYTES + body_bytes])
    if opcode == Opcode.DCP_SYSTEM_EVENT:
        return _event_of(frame, wire_key, value)
    collection, prefix_bytes = decode_leb128(wire_key)
    if opcode == Opcode.DCP_MUTATION:
        seqno, rev, flags, expiry, _, _, _ = _unpack_mutation(frame, HEADER_BYTES)
        content = Content(value, datatype, flags, expiry)
    elif opcode == Opcode.DCP_PREPARE:
        seqno, rev, flags, expiry, _, _, deletes, level = PREPARE.unpack_from(frame, HEADER_BYTES)
        sync = SyncWrite(0, level, bool(deletes))
        content = Content(value, datatype, flags, expiry, opcode, sync=sync)
    elif opcode == Opcode.DCP_ABORT:
        prepared, seqno = COMPLETION.unpack_from(frame, HEADER_BYTES)
        # DCP_ABORT has no revision on the wire.
        rev, content = 0, Content(opcode=opcode, sync=SyncWrite(prepared))
    else:
        seqno, rev, delete_time = EXPIRATION.unpack_from(frame, HEADER_BYTES)
        content = Content(value, datatype, opcode=opcode, delete_time=delete_time)
    key = wire_key[prefix_bytes:]
    return Version(vbucket, key, content, seqno=seqno, rev=rev, cas=cas, collection=collection)


def _event_of(frame: bytes | memoryview, key: bytes, value: bytes) -> Version:
    vbucket = int.from_bytes(frame[VBUCKET_AT : VBUCKET_AT + 2])
    seqno, event, version = SYSTEM_EVENT.unpack_from(frame, HEADER_BYTES)
    found = decode_system_event(SystemEvent(seqno, event, version, key, value))
    if found is None:
        raise AssertionError(f"stored system event at seqno {seqno}: found unknown event {event}")
    return Version.of_event(vbucket, found, seqno=seqno)


def versions_of(frames: Frames) -> list[Version]:
    whole = memoryview(frames.data)
    return [version_of(whole[start:end]) for start, end in pairwise(frames.ends.tolist())]

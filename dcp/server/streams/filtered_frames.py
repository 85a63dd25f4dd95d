"""Filters stored frames for one stream and encodes them for its connection, in bulk.

NumPy reads a few header bytes of all frames at once: the collection, and whether the client gets
the frame exactly as stored. Such frames are copied in long pieces. Only the others are decoded to
versions and encoded again. A client without Collections gets keys without collection ids.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dcp.server.model.item_layouts import (
    BODY_LENGTH_AT,
    DATATYPE_AT,
    EXTRAS_LENGTH_AT,
    KEY_LENGTH_AT,
    OPCODE_AT,
)
from dcp.server.model.stream_filter import StreamFilter
from dcp.server.model.versions import Flavour
from dcp.server.storage.disk_file import Data
from dcp.server.storage.disk_scan import Frames
from dcp.server.storage.stored_items import version_of
from dcp.server.streams.chunks import Chunk, chunk_of
from dcp.wire.vocabulary import HEADER_BYTES, Datatype, Opcode

Ends = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_MORE_BYTES: Final = 0x80
"""Bit of a LEB128 byte: another byte follows."""
_ID_BITS: Final = range(7, 35, 7)
"""Shifts of the further LEB128 bytes of a u32."""
_SYNC_WRITES: Final = (Opcode.DCP_PREPARE, Opcode.DCP_ABORT)
_DELETIONS: Final = (Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)
_FEW: Final = 8
"""Up to so many numbers single comparisons are faster than ``np.isin``."""


class FilteredKey(NamedTuple):
    """An item that passes the stream's filter; sorts events first, then documents by key."""

    is_document: bool
    key: bytes
    seqno: int


class _Rows(NamedTuple):
    """Header fields of consecutive frames, in columns."""

    opcodes: npt.NDArray[np.uint8]
    datatypes: npt.NDArray[np.uint8]
    collections: Ends
    key_starts: Ends
    """Offset of the key, behind its collection id."""
    prefix_bytes: Ends
    """Length of the collection id."""


def holds_events(frames: Frames) -> bool:
    """Return True if there are system events, which may change the stream's filter."""
    cells = np.frombuffer(frames.data, np.uint8)
    return bool((cells[frames.ends[:-1] + OPCODE_AT] == Opcode.DCP_SYSTEM_EVENT).any())


def filtered_chunk(frames: Frames, flavour: int, wanted: StreamFilter) -> Chunk | None:
    """Return the frames that pass the filter; None if none does. There must be no events."""
    rows = _rows_of(frames.data, frames.ends)
    passes = _passes(rows, wanted)
    if not passes.any():
        return None
    as_stored = _goes_as_stored(rows, flavour)
    # No frame goes as stored, so decode those that pass and skip the cutting.
    if not (passes & as_stored).any():
        whole, bounds = memoryview(frames.data), list(pairwise(frames.ends.tolist()))
        passed = [bounds[row] for row in np.flatnonzero(passes).tolist()]
        return chunk_of([version_of(whole[start:end]) for start, end in passed], flavour)
    data, ends, seqnos = frames.data, frames.ends, frames.seqnos
    if not (passes & as_stored).all():
        data, ends = _cut_out(frames, passes, as_stored, flavour)
        seqnos = seqnos[passes]
    if not flavour & Flavour.COLLECTIONS:
        data, ends = without_collection(data, ends)
    return Chunk(ends, seqnos, memoryview(data), [])


def filtered_keys(frames: Frames, wanted: StreamFilter) -> list[FilteredKey]:
    """Return the keys of the items that pass the filter. There must be no events."""
    rows, whole = _rows_of(frames.data, frames.ends), memoryview(frames.data)
    passes = _passes(rows, wanted)
    key_bytes = _number_at(
        np.frombuffer(frames.data, np.uint8), frames.ends[:-1] + KEY_LENGTH_AT, ">u2"
    )
    starts, stops = rows.key_starts, rows.key_starts - rows.prefix_bytes + key_bytes
    columns = starts[passes].tolist(), stops[passes].tolist(), frames.seqnos[passes].tolist()
    return [
        FilteredKey(True, bytes(whole[start:stop]), seqno)
        for start, stop, seqno in zip(*columns, strict=True)
    ]


def _rows_of(data: Data, ends: Ends) -> _Rows:
    cells, starts = np.frombuffer(data, np.uint8), ends[:-1]
    id_starts = starts + HEADER_BYTES + cells[starts + EXTRAS_LENGTH_AT]
    collections, prefix_bytes = _ids_at(cells, id_starts)
    return _Rows(
        cells[starts + OPCODE_AT],
        cells[starts + DATATYPE_AT],
        collections,
        id_starts + prefix_bytes,
        prefix_bytes,
    )


def _ids_at(cells: npt.NDArray[np.uint8], starts: Ends) -> tuple[Ends, Ends]:
    """Return the LEB128 numbers at these offsets, and their lengths in bytes."""
    ids, sizes = cells[starts].astype(np.int64), np.ones(len(starts), np.int64)
    longer = np.flatnonzero(ids >= _MORE_BYTES)
    ids[longer] -= _MORE_BYTES
    for bits in _ID_BITS:
        if not len(longer):
            break
        more = cells[starts[longer] + sizes[longer]].astype(np.int64)
        sizes[longer] += 1
        ids[longer] |= (more & ~_MORE_BYTES) << bits
        longer = longer[more >= _MORE_BYTES]
    return ids, sizes


def _passes(rows: _Rows, wanted: StreamFilter) -> Mask:
    """Return a mask of the items that pass: ``StreamFilter.passes`` for all but events."""
    if wanted.is_pass_through:
        passes = np.ones(len(rows.opcodes), bool)
    else:
        passes = _is_any(rows.collections, list(wanted.collections))
    if not wanted.sync_writes:
        passes &= ~_is_any(rows.opcodes, _SYNC_WRITES)
    return passes


def _is_any(column: npt.NDArray[np.integer], numbers: Sequence[int]) -> Mask:
    if len(numbers) > _FEW:
        return np.isin(column, numbers)
    found = np.zeros(len(column), bool)
    for number in numbers:
        found |= column == number
    return found


def _goes_as_stored(rows: _Rows, flavour: int) -> Mask:
    """Return a mask of the frames that equal ``Version.wire``, apart from key prefixes."""
    if flavour & (Flavour.NO_VALUE | Flavour.COMPRESSED):
        # Every frame differs: its value is dropped or compressed.
        return np.zeros(len(rows.opcodes), bool)
    reshaped = 0 if flavour & Flavour.SNAPPY else int(Datatype.SNAPPY)
    reshaped |= 0 if flavour & Flavour.XATTRS else int(Datatype.XATTR)
    goes: Mask = rows.datatypes & np.uint8(reshaped) == 0
    if not flavour & Flavour.DELETE_TIMES:
        # Deletions without delete times have other extras.
        return goes & ~_is_any(rows.opcodes, _DELETIONS)
    if not flavour & Flavour.EXPIRY_OPCODE:
        # Such a client gets expirations as deletions.
        goes &= rows.opcodes != Opcode.DCP_EXPIRATION
    if not flavour & Flavour.DELETED_USER_XATTRS:
        has_xattrs = rows.datatypes & np.uint8(Datatype.XATTR) > 0
        goes &= ~(has_xattrs & _is_any(rows.opcodes, _DELETIONS))
    return goes


def _cut_out(frames: Frames, passes: Mask, as_stored: Mask, flavour: int) -> tuple[Data, Ends]:
    """Return the passing frames and their ends; re-encode those that differ for the flavour."""
    starts, stops = frames.ends[:-1][passes], frames.ends[1:][passes]
    sizes, is_whole = stops - starts, as_stored[passes]
    apart = (starts[1:] != stops[:-1]) | ~is_whole[1:] | ~is_whole[:-1]
    firsts = np.flatnonzero(np.concatenate(([True], apart)))
    lasts = np.concatenate((firsts[1:], [len(starts)])) - 1
    # Slices of bytes are faster than slices of a memoryview.
    whole = bytes(frames.data)
    parts = [
        whole[start:stop]
        for start, stop in zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True)
    ]
    for index in np.flatnonzero(~is_whole[firsts]).tolist():
        parts[index] = b"".join(version_of(parts[index]).wire(flavour | Flavour.COLLECTIONS))
        sizes[firsts[index]] = len(parts[index])
    return b"".join(parts), _ends_of(sizes)


def without_collection(data: Data, ends: Ends) -> tuple[bytearray, Ends]:
    rows = _rows_of(data, ends)
    begins = [0, *rows.key_starts.tolist()]
    stops = [*(rows.key_starts - rows.prefix_bytes).tolist(), len(data)]
    # Slices of bytes are faster than slices of a memoryview.
    whole = bytes(data)
    framed = bytearray().join(
        [whole[begin:stop] for begin, stop in zip(begins, stops, strict=True)]
    )
    fresh_ends = _ends_of(np.diff(ends) - rows.prefix_bytes)
    cells, starts = np.frombuffer(framed, np.uint8), fresh_ends[:-1]
    key_bytes = _number_at(cells, starts + KEY_LENGTH_AT, ">u2") - rows.prefix_bytes
    _put_number(cells, starts + KEY_LENGTH_AT, key_bytes, ">u2")
    _put_number(cells, starts + BODY_LENGTH_AT, np.diff(fresh_ends) - HEADER_BYTES, ">u4")
    return framed, fresh_ends


def _ends_of(sizes: Ends) -> Ends:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _number_at(cells: npt.NDArray[np.uint8], starts: Ends, kind: str) -> Ends:
    """Return the numbers at these offsets; ``kind`` is byte order and width, as ">u2"."""
    found: Ends = (
        cells[starts[:, None] + np.arange(int(kind[-1]))].view(kind)[:, 0].astype(np.int64)
    )
    return found


def _put_number(cells: npt.NDArray[np.uint8], starts: Ends, numbers: Ends, kind: str) -> None:
    width = int(kind[-1])
    cells[starts[:, None] + np.arange(width)] = (
        numbers.astype(kind).view(np.uint8).reshape(-1, width)
    )

"""Decodes mutations, deletions and expirations into columns, without an object per field.

Tests compare the result with ``codec.py``. Layouts: kv_engine
``docs/dcp/documentation/commands/{mutation,deletion,expiration}.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcp.errors import FrameError
from dcp.wire.binary_column import picked, segments
from dcp.wire.frame_info import stream_id_of
from dcp.wire.framing import FrameBlock, gather
from dcp.wire.vocabulary import (
    HEADER_BYTES,
    MAX_KEY_BYTES,
    MAX_KEY_BYTES_IN_COLLECTIONS,
    Magic,
    Opcode,
)

Column = NDArray[Any]
Rows = NDArray[np.int64]

DATA_OPCODES: Final = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)
NO_STREAM_ID: Final = -1

_MUTATION: Final = int(Opcode.DCP_MUTATION)
_NORMAL_MAGIC: Final = int(Magic.REQUEST)
_STREAM_MAGIC: Final = int(Magic.ALT_REQUEST)

_EXTRAS_LENGTHS: Final = {
    int(Opcode.DCP_MUTATION): (31,),
    int(Opcode.DCP_DELETION): (18, 21),
    int(Opcode.DCP_EXPIRATION): (20,),
}
# Indexed by opcode and length, so that one look-up checks all rows.
_LEGAL_EXTRAS: Final = np.zeros((256, 256), np.bool_)
for _opcode, _lengths in _EXTRAS_LENGTHS.items():
    _LEGAL_EXTRAS[_opcode, list(_lengths)] = True

_SEQNOS: Final = np.dtype([("seqno", ">u8"), ("rev", ">u8")])
_MUTATION_REST: Final = np.dtype([("flags", ">u4"), ("expiry", ">u4"), ("lock_time", ">u4")])
_DELETE_TIME: Final = np.dtype([("delete_time", ">u4")])
_STREAM_ID_INFO: Final = np.dtype([("head", "u1"), ("stream_id", ">u2")])
_STREAM_ID_HEAD: Final = 0x22
"""Frame info 2 of 2 bytes (kv_engine ``include/mcbp/codec/frameinfo.h``)."""

# Arrow BINARY has offsets of 32 bits.
_MAX_SEGMENTED_BYTES: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class DataColumns:
    """One row per mutation, deletion or expiration, in wire order."""

    opcode: NDArray[np.uint8]
    vbucket: NDArray[np.uint16]
    opaque: NDArray[np.uint32]
    cas: NDArray[np.uint64]
    seqno: NDArray[np.uint64]
    rev: NDArray[np.uint64]
    flags: NDArray[np.uint32]
    """0 in deletions and expirations, as are ``expiry`` and ``lock_time``."""
    expiry: NDArray[np.uint32]
    lock_time: NDArray[np.uint32]
    delete_time: NDArray[np.uint32]
    """Seconds since 1970; 0 in mutations and in deletions v1."""
    datatype: NDArray[np.uint8]
    """As sent; ``documents.py`` decodes ``value`` by it."""
    collection_id: NDArray[np.uint32]
    stream_id: NDArray[np.int32]
    """``NO_STREAM_ID`` if the message has none."""
    frame_bytes: NDArray[np.uint32]
    """Length of the whole frame, which flow control charges."""
    key: pa.BinaryArray
    """Without its collection prefix."""
    value: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.opcode)

    def take(self, rows: Rows) -> "DataColumns":
        """Return the rows of these indices, in their order; copies key and value."""
        indices = pa.array(rows, pa.int64())
        return DataColumns(
            *(
                column.take(indices) if isinstance(column, pa.Array) else column[rows]
                for column in self._columns()
            )
        )

    def slice(self, start: int, stop: int) -> "DataColumns":
        return DataColumns(*(column[start:stop] for column in self._columns()))

    @classmethod
    def joined(cls, parts: Sequence["DataColumns"]) -> "DataColumns":
        """Return the rows of all parts, at least one, in their order; a single part itself."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            *(
                pa.concat_arrays(column)
                if isinstance(column[0], pa.Array)
                else np.concatenate(column)
                for column in zip(*(part._columns() for part in parts), strict=True)
            )
        )

    def _columns(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


def decode_columns(block: FrameBlock, rows: Rows, *, collections: bool) -> DataColumns:
    """Decode the frames ``rows`` (ascending indices) of ``block``, which must be data messages.

    ``collections`` says that HELLO granted Collections: keys then begin with a collection id.
    Otherwise all rows have collection 0.

    Raises:
        FrameError: a frame that is no data message, or has extras of a wrong length; a key that
            is empty, too long, or begins with a malformed collection id.
    """
    rows = np.asarray(rows, np.int64)
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(block) or (np.diff(rows) <= 0).any()):
        raise ValueError(f"rows: expected ascending indices into a block of {len(block)} frames")
    if len(block.buffer) > _MAX_SEGMENTED_BYTES:
        raise ValueError(f"block: found {len(block.buffer)} bytes, expected less than 2 GiB")
    decoding = _Decoding(block, rows)
    if collections:
        collection_id, prefix_bytes = decoding.collection_ids()
    else:
        collection_id, prefix_bytes = np.zeros(len(rows), np.uint32), np.zeros(len(rows), np.int64)
    decoding.check_key_lengths(collection_id, prefix_bytes)
    key, value = decoding.keys_and_values(prefix_bytes)
    return DataColumns(
        **decoding.fixed_fields(),
        collection_id=collection_id,
        stream_id=decoding.stream_ids(),
        key=key,
        value=value,
    )


class _Decoding:
    """The positions of the parts of some frames, and the columns read from there."""

    def __init__(self, block: FrameBlock, rows: Rows) -> None:
        self._block = block
        self._rows = rows
        self._starts = block.offsets[rows]
        self._ends = block.offsets[rows + 1]
        self._octets = np.frombuffer(block.buffer, np.uint8)
        self._header = block.headers if len(rows) == len(block) else block.headers[rows]
        self._check_kinds()
        self._alternative = np.flatnonzero(self._header["magic"] == _STREAM_MAGIC)
        key_bytes = self._header["key_length"].astype(np.int64)
        framing_bytes = np.zeros(len(rows), np.int64)
        if len(self._alternative):
            # In alternative framing the two bytes hold two lengths.
            framing_bytes[self._alternative] = key_bytes[self._alternative] >> 8
            key_bytes[self._alternative] &= 0xFF
        self._framing_bytes = framing_bytes
        self._extras_at = self._starts + HEADER_BYTES + framing_bytes
        self._key_at = self._extras_at + self._header["extras_length"]
        self._value_at = self._key_at + key_bytes
        outside = self._value_at > self._ends
        if outside.any():
            self._fail(outside, "parts that are longer than the frame")

    def fixed_fields(self) -> dict[str, Column]:
        header, rows = self._header, len(self._rows)
        seqnos = self._gather(self._extras_at, _SEQNOS)
        rest = np.zeros(rows, _MUTATION_REST)
        delete_time = np.zeros(rows, np.uint32)
        is_mutation = header["opcode"] == _MUTATION
        if is_mutation.all():
            rest = self._gather(self._extras_at + 16, _MUTATION_REST)
        else:
            rest[is_mutation] = self._gather(self._extras_at[is_mutation] + 16, _MUTATION_REST)
            # Deletions v1 (18 bytes of extras) have no delete time.
            timed = ~is_mutation & (header["extras_length"] >= 20)
            times = self._gather(self._extras_at[timed] + 16, _DELETE_TIME)
            delete_time[timed] = times["delete_time"]
        return {
            # A view would keep the array of all headers.
            "opcode": header["opcode"].copy(),
            "vbucket": header["vbucket_or_status"].astype(np.uint16),
            "opaque": header["opaque"].astype(np.uint32),
            "cas": header["cas"].astype(np.uint64),
            "seqno": seqnos["seqno"].astype(np.uint64),
            "rev": seqnos["rev"].astype(np.uint64),
            "flags": rest["flags"].astype(np.uint32),
            "expiry": rest["expiry"].astype(np.uint32),
            "lock_time": rest["lock_time"].astype(np.uint32),
            "delete_time": delete_time,
            "datatype": header["datatype"].copy(),
            "frame_bytes": (self._ends - self._starts).astype(np.uint32),
        }

    def stream_ids(self) -> NDArray[np.int32]:
        ids = np.full(len(self._rows), NO_STREAM_ID, np.int32)
        framed = self._alternative[self._framing_bytes[self._alternative] > 0]
        if not len(framed):
            return ids
        # Nearly all framing extras are the one frame info ``22 hi lo``; the rest take the slow way.
        usual = framed[self._framing_bytes[framed] == _STREAM_ID_INFO.itemsize]
        infos = self._gather(self._starts[usual] + HEADER_BYTES, _STREAM_ID_INFO)
        alone = infos["head"] == _STREAM_ID_HEAD
        ids[usual[alone]] = infos["stream_id"][alone]
        for row in np.setdiff1d(framed, usual[alone]).tolist():
            framing = self._octets[self._starts[row] + HEADER_BYTES : self._extras_at[row]]
            try:
                found = stream_id_of(framing.tobytes())
            except FrameError as error:
                self._fail_at(row, str(error))
            if found is not None:
                ids[row] = found
        return ids

    def collection_ids(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the collection ids that keys begin with, and the length of each in bytes."""
        empty = self._value_at == self._key_at
        if empty.any():
            self._fail_key(empty, "an empty key where a collection id must be")
        first = self._octets[self._key_at]
        ids = (first & 0x7F).astype(np.uint64)
        lengths = np.ones(len(self._rows), np.int64)
        open_rows = np.flatnonzero(first & 0x80)
        # Each turn reads one more byte of the ids that have one. A byte has 7 bits, so a u32 takes
        # at most 5.
        for position in range(1, 6):
            if not len(open_rows):
                break
            at = self._key_at[open_rows] + position
            if position == 5 or (at >= self._value_at[open_rows]).any():
                short = (at >= self._value_at[open_rows]) | (position == 5)
                self._fail_at(int(open_rows[short][0]), "a collection id that does not end")
            octets = self._octets[at]
            not_canonical = octets == 0
            # The fifth byte has room for 4 bits of a 32-bit id.
            if position == 4:
                not_canonical |= (octets > 0x0F) & (octets < 0x80)
            if not_canonical.any():
                row = int(open_rows[not_canonical][0])
                self._fail_at(row, "a collection id that is not canonical or beyond 32 bits")
            ids[open_rows] |= (octets & 0x7F).astype(np.uint64) << np.uint64(7 * position)
            lengths[open_rows] = position + 1
            open_rows = open_rows[octets >= 0x80]
        return ids.astype(np.uint32), lengths

    def check_key_lengths(self, collection_id: Column, prefix_bytes: Column) -> None:
        lengths = self._value_at - self._key_at - prefix_bytes
        # The usual case: all keys fit the shorter of the two limits.
        if not len(lengths) or 1 <= lengths.min() <= lengths.max() <= MAX_KEY_BYTES_IN_COLLECTIONS:
            return
        most = np.where(collection_id == 0, MAX_KEY_BYTES, MAX_KEY_BYTES_IN_COLLECTIONS)
        bad = (lengths < 1) | (lengths > most)
        if bad.any():
            row = int(np.argmax(bad))
            self._fail_key(bad, f"a key of {lengths[row]} bytes, expected 1 to {most[row]}")

    def keys_and_values(self, prefix_bytes: Column) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Return keys without ``prefix_bytes`` bytes of prefix, and values.

        Copies each once, except the value of a large frame that alone owns its buffer.
        """
        rows = len(self._rows)
        if rows == 0:
            # An array that is made of a Python list imports pandas.
            return pa.nulls(0, pa.binary()), pa.nulls(0, pa.binary())
        # The buffer serves as an Arrow array with three segments per frame: key, value, and the
        # bytes up to the next key. Arrow then copies the keys and the values.
        bounds = np.empty((rows, 3), np.int32)
        bounds[:, 0] = self._key_at + prefix_bytes
        bounds[:, 1] = self._value_at
        bounds[:, 2] = self._ends
        parts = segments(self._block.buffer, bounds)
        if rows == 1 and self._block.keeps_buffer:
            return picked(parts, np.zeros(1, np.int64)), parts.slice(1, 1)
        first = np.arange(0, 3 * rows, 3, dtype=np.int64)
        return picked(parts, first), picked(parts, first + 1)

    def _gather(self, positions: Rows, layout: np.dtype[Any]) -> Column:
        return gather(self._block.buffer, positions, layout)

    def _check_kinds(self) -> None:
        magic, opcode = self._header["magic"], self._header["opcode"]
        request = (magic == _NORMAL_MAGIC) | (magic == _STREAM_MAGIC)
        if not request.all():
            self._fail(~request, "a magic that is no request's")
        legal = _LEGAL_EXTRAS[opcode, self._header["extras_length"]]
        if not legal.all():
            row = int(np.argmin(legal))
            lengths = _EXTRAS_LENGTHS.get(int(opcode[row]))
            if lengths is None:
                self._fail_at(row, "no mutation, deletion or expiration")
            self._fail_at(
                row,
                f"{int(self._header['extras_length'][row])} bytes of extras, "
                f"expected {' or '.join(map(str, lengths))}",
            )

    def _fail(self, bad: Column, found: str) -> NoReturn:
        self._fail_at(int(np.argmax(bad)), found)

    def _fail_key(self, bad: Column, found: str) -> NoReturn:
        """Name the seqno too: the extras are known to be complete."""
        at = int(self._extras_at[int(np.argmax(bad))])
        seqno = int.from_bytes(self._octets[at : at + 8].tobytes(), "big")
        self._fail(bad, f"at seqno {seqno} {found}")

    def _fail_at(self, row: int, found: str) -> NoReturn:
        header = self._header[row]
        raise FrameError(
            f"data message in frame {int(self._rows[row])} of the block "
            f"(magic {int(header['magic']):#04x}, opcode {int(header['opcode']):#04x}, "
            f"vbucket {int(header['vbucket_or_status'])}): found {found}"
        )

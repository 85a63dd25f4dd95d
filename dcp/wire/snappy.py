"""Compresses and inflates Snappy raw blocks: values with datatype bit 0x02.

A block begins with its inflated length as a varint. Source: google/snappy
``format_description.txt``, kv_engine ``docs/BinaryProtocol.md``.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.errors import FrameError
from dcp.wire.binary_column import octets_of, offsets_of, segments

MAX_INFLATED_BYTES: Final = 30 * 1024 * 1024
"""kv_engine's limit for an inflated value (``max_packet_size``)."""

_CODEC: Final = pa.Codec("snappy")
_MAX_VARINT_BYTES: Final = 5
_NULL: Final = pa.nulls(1, pa.binary())[0]  # ``pa.scalar`` would import pandas


def inflated_length(block: bytes) -> int:
    """Return the length in bytes that ``block`` claims to inflate to.

    Raises:
        FrameError: the block does not begin with a varint of at most 5 bytes.
    """
    length = 0
    for position, octet in enumerate(block[:_MAX_VARINT_BYTES]):
        length |= (octet & 0x7F) << (7 * position)
        if octet < 0x80:
            return length
    raise FrameError(
        f"snappy block of {len(block)} bytes: found {block[:_MAX_VARINT_BYTES].hex()}, "
        "expected an inflated length within 5 bytes"
    )


def inflate(block: bytes, max_inflated_bytes: int = MAX_INFLATED_BYTES) -> bytes:
    """Return the inflated block; an empty one stays empty.

    Raises:
        FrameError: the inflated length exceeds the limit, or the block is malformed.
    """
    # A connection that asked for no values gets empty ones, whatever their datatype says.
    if not block:
        return b""
    # Checked before inflating: a few bytes may claim gigabytes.
    length = inflated_length(block)
    if length > max_inflated_bytes:
        raise FrameError(
            f"snappy block of {len(block)} bytes: found an inflated length of {length}, "
            f"expected at most {max_inflated_bytes}"
        )
    try:
        inflated: bytes = _CODEC.decompress(block, decompressed_size=length, asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise FrameError(
            f"snappy block of {len(block)} bytes: cannot be inflated to {length}: {error}"
        ) from None
    return inflated


def inflated_lengths(blocks: pa.BinaryArray) -> NDArray[np.int64]:
    """Return the length in bytes that each block claims to inflate to.

    0 for an empty block; -1 if ``inflate`` would refuse the block because of its length.
    """
    offsets, octets = offsets_of(blocks), np.frombuffer(octets_of(blocks), np.uint8)
    at, ends = offsets[:-1].copy(), offsets[1:]
    lengths = np.zeros(len(blocks), np.int64)
    open_rows = np.flatnonzero(at < ends)
    for position in range(_MAX_VARINT_BYTES):
        at_end = at[open_rows] >= ends[open_rows]
        lengths[open_rows[at_end]] = -1
        open_rows = open_rows[~at_end]
        if not len(open_rows):
            break
        found = octets[at[open_rows]].astype(np.int64)
        lengths[open_rows] |= (found & 0x7F) << (7 * position)
        open_rows = open_rows[found >= 0x80]
        at[open_rows] += 1
    lengths[open_rows] = -1
    lengths[lengths > MAX_INFLATED_BYTES] = -1
    return lengths


def inflate_column(blocks: pa.BinaryArray) -> pa.BinaryArray:
    """Return the inflated blocks in one buffer; null if ``inflate`` would raise.

    The claimed lengths must sum up to less than 2 GiB.
    """
    lengths = inflated_lengths(blocks)
    data = pa.allocate_buffer(int(lengths[lengths > 0].sum()))
    into, at = memoryview(data).cast("B"), 0
    octets, offsets = octets_of(blocks), offsets_of(blocks)
    rows = np.flatnonzero((lengths >= 0) & (np.diff(offsets) > 0))
    columns = rows, offsets[rows], offsets[rows + 1], lengths[rows]
    for row, start, end, length in zip(*(each.tolist() for each in columns), strict=True):
        try:
            into[at : at + length] = _CODEC.decompress(octets[start:end], length, asbytes=True)
        except (pa.ArrowException, OSError):
            # A malformed block takes no room: the next one begins at the same place.
            lengths[row] = -1
        else:
            at += length
    is_whole = lengths >= 0
    ends = np.cumsum(np.where(is_whole, lengths, 0))
    inflated = segments(data, np.concatenate(([0], ends)))
    return inflated if is_whole.all() else pc.if_else(pa.array(is_whole), inflated, _NULL)


def deflate(data: bytes) -> bytes:
    block: bytes = _CODEC.compress(data, asbytes=True)
    return block

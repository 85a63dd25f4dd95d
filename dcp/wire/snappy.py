"""Compresses and inflates Snappy raw blocks: values with datatype bit 0x02.

A block begins with its inflated length as a varint; the limit is checked on that, before anything
is inflated. Source: google/snappy ``format_description.txt``, kv_engine ``docs/BinaryProtocol.md``.
"""

from typing import Final

import pyarrow as pa

from dcp.errors import FrameError

MAX_INFLATED_BYTES: Final = 30 * 1024 * 1024
"""kv_engine's limit for an inflated value (``max_packet_size``)."""

_CODEC: Final = pa.Codec("snappy")
_MAX_VARINT_BYTES: Final = 5


def inflated_length(block: bytes) -> int:
    """Return the length in bytes that ``block`` says it inflates to.

    Raises:
        FrameError: no complete varint of at most 32 bits at its start.
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
    """Return what a block was compressed from; an empty value is no block and stays empty.

    A value is empty, whatever its datatype says, on connections that asked for no values.

    Raises:
        FrameError: the inflated length exceeds the limit, or the block is malformed.
    """
    if not block:
        return b""
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


def deflate(data: bytes) -> bytes:
    """Return ``data`` as a raw block."""
    block: bytes = _CODEC.compress(data, asbytes=True)
    return block

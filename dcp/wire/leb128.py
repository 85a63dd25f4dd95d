"""Encodes and decodes the collection id (unsigned LEB128) in front of a document key.

kv_engine accepts only the shortest encoding (``include/mcbp/protocol/unsigned_leb128.h``). It
accepts no empty key from clients or nodes (``daemon/mcbp_validators.cc``,
``is_document_key_valid``).
"""

from typing import Final

from dcp.errors import FrameError
from dcp.types import U32_MAX, require_unsigned
from dcp.wire.vocabulary import MAX_KEY_BYTES, MAX_KEY_BYTES_IN_COLLECTIONS

MAX_LEB128_BYTES: Final = 5


def encode_leb128(value: int) -> bytes:
    """Return the shortest encoding, 1 to 5 bytes.

    Raises:
        ValueError: ``value`` is no unsigned 32-bit integer.
    """
    require_unsigned("LEB128 value", value, U32_MAX)
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_leb128(data: bytes) -> tuple[int, int]:
    """Return the integer at the start of ``data``, and its length in bytes.

    Raises:
        FrameError: it does not end, is not the shortest encoding, or exceeds 32 bits.
    """
    value = 0
    for position, octet in enumerate(data[:MAX_LEB128_BYTES]):
        # The low 7 bits come first; the top bit says that another byte follows.
        value |= (octet & 0x7F) << (7 * position)
        if octet & 0x80:
            continue
        # A last byte of 0 adds nothing, so a shorter encoding exists.
        if position and octet == 0:
            raise _malformed(data, "the shortest encoding")
        if value > U32_MAX:
            raise _malformed(data, "a value within 32 bits")
        return value, position + 1
    raise _malformed(data, f"an end within {MAX_LEB128_BYTES} bytes")


def _malformed(data: bytes, expected: str) -> FrameError:
    return FrameError(
        f"LEB128: found {data[:MAX_LEB128_BYTES].hex() or 'no bytes'}, expected {expected}"
    )


def split_collection_key(wire_key: bytes) -> tuple[int, bytes]:
    """Return the collection id and the rest of a key that a connection with Collections received.

    Raises:
        FrameError: the key begins with no collection id in its shortest encoding.
    """
    collection_id, length = decode_leb128(wire_key)
    return collection_id, wire_key[length:]


def require_key_length(key: bytes, collection_id: int) -> None:
    """Raise FrameError if ``key``, without its collection prefix, is empty or too long."""
    most = MAX_KEY_BYTES_IN_COLLECTIONS if collection_id else MAX_KEY_BYTES
    if not 1 <= len(key) <= most:
        raise FrameError(f"key: found {len(key)} bytes, expected 1 to {most}")

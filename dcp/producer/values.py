"""Stored values: is it JSON, where do its xattrs end, what is left without them.

A stored value is as kv_engine keeps it: optionally snappy-compressed as a whole, optionally an
xattr section before the body (kv_engine ``docs/Document.md``).
"""

import json
from collections.abc import Iterator
from struct import Struct
from typing import Final, NoReturn

import pyarrow as pa

_U32: Final = Struct(">I")
_MAX_INFLATED_BYTES: Final = 30 * 1024 * 1024
_CODEC: Final = pa.Codec("snappy")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON: found {name}, which is no JSON value")


_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant)


def is_json(value: bytes) -> bool:
    """Whether the bytes are one JSON text in UTF-8 (RFC 8259; no NaN, no Infinity)."""
    try:
        text = value.decode()
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return False
    return not text.startswith("\ufeff")


def without_snappy(value: bytes) -> bytes:
    """Return the inflated value; an empty value stays empty.

    Raises:
        ValueError: no snappy block, or larger than 30 MiB when inflated.
    """
    if not value:
        return value
    inflated_bytes = _inflated_bytes(value)
    if inflated_bytes > _MAX_INFLATED_BYTES:
        raise ValueError(
            f"snappy value: found {inflated_bytes} bytes inflated, expected at most "
            f"{_MAX_INFLATED_BYTES}"
        )
    if inflated_bytes == 0:
        return b""
    try:
        return bytes(_CODEC.decompress(value, decompressed_size=inflated_bytes, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"snappy value: found {len(value)} bytes that do not inflate") from error


def _inflated_bytes(value: bytes) -> int:
    size = 0
    for index, byte in enumerate(value[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise ValueError("snappy value: found no length in its first 5 bytes")


def xattr_section_bytes(value: bytes) -> int:
    """Return the length of the xattr section, its own length field included.

    Raises:
        ValueError: the section is longer than the value, or its pairs do not fill it.
    """
    for _ in _xattr_pairs(value):
        pass
    return _section_end(value)


def without_xattrs(value: bytes) -> bytes:
    """Return the body of a stored value that has the XATTR bit."""
    return value[_section_end(value) :] if value else value


def xattrs_only(value: bytes) -> bytes:
    """Return the xattr section of a stored value that has the XATTR bit."""
    return value[: _section_end(value)] if value else value


def system_xattrs_only(value: bytes) -> bytes:
    """Return the section with the names that start with ``_``, which deletions keep."""
    pairs = [pair for pair in _xattr_pairs(value) if pair.startswith(b"_")]
    if not pairs:
        return b""
    section = b"".join(_U32.pack(len(pair)) + pair for pair in pairs)
    return _U32.pack(len(section)) + section


def _section_end(value: bytes) -> int:
    if len(value) < 4:
        raise ValueError(f"xattrs: found {len(value)} bytes, expected a section of at least 4")
    end = 4 + int(_U32.unpack_from(value)[0])
    if end > len(value):
        raise ValueError(f"xattrs: found a section of {end} bytes in a value of {len(value)}")
    return end


def _xattr_pairs(value: bytes) -> Iterator[bytes]:
    """Yield ``name NUL json NUL`` byte strings."""
    if not value:
        return
    offset, end = 4, _section_end(value)
    while offset < end:
        if offset + 4 > end:
            raise ValueError(f"xattrs: found {end - offset} bytes left at offset {offset}")
        size = int(_U32.unpack_from(value, offset)[0])
        pair = value[offset + 4 : offset + 4 + size]
        if offset + 4 + size > end or pair.count(0) != 2 or not pair.endswith(b"\0"):
            raise ValueError(f"xattrs: found a malformed pair of {size} bytes at offset {offset}")
        yield pair
        offset += 4 + size

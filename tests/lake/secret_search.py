"""Finds a secret in bytes: as it is, in the usual encodings, and in what is compressed in them."""

import base64
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from typing import Final

import pyarrow as pa

_LZ4_BLOCK: Final = b"LZ4Block"
_LZ4_HEADER: Final = struct.Struct("<bii4x")
_COMPRESSED: Final = 0x20
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZLIB: Final = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08")


def is_in(secret: str, data: bytes) -> bool:
    """Whether the secret is anywhere in the data."""
    forms = list(_forms(secret))
    return any(form in each for each in _layers(data) for form in forms)


def _forms(secret: str) -> Iterator[bytes]:
    raw = secret.encode()
    yield raw
    yield raw[::-1]
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    yield secret.encode("utf-16-le")
    yield secret.encode("utf-16-be")
    for before in range(3):  # where it stands within what was encoded; the edges hold neighbours
        coded = base64.b64encode(b"\0" * before + raw)
        yield coded[4 if before else 0 : len(coded) // 4 * 4 - 4]


def _layers(data: bytes) -> Iterator[bytes]:
    """Yield the data, and what each compressed part of it was."""
    yield data
    if unpacked := _lz4_blocks(data):
        yield unpacked
    for found in re.finditer(re.escape(_ZSTD), data):
        unpacked_parts = bytearray()
        with (
            suppress(OSError),
            pa.CompressedInputStream(BytesIO(data[found.start() :]), "zstd") as stream,
        ):
            while part := stream.read(1 << 16):
                unpacked_parts += part
        yield bytes(unpacked_parts)
    for match in _ZLIB.finditer(data):
        with suppress(zlib.error):
            yield zlib.decompressobj(wbits=47).decompress(data[match.start() :], 1 << 24)


def _lz4_blocks(data: bytes) -> bytes:
    """Return what Spark's LZ4 streams in the data hold, joined: an object may go over blocks."""
    unpacked, at = bytearray(), data.find(_LZ4_BLOCK)
    while at >= 0:
        begin = at + len(_LZ4_BLOCK) + _LZ4_HEADER.size
        if begin > len(data):
            break
        method, packed_bytes, size = _LZ4_HEADER.unpack_from(data, at + len(_LZ4_BLOCK))
        block = data[begin : begin + packed_bytes]
        with suppress(OSError, ValueError, pa.ArrowException):
            if method & 0xF0 == _COMPRESSED:
                block = pa.Codec("lz4_raw").decompress(block, size).to_pybytes()
            unpacked += block
        at = data.find(_LZ4_BLOCK, begin)
    return bytes(unpacked)

"""Encodes and decodes framing extras: tagged fields of the alternative framing, such as a stream
id.

A field is one byte ``id << 4 | length`` and then ``length`` bytes. A nibble of 15 is an escape: the
number is the next byte plus 15, the id's escape byte first. Unknown ids are kept, because a peer
may be newer. Source: kv_engine ``docs/BinaryProtocol.md``, ``include/mcbp/codec/frameinfo.h``.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from dcp.errors import FrameError
from dcp.types import U16_MAX, require_unsigned

_ESCAPE: Final = 15
_MOST: Final = _ESCAPE + 0xFF


class RequestInfo(IntEnum):
    """Ids in requests (magic 0x08)."""

    BARRIER = 0
    DURABILITY = 1
    STREAM_ID = 2
    IMPERSONATED_USER = 4
    PRESERVE_TTL = 5
    EXTRA_PRIVILEGE = 6
    TOKEN_AUTH = 7


class ResponseInfo(IntEnum):
    """Ids in responses (magic 0x18)."""

    SERVER_DURATION = 0
    READ_UNITS = 1
    WRITE_UNITS = 2
    THROTTLE_DURATION = 3


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """One field of the framing extras."""

    id: int
    """A ``RequestInfo`` or ``ResponseInfo``, depending on the magic."""
    data: bytes = b""

    def __post_init__(self) -> None:
        require_unsigned("frame info id", self.id, _MOST)
        require_unsigned("frame info length", len(self.data), _MOST)


def decode_frame_infos(framing_extras: bytes) -> tuple[FrameInfo, ...]:
    """Return all fields in their order.

    Raises:
        FrameError: a field that is longer than the framing extras.
    """
    infos: list[FrameInfo] = []
    position = 0
    while position < len(framing_extras):
        number, length = framing_extras[position] >> 4, framing_extras[position] & 0x0F
        start, position = position, position + 1
        if number == _ESCAPE:
            number, position = _escaped(framing_extras, position), position + 1
        if length == _ESCAPE:
            length, position = _escaped(framing_extras, position), position + 1
        if position + length > len(framing_extras):
            raise _truncated(framing_extras, start, f"{length} bytes of data")
        infos.append(FrameInfo(number, framing_extras[position : position + length]))
        position += length
    return tuple(infos)


def encode_frame_infos(infos: tuple[FrameInfo, ...]) -> bytes:
    encoded = bytearray()
    for info in infos:
        length = len(info.data)
        encoded.append(min(info.id, _ESCAPE) << 4 | min(length, _ESCAPE))
        # The id's escape byte comes before the length's.
        if info.id >= _ESCAPE:
            encoded.append(info.id - _ESCAPE)
        if length >= _ESCAPE:
            encoded.append(length - _ESCAPE)
        encoded += info.data
    return bytes(encoded)


def stream_id_info(stream_id: int) -> bytes:
    """Return the framing extras ``22 hi lo`` that name a stream.

    Raises:
        ValueError: ``stream_id`` is no unsigned 16-bit integer.
    """
    require_unsigned("stream id", stream_id, U16_MAX)
    return encode_frame_infos((FrameInfo(RequestInfo.STREAM_ID, stream_id.to_bytes(2, "big")),))


def stream_id_of(framing_extras: bytes) -> int | None:
    """Return the stream id in a request's framing extras, if it has one.

    Raises:
        FrameError: malformed framing extras, or a stream id that is not two bytes.
    """
    for info in decode_frame_infos(framing_extras):
        if info.id == RequestInfo.STREAM_ID:
            if len(info.data) != 2:
                raise FrameError(f"stream id: found {len(info.data)} bytes, expected 2")
            return int.from_bytes(info.data, "big")
    return None


def _escaped(framing_extras: bytes, position: int) -> int:
    if position >= len(framing_extras):
        raise _truncated(framing_extras, position - 1, "an escape byte")
    return framing_extras[position] + _ESCAPE


def _truncated(framing_extras: bytes, start: int, expected: str) -> FrameError:
    return FrameError(
        f"framing extras {framing_extras.hex()}: frame info at byte {start} is cut off, "
        f"expected {expected}"
    )

"""A frame in its parts: the 24-byte header and four byte strings, in both framings.

    offset  normal framing            alternative framing (magics 0x08, 0x18)
    0       magic                     magic
    1       opcode                    opcode
    2       key length (u16)          framing-extras length (u8), key length (u8)
    4       extras length             extras length
    5       datatype                  datatype
    6       vbucket id, or status     vbucket id, or status
    8       total body length (u32)   the same, framing extras included
    12      opaque                    opaque
    16      CAS                       CAS
    24      extras, key, value        framing extras, extras, key, value

All integers are big-endian. Source: kv_engine ``docs/BinaryProtocol.md``.
"""

from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import NamedTuple

from dcp.errors import FrameError
from dcp.types import U16_MAX, U32_MAX, require_unsigned
from dcp.wire.vocabulary import HEADER_BYTES, Magic

_NORMAL = Struct(">BBHBBHIIQ")
_ALTERNATIVE = Struct(">BBBBBBHIIQ")
_MAGICS = {int(magic): magic for magic in Magic}


# A NamedTuple costs less to make than a frozen dataclass, and each frame makes one.
class Frame(NamedTuple):
    """A frame in its parts, undecoded."""

    magic: Magic
    opcode: int
    datatype: int = 0
    vbucket_or_status: int = 0
    """A status in responses, a vbucket id in requests; ``status`` and ``vbucket`` check which."""
    opaque: int = 0
    cas: int = 0
    framing_extras: bytes = b""
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""

    @property
    def status(self) -> int:
        """Raises ValueError for a request."""
        if not self.magic.is_response:
            raise ValueError(f"status: found a frame of magic {self.magic:#04x}, a request")
        return self.vbucket_or_status

    @property
    def vbucket(self) -> int:
        """Raises ValueError for a response."""
        if self.magic.is_response:
            raise ValueError(f"vbucket: found a frame of magic {self.magic:#04x}, a response")
        return self.vbucket_or_status

    @property
    def body_bytes(self) -> int:
        return len(self.framing_extras) + len(self.extras) + len(self.key) + len(self.value)

    def to_bytes(self) -> bytes:
        """Raises ValueError if a field does not fit into the header."""
        magic, opcode, datatype, vb_status, opaque, cas, framing_extras, extras, key, value = self
        body_bytes = len(framing_extras) + len(extras) + len(key) + len(value)
        tail = len(extras), datatype, vb_status, body_bytes, opaque, cas
        try:
            if magic.is_alternative:
                header = _ALTERNATIVE.pack(magic, opcode, len(framing_extras), len(key), *tail)
            elif framing_extras:
                raise self._misfit()
            else:
                header = _NORMAL.pack(magic, opcode, len(key), *tail)
        # ``struct`` does not name the field that is too large.
        except StructError:
            raise self._misfit() from None
        return b"".join((header, framing_extras, extras, key, value))

    def _misfit(self) -> ValueError:
        is_alternative = self.magic.is_alternative
        framing_bytes, key_bytes = len(self.framing_extras), len(self.key)
        try:
            require_unsigned("opcode", self.opcode, 0xFF)
            require_unsigned("datatype", self.datatype, 0xFF)
            require_unsigned("vbucket or status", self.vbucket_or_status, U16_MAX)
            require_unsigned("opaque", self.opaque, U32_MAX)
            require_unsigned("cas", self.cas)
            # Normal framing has no room for framing extras.
            require_unsigned("framing extras length", framing_bytes, 0xFF * is_alternative)
            require_unsigned("extras length", len(self.extras), 0xFF)
            require_unsigned("key length", key_bytes, 0xFF if is_alternative else U16_MAX)
            require_unsigned("body length", self.body_bytes, U32_MAX)
        except ValueError as error:
            return error
        raise AssertionError("a frame that did not fit its header does")


class Header(NamedTuple):
    """The 24 bytes, with the lengths in bytes of the parts that follow them."""

    magic: Magic
    opcode: int
    framing_extras_bytes: int
    extras_bytes: int
    key_bytes: int
    datatype: int
    vbucket_or_status: int
    body_bytes: int
    opaque: int
    cas: int


def parse_header(data: bytes | bytearray | memoryview) -> Header:
    """Read the header at the beginning of ``data``, which must hold its 24 bytes.

    Raises:
        FrameError: an unknown magic, or parts that are longer than the body.
    """
    magic = _MAGICS.get(data[0])
    if magic is None:
        raise FrameError(
            f"frame header: found magic {data[0]:#04x}, "
            f"expected one of {', '.join(f'{known:#04x}' for known in sorted(_MAGICS))}"
        )
    if magic.is_alternative:
        (_, opcode, framing, key, extras, datatype, vb_status, body, opaque, cas) = (
            _ALTERNATIVE.unpack_from(data)
        )
    else:
        framing = 0
        (_, opcode, key, extras, datatype, vb_status, body, opaque, cas) = _NORMAL.unpack_from(data)
    if framing + extras + key > body:
        raise FrameError(
            f"frame header of opcode {opcode:#04x}: found framing extras {framing} + extras "
            f"{extras} + key {key} bytes, expected at most the body's {body} bytes"
        )
    return Header(magic, opcode, framing, extras, key, datatype, vb_status, body, opaque, cas)


def parse_frame(data: bytes | bytearray | memoryview) -> Frame:
    """Read exactly one frame.

    Raises:
        FrameError: bytes are missing or left over, or the header is malformed.
    """
    if len(data) < HEADER_BYTES:
        raise FrameError(f"frame: found {len(data)} bytes, expected at least {HEADER_BYTES}")
    magic, opcode, framing, extras, key, datatype, vb_status, body, opaque, cas = parse_header(data)
    if len(data) != HEADER_BYTES + body:
        raise FrameError(
            f"frame of opcode {opcode:#04x}: found {len(data)} bytes, "
            f"expected {HEADER_BYTES + body} by its header"
        )
    extras_at = HEADER_BYTES + framing
    key_at = extras_at + extras
    value_at = key_at + key
    return Frame(
        magic,
        opcode,
        datatype,
        vb_status,
        opaque,
        cas,
        # Copies: the frame may outlive the buffer.
        framing_extras=bytes(data[HEADER_BYTES:extras_at]),
        extras=bytes(data[extras_at:key_at]),
        key=bytes(data[key_at:value_at]),
        value=bytes(data[value_at:]),
    )

"""Splits the bytes of a socket into whole frames.

Each byte is copied at most twice, however many chunks a large frame takes. A socket's reader avoids
both copies with ``take_back`` and ``room``.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from dcp.errors import FrameError
from dcp.wire.frame import Frame, parse_frame, parse_header
from dcp.wire.vocabulary import HEADER_BYTES, MAX_FRAME_BYTES, Magic

Buffer = bytes | memoryview

_read_u32 = Struct(">I").unpack_from
_VBUCKET_AT: Final = 6
_BODY_AT: Final = 8
LARGE_FRAME_BYTES: Final = 256 * 1024
"""From this length on an unfinished frame gets a buffer of its own."""
_RUN_TRIGGER: Final = 4
"""After this number of frames of one length the splitter guesses that the next ones have it too."""
_RUN_PROBE: Final = 1024
"""Frames per guess. The bound keeps a short run in a long buffer cheap."""

_KNOWN_MAGIC: Final = np.isin(np.arange(256), [int(magic) for magic in Magic])
_ALTERNATIVE_MAGIC: Final = np.isin(
    np.arange(256), [int(magic) for magic in Magic if magic.is_alternative]
)

HEADER_LAYOUT: Final = np.dtype(
    [
        ("magic", "u1"),
        ("opcode", "u1"),
        ("key_length", ">u2"),
        ("extras_length", "u1"),
        ("datatype", "u1"),
        ("vbucket_or_status", ">u2"),
        ("body_length", ">u4"),
        ("opaque", ">u4"),
        ("cas", ">u8"),
    ]
)
"""The 24 bytes. In alternative framing ``key_length`` holds two bytes: the length of the framing
extras, and the length of the key."""


def gather(buffer: Buffer, positions: NDArray[np.int64], layout: np.dtype[Any]) -> NDArray[Any]:
    """Return the record at each position.

    A position must leave room for a whole record.
    """
    last = len(buffer) - layout.itemsize
    if last < 0 or not len(positions):
        return np.empty(0, layout)
    # A record begins at every byte of this view, so numpy copies the wanted ones in one call.
    everywhere: NDArray[Any] = np.ndarray(
        (last + 1,), np.dtype((np.void, layout.itemsize)), buffer, 0, (1,)
    )
    return everywhere[positions].view(layout)


class FrameBlock:
    """Whole frames, back to back: frame ``i`` is ``buffer[offsets[i]:offsets[i + 1]]``.

    ``offsets`` has one entry more than there are frames, which have at least 24 bytes each. The
    buffer may hold other bytes before the first frame and after the last. Nobody may change the
    buffer while the block is in use, or ever if ``keeps_buffer``: Arrow columns may then refer to
    it.
    """

    __slots__ = ("_headers", "buffer", "keeps_buffer", "offsets")

    def __init__(
        self, buffer: Buffer, offsets: NDArray[np.int64], *, keeps_buffer: bool = False
    ) -> None:
        # Offsets ascend, so only the last one can lie beyond the buffer.
        if len(offsets) == 0 or offsets[-1] > len(buffer):
            raise ValueError(
                f"frame block: found {len(offsets)} offsets into {len(buffer)} bytes, "
                "expected at least one, none beyond the buffer"
            )
        self.buffer = buffer
        self.offsets = offsets
        self.keeps_buffer = keeps_buffer
        self._headers: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, frames: Iterable[bytes]) -> "FrameBlock":
        parts = list(frames)
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return cls(b"".join(parts), offsets)

    def frame(self, index: int) -> Frame:
        """Raises FrameError if the header is malformed."""
        if not 0 <= index < len(self):
            raise IndexError(f"frame {index} of a block of {len(self)}")
        return next(self.frames(index, index + 1))

    def frames(self, first: int, end: int) -> Iterator[Frame]:
        """Raises FrameError if a header is malformed."""
        view = memoryview(self.buffer)
        for start, stop in pairwise(self.offsets[first : end + 1].tolist()):
            yield parse_frame(view[start:stop])

    @property
    def headers(self) -> NDArray[Any]:
        """Headers as a structured array of ``HEADER_LAYOUT`` (big-endian fields)."""
        if self._headers is None:
            self._headers = gather(self.buffer, self.offsets[:-1], HEADER_LAYOUT)
        return self._headers

    @property
    def magics(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.headers["magic"])

    @property
    def opcodes(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.headers["opcode"])

    @property
    def frame_lengths(self) -> NDArray[np.int64]:
        """Bytes of each frame, header included. Flow control charges this length."""
        return np.diff(self.offsets)

    @property
    def frame_bytes(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])


class FrameSplitter:
    """Turns a stream of bytes into blocks of whole frames; keeps an unfinished frame for the next
    call.

    ``max_frame_bytes`` includes the header and may change between calls: a server raises it when a
    client has authenticated. The splitter enforces it before it receives the body.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        if max_frame_bytes < HEADER_BYTES:
            raise ValueError(
                f"max_frame_bytes: found {max_frame_bytes}, expected at least {HEADER_BYTES}"
            )
        self.max_frame_bytes = max_frame_bytes
        self._tail = bytearray()
        """The begun frame while it is small."""
        self._large: bytearray | None = None
        """The begun frame in a buffer of its full length."""
        self._filled_bytes = 0
        self._wanted_bytes = 0
        """Full length of the begun frame; the header's length until that is complete."""
        self._consumed_bytes = 0
        """Bytes of all whole frames so far: error messages name positions in the connection."""
        self._broken: str | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes received of the unfinished frame."""
        return len(self._tail) if self._large is None else self._filled_bytes

    @property
    def unfinished_frame_bytes(self) -> int:
        """Full length of the unfinished frame; 0 until its header is complete."""
        is_known = self._large is not None or len(self._tail) >= HEADER_BYTES
        return self._wanted_bytes if is_known else 0

    @property
    def unfinished_vbucket(self) -> int | None:
        """Vbucket of the unfinished frame; None if its header is incomplete or it is no request."""
        begun = self._tail if self._large is None else self._large
        # A producer sends the messages of a stream as requests.
        if self.unfinished_frame_bytes == 0 or begun[0] != Magic.REQUEST:
            return None
        return int.from_bytes(begun[_VBUCKET_AT : _VBUCKET_AT + 2])

    def room(self) -> memoryview | None:
        """Return a buffer for the rest of a large unfinished frame; call ``fill`` after writing to
        it.

        None if no large frame is unfinished: then pass the bytes to ``feed``.
        """
        if self._broken is not None or (not self._tail and self._large is None):
            return None
        if self._large is None:
            if self._wanted_bytes < LARGE_FRAME_BYTES:
                return None
            self._large = bytearray(self._wanted_bytes)  # zero pages: takes memory as it fills
            self._filled_bytes = len(self._tail)
            self._large[: self._filled_bytes] = self._tail
            self._tail = bytearray()
        return memoryview(self._large)[self._filled_bytes :]

    def fill(self, count: int) -> FrameBlock:
        """Accept ``count`` bytes written into ``room``; return the frame if it is complete.

        The block is the only owner of its buffer.

        Raises:
            FrameError: as in ``feed``.
        """
        if self._large is None or not 0 <= count <= len(self._large) - self._filled_bytes:
            raise ValueError(f"fill: found {count} bytes, expected at most what room() gave")
        self._filled_bytes += count
        if self._filled_bytes < len(self._large):
            return FrameBlock.of(())
        whole, self._large = memoryview(self._large).toreadonly(), None
        block = self._split_or_break(whole)
        # Nobody writes to this buffer again, so columns may refer to it.
        block.keeps_buffer = True
        return block

    def take_back(self, buffer: memoryview) -> int:
        """Move the bytes of a small unfinished frame to the front of ``buffer``; return their
        number.

        The next ``feed`` must begin with these bytes. The caller reads the next ones behind them,
        so that ``feed`` need not copy.
        """
        count = len(self._tail)
        if count >= len(buffer) or self._large is not None:  # leaves no room behind it
            return 0
        buffer[:count] = self._tail
        self._tail = bytearray()
        return count

    def feed(self, data: Buffer) -> FrameBlock:
        """Take the next bytes and return the frames that they complete.

        The block may refer to ``data``: do not change it afterwards.

        Raises:
            FrameError: an unknown magic, a frame beyond ``max_frame_bytes``, or parts longer
                than their body. Every later call raises too, because the position in the stream
                is lost.
        """
        if self._broken is not None:
            raise FrameError(self._broken)
        if self._large is not None and len(data):  # the caller did not use room()
            self._tail, self._large = self._large[: self._filled_bytes], None
        if self._tail:
            self._tail += data
            # Chunks of a begun frame are only collected: parsing each time would cost its length
            # squared.
            if len(self._tail) < self._wanted_bytes:
                return FrameBlock.of(())
            # The block takes over this buffer; a new one holds the next unfinished frame.
            data = memoryview(self._tail).toreadonly()
            self._tail = bytearray()
        return self._split_or_break(data)

    def _split_or_break(self, data: Buffer) -> FrameBlock:
        try:
            return self._split(data)
        except FrameError as error:
            self._broken = str(error)
            raise

    def _split(self, data: Buffer) -> FrameBlock:
        offsets = _find_offsets(data, self.max_frame_bytes)
        end = int(offsets[-1])
        block = FrameBlock(data, offsets)
        self._check_whole_frames(block)
        self._check_tail(data, end)
        self._consumed_bytes += end
        self._tail += memoryview(data)[end:]
        return block

    def _check_whole_frames(self, block: FrameBlock) -> None:
        """Check all headers at once; ``_raise_for`` then words the error."""
        if len(block) == 0:
            return
        headers = block.headers
        magics = headers["magic"]
        parts = headers["key_length"] + headers["extras_length"].astype(np.int64)
        alternative = _ALTERNATIVE_MAGIC[magics]
        if alternative.any():
            lengths = headers["key_length"].astype(np.int64)
            # In alternative framing the u16 holds two lengths of a byte each.
            folded = (lengths >> 8) + (lengths & 0xFF) + headers["extras_length"]
            parts = np.where(alternative, folded, parts)
        bad = ~_KNOWN_MAGIC[magics] | (parts > headers["body_length"])
        if bad.any():
            self._raise_for(block.buffer, int(block.offsets[int(np.argmax(bad))]))

    def _check_tail(self, data: Buffer, start: int) -> None:
        """Check the received part of an unfinished frame, and note its full length."""
        rest = len(data) - start
        self._wanted_bytes = HEADER_BYTES
        if rest and not _KNOWN_MAGIC[data[start]]:
            self._raise_for(data, start)
        if rest < _BODY_AT + 4:
            return
        frame_bytes = HEADER_BYTES + _read_u32(data, start + _BODY_AT)[0]
        if frame_bytes > self.max_frame_bytes:
            raise FrameError(
                f"{self._where(start)}opcode {data[start + 1]:#04x}: found a frame of "
                f"{frame_bytes} bytes, expected at most {self.max_frame_bytes}"
            )
        if rest >= HEADER_BYTES:
            self._check_header(data, start)
            self._wanted_bytes = frame_bytes

    def _where(self, start: int) -> str:
        return f"frame at byte {self._consumed_bytes + start} of the connection: "

    def _check_header(self, data: Buffer, start: int) -> None:
        """Raise FrameError, with the position, if a header is malformed.

        Missing bytes count as zeros.
        """
        header = bytes(data[start : start + HEADER_BYTES]).ljust(HEADER_BYTES, b"\0")
        try:
            parse_header(header)
        except FrameError as error:
            raise FrameError(self._where(start) + str(error)) from None

    def _raise_for(self, data: Buffer, start: int) -> NoReturn:
        """Raise FrameError for a header that is malformed."""
        self._check_header(data, start)
        raise AssertionError("a header that was found bad is good")


def _find_offsets(data: Buffer, max_frame_bytes: int) -> NDArray[np.int64]:
    """Return the offset of each whole frame, then the end of the last one.

    Stops at a frame that is incomplete or too long.
    """
    runs: list[NDArray[np.int64]] = []
    offsets: list[int] = []
    position, last_length, equal = 0, 0, 0
    size = len(data)
    last_header = size - HEADER_BYTES
    # A loop over single frames is slow in Python, and messages of one kind often have one length.
    # So after some frames of equal length numpy checks many of the next ones at once.
    while position <= last_header:
        length = HEADER_BYTES + _read_u32(data, position + _BODY_AT)[0]
        # ``_check_tail`` raises for a frame that is too long.
        if length > max_frame_bytes or position + length > size:
            break
        offsets.append(position)
        position += length
        if length != last_length:
            last_length, equal = length, 0
            continue
        equal += 1
        if equal >= _RUN_TRIGGER and position + 2 * length <= size:
            count = _run_of(data, position, length)
            if count:
                runs.append(np.array(offsets, np.int64))
                runs.append(position + length * np.arange(count, dtype=np.int64))
                offsets = []
                position += length * count
            # A wrong guess costs time, so the next one comes later.
            equal = 0 if count else -4 * _RUN_TRIGGER
    offsets.append(position)
    return np.concatenate([*runs, np.array(offsets, np.int64)])


def _run_of(data: Buffer, start: int, length: int) -> int:
    most = (len(data) - start) // length
    count = 0
    while count < most:
        probe = min(most - count, _RUN_PROBE)
        # A view of the length fields at the guessed offsets, without a copy.
        bodies: NDArray[np.uint32] = np.ndarray(
            (probe,), ">u4", data, start + length * count + _BODY_AT, (length,)
        )
        differs = bodies != length - HEADER_BYTES
        if differs.any():
            return count + int(np.argmax(differs))
        count += probe
    return count

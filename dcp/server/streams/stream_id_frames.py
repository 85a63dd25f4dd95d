"""Adds the stream id to frames, in three bytes of framing extras.

The magic becomes 0x08, the key length one byte, and ``22 hi lo`` stands before the extras. A whole
batch is rewritten at once. kv_engine leaves the length of the framing extras 0 in some deletions
though they are there (``dcp/producer.cc``): that is not copied, no client could read on.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from dcp.server.model.item_layouts import BODY_LENGTH_AT, KEY_LENGTH_AT
from dcp.wire.frame_info import stream_id_info
from dcp.wire.vocabulary import HEADER_BYTES, Magic

_INFO_BYTES: Final = len(stream_id_info(0))
_FRAMING_LENGTH_AT: Final = KEY_LENGTH_AT  # the first of its two bytes becomes that


def with_stream_id(
    data: bytes | bytearray | memoryview, ends: npt.NDArray[np.int64], stream_id: int
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return frames with the stream id in them, and their new ends; ``ends[0]`` is 0.

    Keys must be shorter than 256 bytes, as all keys of documents and collections are.
    """
    new_ends = ends + _INFO_BYTES * np.arange(len(ends))
    starts = new_ends[:-1]
    framed = np.empty(int(new_ends[-1]), np.uint8)
    is_info = np.zeros(len(framed), bool)
    infos = starts[:, None] + np.arange(HEADER_BYTES, HEADER_BYTES + _INFO_BYTES)
    is_info[infos] = True
    framed[~is_info] = np.frombuffer(data, np.uint8)
    framed[infos] = np.frombuffer(stream_id_info(stream_id), np.uint8)
    framed[starts] = Magic.ALT_REQUEST
    framed[starts + _FRAMING_LENGTH_AT] = _INFO_BYTES
    body_bytes = (np.diff(new_ends) - HEADER_BYTES).astype(">u4")
    lengths = starts[:, None] + np.arange(BODY_LENGTH_AT, BODY_LENGTH_AT + 4)
    framed[lengths] = body_bytes.view(np.uint8).reshape(-1, 4)
    return framed.tobytes(), new_ends

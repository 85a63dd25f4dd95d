"""Adds the stream id to frames, as three bytes of framing extras.

The magic becomes 0x08, the key length shrinks to one byte, and ``22 hi lo`` precedes the extras.
NumPy rewrites a whole batch at once. kv_engine has a fault here: in some deletions it sets the
length of the framing extras to 0 (``dcp/producer.cc``). This code sets 3, or no client could parse
them.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from dcp.server.model.item_layouts import BODY_LENGTH_AT, KEY_LENGTH_AT
from dcp.wire.frame_info import stream_id_info
from dcp.wire.vocabulary import HEADER_BYTES, Magic

_INFO_BYTES: Final = len(stream_id_info(0))
# With magic 0x08 the first byte of the key length holds the length of the framing extras.
_FRAMING_LENGTH_AT: Final = KEY_LENGTH_AT


def with_stream_id(
    data: bytes | bytearray | memoryview, ends: npt.NDArray[np.int64], stream_id: int
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return the frames with the stream id, and their new ends; ``ends[0]`` is 0.

    Keys must be shorter than 256 bytes, which is true of documents and collections.
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

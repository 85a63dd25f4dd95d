"""Parses JSON from other processes into Python objects, within limits of depth and size.

Python's ``json`` recurses once per level, and the caller's stack decides when it raises
RecursionError, which no caller catches. The objects take many times the memory of the text, and
parsing blocks other connections.
"""

import json
from typing import Any, Final, NoReturn

import numpy as np

MOST_TREE_DEPTH: Final = 500
"""No real text is this deep; Python's limit is 1,000 calls."""

MOST_TREE_BYTES: Final = 8 * 1024 * 1024
"""A map of 1,024 vbuckets on 100 nodes has 100 KiB, a manifest of 1,200 collections 400 KiB."""

MOST_REQUEST_JSON_BYTES: Final = 64 * 1024
"""For a client's request; a filter that names 1,200 collections has 14 KiB."""


def json_tree(text: bytes | str, most_bytes: int = MOST_TREE_BYTES) -> Any:
    """Return the Python objects of a JSON text in UTF-8.

    Raises:
        ValueError: it is not JSON, or too long or too deep.
    """
    if len(text) > most_bytes:
        raise ValueError(f"JSON: found {len(text)} bytes, expected at most {most_bytes}")
    given = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    if is_deeper(given, MOST_TREE_DEPTH):
        raise ValueError(f"JSON: found more than {MOST_TREE_DEPTH} levels, expected fewer")
    return json.loads(given.decode() if isinstance(text, bytes) else text)


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN or Infinity: as ``parse_constant`` it makes ``json`` refuse them."""
    raise ValueError(f"found {name}, which is no JSON")


def is_deeper(text: bytes, most_depth: int) -> bool:
    """Return whether more than ``most_depth`` lists and objects are open anywhere in the text."""
    # Few brackets cannot nest deeply: nearly all texts end here.
    if text.count(b"[") + text.count(b"{") <= most_depth:
        return False
    # Escaped backslashes go first: the quote in ``\\"`` ends a string. The number of quotes so far
    # is odd inside a string; uint8 may overflow without changing that.
    unescaped = np.frombuffer(text.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    is_outside = np.cumsum(unescaped == ord('"'), dtype=np.uint8) & 1 == 0  # outside strings
    folded = unescaped[is_outside] | 0x20  # maps [ to { and ] to }
    brackets = folded[(folded == ord("{")) | (folded == ord("}"))]
    depths = np.cumsum(np.where(brackets == ord("{"), 1, -1), dtype=np.int32)
    return bool(depths.max(initial=0) > most_depth)

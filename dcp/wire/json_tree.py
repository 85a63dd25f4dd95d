"""Parses JSON from outside into Python objects, within a limit of depth and one of size.

Python's ``json`` recurses once for each bracket. How deep it can go depends on the caller's own
stack, and beyond that it raises RecursionError, which code that handles malformed text does not
catch. The objects take many times the memory of the text, and parsing holds up other connections.
"""

import json
import re
from typing import Any, Final

MOST_TREE_DEPTH: Final = 500
"""Deeper than anybody writes by hand or by program, and far from Python's limit of 1,000 calls."""

MOST_TREE_BYTES: Final = 8 * 1024 * 1024
"""A map of 1,024 vbuckets on 100 nodes has 100 KiB, a manifest of 1,200 collections 400 KiB."""

MOST_REQUEST_JSON_BYTES: Final = 64 * 1024
"""Of a request; all collections that a bucket may have are named in 14 KiB."""

_TOKEN: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_STEP: Final = {"[": 1, "{": 1, "]": -1, "}": -1}


def json_tree(text: bytes | str, most_bytes: int = MOST_TREE_BYTES) -> Any:
    """Return the Python objects of a JSON text in UTF-8.

    Raises:
        ValueError: it is no JSON, or too long or too deep to be read.
    """
    if len(text) > most_bytes:
        raise ValueError(f"JSON: found {len(text)} bytes, expected at most {most_bytes}")
    decoded = text.decode() if isinstance(text, bytes) else text
    if is_deeper(decoded, MOST_TREE_DEPTH):
        raise ValueError(f"JSON: found more than {MOST_TREE_DEPTH} levels, expected fewer")
    return json.loads(decoded)


def is_deeper(text: str, most_depth: int) -> bool:
    """Return whether more lists and objects than that are open somewhere in the text."""
    if text.count("[") + text.count("{") <= most_depth:
        return False
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += _STEP.get(token[0], 0)
        if depth > most_depth:
            return True
    return False

"""The JSON that a request carries, as a tree: of so many bytes at most.

A tree is many times as large as its text, and whoever makes one holds up all other clients.
"""

import json
from typing import Final

MOST_REQUEST_JSON_BYTES: Final = 64 * 1024
"""Longer ones are refused unread: all collections that a bucket may have are named in 14 KiB."""


def request_tree(value: bytes) -> object:
    """Return what a request's JSON says.

    Raises:
        ValueError: it is no JSON, too deep, or too long.
    """
    if len(value) > MOST_REQUEST_JSON_BYTES:
        raise ValueError(
            f"request JSON: found {len(value)} bytes, expected at most {MOST_REQUEST_JSON_BYTES}"
        )
    try:
        tree: object = json.loads(value)
    except RecursionError as error:
        raise ValueError("request JSON: too deep") from error
    return tree

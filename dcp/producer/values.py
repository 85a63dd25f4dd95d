"""Stored values: is it JSON, and what is left without xattrs or without the body.

A stored value is as kv_engine keeps it: optionally snappy-compressed as a whole, optionally an
xattr section before the body (kv_engine ``docs/Document.md``). A deletion may have lost its value.
"""

import json
from typing import Final, NoReturn

from dcp.wire.xattr import join_xattrs, split_xattrs


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


def without_xattrs(value: bytes) -> bytes:
    """Return the body of a value that has the XATTR bit."""
    return split_xattrs(value)[1] if value else value


def xattrs_only(value: bytes) -> bytes:
    """Return the xattr section of a value that has the XATTR bit."""
    return value[: len(value) - len(without_xattrs(value))]


def system_xattrs_only(value: bytes) -> bytes:
    """Return the section of the names that start with ``_``, which deletions keep; may be empty."""
    if not value:
        return value
    kept = tuple((name, text) for name, text in split_xattrs(value)[0] if name.startswith(b"_"))
    return join_xattrs(kept, b"") if kept else b""

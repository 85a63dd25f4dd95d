"""Stored values: splits off xattrs or the body, and checks what clients store.

A value is stored as in kv_engine: perhaps Snappy-compressed as a whole, perhaps with an xattr
section before the body (kv_engine ``docs/Document.md``). A deletion can have an empty value.
"""

import string
from collections.abc import Generator
from typing import Final

from dcp.errors import FrameError
from dcp.wire.json_text import is_json_steps
from dcp.wire.xattr import join_xattrs, split_xattrs

_NOT_FIRST: Final = frozenset(
    bytes((byte,)) for byte in (*range(32), 127, *string.punctuation.encode()) if byte != ord("_")
)
"""Characters with which no xattr name begins: C's ``iscntrl`` and ``ispunct``, except ``_``."""


def without_xattrs(value: bytes) -> bytes:
    """Return the body of a value that has the XATTR bit."""
    return split_xattrs(value)[1] if value else value


def storable_body_steps(value: bytes) -> Generator[None, None, bytes]:
    """Check a value with the XATTR bit that a client stores, and return its body, in steps.

    A name cannot begin with punctuation: ``_`` is the system's, ``$`` means computed xattrs.

    Raises:
        FrameError: the xattr section is missing or malformed, a name is invalid, or an xattr is not
            JSON (kv_engine ``xattr/utils.cc``, ``xattr/key_validator.cc``).
    """
    xattrs, body = split_xattrs(value)
    for name, text in xattrs:
        if name[:1] in _NOT_FIRST or name == b"_":
            raise FrameError(
                f"xattr name: found {name!r}, expected one that begins with a letter, a digit, "
                "or _ and more"
            )
        if not (yield from is_json_steps(text)):
            raise FrameError(f"xattr {name!r}: found {text[:40]!r}, expected JSON")
    return body


def xattrs_only(value: bytes) -> bytes:
    """Return the xattr section of a value that has the XATTR bit."""
    return value[: len(value) - len(without_xattrs(value))]


def system_xattrs_only(value: bytes) -> bytes:
    """Return the section of the xattrs that start with ``_``, which deletions keep; or empty."""
    if not value:
        return value
    kept = tuple((name, text) for name, text in split_xattrs(value)[0] if name.startswith(b"_"))
    return join_xattrs(kept, b"") if kept else b""

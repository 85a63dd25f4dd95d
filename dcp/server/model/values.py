"""Stored values: splits off xattrs or the body.

A value is stored as in kv_engine: perhaps Snappy-compressed as a whole, perhaps with an xattr
section before the body (kv_engine ``docs/Document.md``). A deletion can have an empty value.
"""

from dcp.wire.xattr import join_xattrs, split_xattrs


def without_xattrs(value: bytes) -> bytes:
    """Return the body of a value that has the XATTR bit."""
    return split_xattrs(value)[1] if value else value


def xattrs_only(value: bytes) -> bytes:
    """Return the xattr section of a value that has the XATTR bit."""
    return value[: len(value) - len(without_xattrs(value))]


def system_xattrs_only(value: bytes) -> bytes:
    """Return the section of the xattrs that start with ``_``, which deletions keep; or empty."""
    if not value:
        return value
    kept = tuple((name, text) for name, text in split_xattrs(value)[0] if name.startswith(b"_"))
    return join_xattrs(kept, b"") if kept else b""

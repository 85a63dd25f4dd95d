"""The section of extended attributes in front of a document (datatype bit 0x04).

    u32 total                                        length of all pairs together
    per pair: u32 length, name, NUL, value, NUL      ``length`` counts from name to the last NUL

A name has 1 to 15 bytes; a first ``_`` makes it the system's. Source: kv_engine
``docs/Document.md``, ``include/xattr/blob.h``, ``xattr/utils.cc``.
"""

import json
from collections.abc import Iterable
from typing import Final

from dcp.errors import FrameError
from dcp.wire.json_text import is_json

MAX_NAME_BYTES: Final = 15
MAX_SYSTEM_BYTES: Final = 1024 * 1024
"""For system xattrs, in addition to the document's limit."""
MAX_USER_BYTES: Final = 20 * 1024 * 1024
"""For user xattrs, which count as part of the document."""

TRANSACTION_NAME: Final = "txn"
"""Couchbase transactions stage their changes here: system data, although the name has no ``_``."""

Xattrs = tuple[tuple[bytes, bytes], ...]
"""Names and values in their order. Values should be JSON, but nobody has checked it."""

_LENGTH_BYTES: Final = 4


def is_hidden(name: bytes) -> bool:
    """Return whether an xattr belongs to the system or a transaction."""
    return name.startswith(b"_") or name == TRANSACTION_NAME.encode()


def split_xattrs(value: bytes) -> tuple[Xattrs, bytes]:
    """Return the xattrs at the start of ``value``, and the document body after them.

    Raises:
        FrameError: lengths that do not add up, a missing NUL, an illegal name, or a section
            beyond the limits.
    """
    if len(value) < _LENGTH_BYTES:
        raise FrameError(f"xattr section: found a value of {len(value)} bytes, expected 4 or more")
    end = _LENGTH_BYTES + int.from_bytes(value[:_LENGTH_BYTES], "big")
    if end > len(value):
        raise FrameError(
            f"xattr section: found a length of {end - _LENGTH_BYTES}, "
            f"expected at most the {len(value) - _LENGTH_BYTES} bytes that follow"
        )
    pairs: list[tuple[bytes, bytes]] = []
    position = _LENGTH_BYTES
    while position < end:
        pair_at = position + _LENGTH_BYTES
        position = pair_at + int.from_bytes(value[position:pair_at], "big")
        if pair_at > end or position > end:
            raise FrameError(
                f"xattr pair {len(pairs)}: found an end at byte {max(pair_at, position)}, "
                f"expected one within the section's {end} bytes"
            )
        name, nul, rest = value[pair_at:position].partition(b"\0")
        if not nul or not rest.endswith(b"\0"):
            raise FrameError(
                f"xattr pair {len(pairs)}: found {position - pair_at} bytes without "
                "both NULs, expected name, NUL, value, NUL"
            )
        pairs.append((name, rest[:-1]))
    xattrs = tuple(pairs)
    problem = _problem_of(xattrs)
    if problem is not None:
        raise FrameError(problem)
    return xattrs, value[end:]


def join_xattrs(xattrs: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Return the value of a document with these xattrs; the inverse of ``split_xattrs``.

    Raises:
        ValueError: an illegal or repeated name, or sizes beyond the limits.
    """
    xattrs = tuple(xattrs)
    problem = _problem_of(xattrs)
    if problem is not None:
        raise ValueError(problem)
    pairs = b"".join(
        (len(name) + len(value) + 2).to_bytes(_LENGTH_BYTES, "big") + name + b"\0" + value + b"\0"
        for name, value in xattrs
    )
    return len(pairs).to_bytes(_LENGTH_BYTES, "big") + pairs + body


def xattrs_json(xattrs: Xattrs) -> str:
    r"""Return the xattrs as one JSON object, name to value.

    A value that is JSON stays unchanged. Any other becomes a JSON string, with bytes that are not
    UTF-8 as the four characters ``\xNN``.
    """
    members = (
        f"{json.dumps(name.decode(), ensure_ascii=False)}:{_json_of(value)}"
        for name, value in xattrs
    )
    return "{" + ",".join(members) + "}"


def _json_of(value: bytes) -> str:
    if is_json(value):
        return value.decode()
    return json.dumps(value.decode(errors="backslashreplace"), ensure_ascii=False)


def _problem_of(xattrs: Xattrs) -> str | None:
    sizes = {True: 0, False: 0}
    names: set[bytes] = set()
    for name, value in xattrs:
        if not 1 <= len(name) <= MAX_NAME_BYTES or b"\0" in name or not _is_text(name):
            return (
                f"xattr name: found {name[:40]!r} of {len(name)} bytes, expected 1 to "
                f"{MAX_NAME_BYTES} bytes of UTF-8 without NUL"
            )
        if name in names:
            return f"xattr name: found {name!r} twice, expected each name once"
        names.add(name)
        # kv_engine charges ``txn`` to the user's limit: its name has no ``_``.
        sizes[name.startswith(b"_")] += _LENGTH_BYTES + len(name) + len(value) + 2
    for is_system, most in ((True, MAX_SYSTEM_BYTES), (False, MAX_USER_BYTES)):
        if sizes[is_system] > most:
            kind = "system" if is_system else "user"
            return f"{kind} xattrs: found {sizes[is_system]} bytes, expected at most {most}"
    return None


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True

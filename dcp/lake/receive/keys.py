r"""Encodes document keys of any bytes as STRING, injectively.

Delta can neither cluster by BINARY nor keep statistics on it, so ``key`` is STRING. A DCP key is
any 0..250 bytes. The rule (PostgreSQL's notation for bytes):

* a key that is UTF-8 and does not begin with ``\x`` is itself; * any other key is ``\x`` and its
bytes in lower-case hexadecimal; ``key_bytes`` holds the bytes.

No two keys share a string: a string that begins with ``\x`` is always the second form. NUL and the
empty key are valid UTF-8 and stay themselves.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dcp.lake.receive.arrow_columns import Mask, mask_of

ESCAPE_PREFIX: Final = "\\x"
_ESCAPE_BYTES: Final = ESCAPE_PREFIX.encode()


def key_string(key: bytes) -> str:
    if not key.startswith(_ESCAPE_BYTES):
        try:
            return key.decode()
        except UnicodeDecodeError:
            pass
    return ESCAPE_PREFIX + key.hex()


def key_columns(keys: pa.BinaryArray) -> tuple[pa.StringArray, pa.BinaryArray]:
    """Return (``key``, ``key_bytes``) for an array of keys without nulls.

    ``key_bytes`` is null if ``key`` is the key itself. The usual array, without escaped keys, costs
    one pass of validation and no copy.
    """
    escaped_alike = pc.any(pc.starts_with(keys, pattern=_ESCAPE_BYTES)).as_py()
    if not escaped_alike:
        try:
            return keys.cast(pa.string()), pa.nulls(len(keys), pa.binary())
        except pa.ArrowInvalid:
            pass
    raw = keys.to_pylist()
    strings = [key_string(key) for key in raw]
    kept = [
        key if text.startswith(ESCAPE_PREFIX) else None
        for key, text in zip(raw, strings, strict=True)
    ]
    return pa.array(strings, pa.string()), pa.array(kept, pa.binary())


def matching(keys: pa.Array, expression: str) -> Mask:
    """Return the mask of keys in which a regular expression is found; a null is no key."""
    return mask_of(pc.match_substring_regex(keys, expression).fill_null(False))

"""Caches the salted passwords of SCRAM, which cost thousands of hashes each.

The nodes of a cluster use one salt per user at every connection. A salted password is as secret as
the password.
"""

import hashlib
from typing import Final

MOST_KEPT: Final = 16
"""The bound for a server that sends another salt each time."""

_Asked = tuple[str, bytes, bytes, int]


class SaltedPasswords:
    """Results by hash, password, salt and iterations. Any thread may use it."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[_Asked, bytes] = {}

    def __repr__(self) -> str:
        return f"SaltedPasswords({len(self._kept)})"

    def derive(self, hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        """Return PBKDF2 of a password (``Hi`` in RFC 5802)."""
        asked = hash_name, password, salt, iterations
        kept = self._kept
        if asked not in kept:
            found = hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)
            # The oldest results go first.
            newest = list(kept.items())[-(MOST_KEPT - 1) :]
            self._kept = kept = {**dict(newest), asked: found}  # another thread may read the old
        return kept[asked]

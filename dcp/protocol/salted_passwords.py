"""Caches the salted passwords of SCRAM, which cost thousands of hashes each.

The nodes of a cluster tell the same salt for a user, and each tells it again at every connection:
so the password is derived once for many connections. The result is as secret as the password.
"""

import hashlib
from typing import Final

MOST_KEPT: Final = 16
"""A server that tells another salt each time makes us forget, not grow."""

_Asked = tuple[str, bytes, bytes, int]


class SaltedPasswords:
    """Results by hash, password, salt and iterations; for any thread."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[_Asked, bytes] = {}

    def __repr__(self) -> str:
        return f"SaltedPasswords({len(self._kept)})"

    def derive(self, hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        """Return PBKDF2 of a password (RFC 5802's ``Hi``)."""
        asked = hash_name, password, salt, iterations
        kept = self._kept
        if asked not in kept:
            found = hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)
            newest = list(kept.items())[-(MOST_KEPT - 1) :]
            self._kept = kept = {**dict(newest), asked: found}  # never changed once it is seen
        return kept[asked]

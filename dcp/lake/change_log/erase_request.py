"""Parses requests to erase documents (``erase`` in the table ``control``).

A request names documents by the SHA-256 of their keys: the table of requests must not keep the keys
of documents that are to leave no trace.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from dcp.errors import ConfigError
from dcp.lake.change_log.control import ControlRequest, RequestAction, RequestState, options_object
from dcp.lake.store.sql import string_list

MOST_KEYS: Final = 10_000
"""More keys make a statement that Spark plans for minutes."""

_COLLECTION: Final = "collection"
_HASHES: Final = "keys_sha256"
_KEEP_OUT: Final = "keep_out"
_HASH: Final = re.compile(r"[0-9a-f]{64}")


def key_hash(key: str) -> str:
    """Return the SHA-256 of a key as the column ``key`` has it, as Spark's ``sha2(key, 256)``."""
    return sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Erasure:
    collection: str
    """scope.collection"""
    key_hashes: frozenset[str]
    """See `key_hash`."""
    keeps_out: bool = False
    """The documents are still at the source: the lake keeps their metadata, never their values."""

    def options(self) -> dict[str, Any]:
        """Return what `of` parses, before it becomes JSON."""
        told: dict[str, Any] = {_COLLECTION: self.collection, _HASHES: sorted(self.key_hashes)}
        return told | ({_KEEP_OUT: True} if self.keeps_out else {})

    @classmethod
    def of(cls, options: str | None) -> "Erasure":
        """Parse the column ``options`` of a request.

        Raises:
            ConfigError: it asks for unknown things, or for too many keys.
        """
        told, names = options_object(options), {_COLLECTION, _HASHES, _KEEP_OUT}
        if told is None or not {_COLLECTION, _HASHES} <= set(told) <= names:
            raise ConfigError(
                f"options: found {options!r:.200}, expected a JSON object of {_COLLECTION}, "
                f"{_HASHES} and perhaps {_KEEP_OUT}"
            )
        collection, hashes, keep_out = told[_COLLECTION], told[_HASHES], told.get(_KEEP_OUT, False)
        if not isinstance(collection, str) or collection.count(".") != 1:
            raise ConfigError(
                f"options: {_COLLECTION}: found {collection!r:.200}, expected scope.collection"
            )
        if not isinstance(keep_out, bool):
            raise ConfigError(
                f"options: {_KEEP_OUT}: found {keep_out!r:.200}, expected true or false"
            )
        if not isinstance(hashes, list) or not 0 < len(hashes) <= MOST_KEYS:
            found = f"{len(hashes):,}" if isinstance(hashes, list) else f"{hashes!r:.200}"
            raise ConfigError(
                f"options: {_HASHES}: found {found}, expected a list of 1 to {MOST_KEYS:,} hashes; "
                "ask several times for more"
            )
        for each in hashes:
            if not isinstance(each, str) or not _HASH.fullmatch(each):
                raise ConfigError(
                    f"options: {_HASHES}: found {each!r:.200}, expected the SHA-256 of a key in 64 "
                    "hexadecimal digits, lower case (Spark: sha2(key, 256))"
                )
        return cls(collection, frozenset(hashes), keep_out)

    def condition_sql(self, key: str = "key") -> str:
        """Return the condition, for Spark alone, that a column of keys has one of these."""
        return f"sha2({key}, 256) IN ({string_list(sorted(self.key_hashes))})"


def erasure_to_do(requests: Iterable[ControlRequest]) -> ControlRequest | None:
    """Return the oldest request to erase that a driver has begun."""
    for each in requests:
        if each.action == RequestAction.ERASE and each.state is RequestState.BEGUN:
            return each
    return None


def kept_out(requests: Iterable[ControlRequest]) -> dict[str, frozenset[str]]:
    """Return, by collection, the hashes of the keys whose values the lake must never hold."""
    found: dict[str, frozenset[str]] = {}
    for each in requests:
        if each.action == RequestAction.ERASE and each.state in (
            RequestState.BEGUN,
            RequestState.DONE,
        ):
            with suppress(ConfigError):
                erasure = Erasure.of(each.options)
                if erasure.keeps_out:
                    others = found.get(erasure.collection, frozenset())
                    found[erasure.collection] = others | erasure.key_hashes
    return found


def hashes_of(hashes: Mapping[str, frozenset[str]], collections: Iterable[str]) -> frozenset[str]:
    """Return the hashes of several collections; ``hashes`` as of `kept_out`."""
    return frozenset().union(*(hashes.get(name, ()) for name in collections))

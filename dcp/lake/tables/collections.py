"""Reads a bucket's collections manifest, and names a replica table for each collection.

Ids are hexadecimal texts in the manifest (kv_engine ``docs/Collections.md``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dcp.errors import ConfigError, RemoteProtocolError
from dcp.lake.tables.lake_tables import DOCS, LakeTables, ReplicaTable, known_replicas, replica_of
from dcp.suggestions import did_you_mean
from dcp.wire.json_tree import json_tree


@dataclass(frozen=True, slots=True)
class Collections:
    scopes: Mapping[int, str]
    """Scope names by id."""
    all: tuple[ReplicaTable, ...]
    """By their tables, which need not exist."""

    @property
    def names(self) -> set[str]:
        names = {name for each in self.all for name in each.setting_names}
        return names | set(self.scopes.values())

    def unknown(self, setting: str, name: str) -> ConfigError:
        names = self.names
        return ConfigError(
            f"{setting}: found {name!r}{did_you_mean(name, names)}, expected "
            f"scopes or collections of the bucket: {', '.join(sorted(names))}"
        )


_DEFAULT_ALONE: Final = Collections({0: "_default"}, (DOCS,))


def collections_of(manifest: bytes | None) -> Collections:
    """Return the scopes and collections of a manifest; None: the server has no collections.

    Raises:
        RemoteProtocolError: the manifest is malformed.
    """
    if manifest is None:
        return _DEFAULT_ALONE
    try:
        scopes = _list(json_tree(manifest), "scopes")
        found = [
            replica_of(_name(scope), _name(collection), _id(collection))
            for scope in scopes
            for collection in _list(scope, "collections")
        ]
        names = {_id(scope): _name(scope) for scope in scopes}
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(
            f"collections manifest: found {manifest[:200]!r}, expected named scopes and "
            f"collections with hexadecimal uids ({type(error).__name__}: {error})"
        ) from None
    if len({each.collection_id for each in found}) < len(found):
        raise RemoteProtocolError(
            f"collections manifest: found {manifest[:200]!r}, expected no collection twice"
        )
    return Collections(names, tuple(found))


def collections_in(lake: LakeTables) -> Collections:
    return Collections({}, known_replicas(lake))


def replicas_of(manifest: bytes | None) -> tuple[ReplicaTable, ...]:
    """Return a manifest's replica tables; the default one is always there, and first.

    Raises:
        RemoteProtocolError: the manifest is malformed.
    """
    others = (each for each in collections_of(manifest).all if each != DOCS)
    return (DOCS, *sorted(others, key=lambda each: each.collection_id))


def _name(value: Any) -> str:
    name = value["name"]
    if not isinstance(name, str):
        raise TypeError(f"name {name!r} is no text")
    return name


def _id(value: Any) -> int:
    found = int(value["uid"], 16)
    if not 0 <= found < 1 << 32:
        raise ValueError(f"uid {value['uid']!r} has no 32 bits")
    return found


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.100} is no object with {name}")
    entries = value.get(name, [])
    if not isinstance(entries, list):
        raise TypeError(f"{name} is no list")
    return entries

"""Derives the replica tables of a bucket from its manifest: one for each collection."""

from typing import Any

from dcp.errors import RemoteProtocolError
from dcp.lake.tables.tables import DOCS, ReplicaTable, replica_of
from dcp.wire.json_tree import json_tree


def replicas_of(manifest: bytes | None) -> tuple[ReplicaTable, ...]:
    """Return the replica tables of a collections manifest; the default one comes first and always.

    Ids are hexadecimal texts in the manifest (kv_engine ``docs/Collections.md``).

    Raises:
        RemoteProtocolError: the manifest is not what a server sends.

    """
    if manifest is None:
        return (DOCS,)
    try:
        found = [
            replica_of(_name(scope), _name(collection), _collection_id(collection))
            for scope in _list(json_tree(manifest), "scopes")
            for collection in _list(scope, "collections")
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(
            f"collections manifest: found {manifest[:200]!r}, expected scopes with named "
            f"collections and hexadecimal uids ({type(error).__name__}: {error})"
        ) from None
    if len(set(found)) < len(found):
        raise RemoteProtocolError(
            f"collections manifest: found {manifest[:200]!r}, expected no collection twice"
        )
    others = sorted((each for each in found if each != DOCS), key=lambda each: each.collection_id)
    return (DOCS, *others)


def _name(value: Any) -> str:
    name = value["name"]
    if not isinstance(name, str):
        raise TypeError(f"name {name!r} is no text")
    return name


def _collection_id(collection: Any) -> int:
    collection_id = int(collection["uid"], 16)
    if not 0 <= collection_id < 1 << 32:
        raise ValueError(f"uid {collection['uid']!r} has no 32 bits")
    return collection_id


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.100} is no object with {name}")
    entries = value.get(name, [])
    if not isinstance(entries, list):
        raise TypeError(f"{name} is no list")
    return entries

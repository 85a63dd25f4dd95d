"""Which replica tables a bucket has: one for each collection of its manifest."""

import json
from typing import Any

from dcp.errors import RemoteProtocolError
from dcp.lake.tables import DOCS, ReplicaTable, replica_of


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
            replica_of(scope["name"], collection["name"], int(collection["uid"], 16))
            for scope in _list(json.loads(manifest), "scopes")
            for collection in _list(scope, "collections")
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(
            f"collections manifest: found {manifest[:200]!r}, expected scopes with named "
            f"collections and hexadecimal uids ({type(error).__name__}: {error})"
        ) from None
    others = sorted((each for each in found if each != DOCS), key=lambda each: each.collection_id)
    return (DOCS, *others)


def _list(value: Any, name: str) -> list[Any]:
    entries = value.get(name, [])
    if not isinstance(entries, list):
        raise TypeError(f"{name} is no list")
    return entries

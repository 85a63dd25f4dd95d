"""Parses the JSON of GET_COLLECTIONS_MANIFEST, as another server sends it."""

from types import MappingProxyType
from typing import Any

from dcp.errors import RemoteProtocolError
from dcp.server.model.manifest import Collection, Manifest, Scope
from dcp.wire.json_tree import json_tree


def parse_manifest(data: bytes) -> Manifest:
    """Return the manifest; raise RemoteProtocolError, with the JSON, if it is malformed."""
    try:
        tree = json_tree(data)
        uid = int(tree["uid"], 16)
        scopes: dict[int, Scope] = {}
        collections: dict[int, Collection] = {}
        for scope in tree["scopes"]:
            scope_id = int(scope["uid"], 16)
            scopes[scope_id] = Scope(scope_id, _text(scope["name"]))
            for each in scope["collections"]:
                collection = _collection(each, scope_id)
                collections[collection.id] = collection
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteProtocolError(
            f"collections manifest: found {data[:200]!r} ({type(error).__name__}: {error}), "
            "expected uid and scopes, each with name, uid and collections"
        ) from None
    given = frozenset(scopes), frozenset(collections)
    return Manifest(uid, MappingProxyType(scopes), MappingProxyType(collections), *given)


def _collection(tree: dict[str, Any], scope_id: int) -> Collection:
    flush_uid = tree.get("flushUid", "0")
    ttl = tree.get("maxTTL")
    # ``isinstance`` would accept True.
    if ttl is not None and type(ttl) is not int:
        raise ValueError(f"maxTTL {ttl!r}")
    return Collection(int(tree["uid"], 16), _text(tree["name"]), scope_id, ttl, int(flush_uid, 16))


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError(f"name {found!r}")
    return found

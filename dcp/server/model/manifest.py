"""The manifest of a bucket: its scopes and collections, and the steps between manifests."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dcp.server.model.refused_error import RefusedError
from dcp.wire.system_event import (
    CollectionBegun,
    CollectionEnded,
    ManifestEvent,
    ScopeCreated,
    ScopeDropped,
)
from dcp.wire.vocabulary import Status

DEFAULT: Final = "_default"
DEFAULT_ID: Final = 0
"""Id of the default scope, and of its default collection."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A named set of collections."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Collection:
    """A named set of documents."""

    id: int
    name: str
    scope_id: int
    max_ttl_seconds: int | None = None
    """Upper bound of documents' expiry; None and 0: no bound."""
    flush_uid: int = 0
    """Uid of the manifest that last emptied it; 0: none did."""


_DEFAULT_SCOPE: Final = Scope(DEFAULT_ID, DEFAULT)
_DEFAULT_COLLECTION: Final = Collection(DEFAULT_ID, DEFAULT, DEFAULT_ID)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Immutable scopes and collections by id.

    The default scope always exists; the default collection can be dropped.
    """

    uid: int = 0
    scopes: Mapping[int, Scope] = field(
        default_factory=lambda: MappingProxyType({DEFAULT_ID: _DEFAULT_SCOPE})
    )
    collections: Mapping[int, Collection] = field(
        default_factory=lambda: MappingProxyType({DEFAULT_ID: _DEFAULT_COLLECTION})
    )
    given_scope_ids: frozenset[int] = frozenset()
    """Ids of all scopes that ever existed; none is given twice."""
    given_collection_ids: frozenset[int] = frozenset()

    def scope(self, name: str) -> Scope:
        """Return the scope of that name; an empty name means the default scope.

        Raises:
            RefusedError: UNKNOWN_SCOPE if there is none.
        """
        wanted = name or DEFAULT
        for scope in self.scopes.values():
            if scope.name == wanted:
                return scope
        known = ", ".join(scope.name for scope in self.scopes.values())
        raise RefusedError(Status.UNKNOWN_SCOPE, f"scope: found {name!r}, expected one of {known}")

    def collection(self, scope: str, name: str) -> Collection:
        """Return a collection by the names of its scope and itself; empty names mean the defaults.

        Raises:
            RefusedError: UNKNOWN_SCOPE if there is no such scope, UNKNOWN_COLLECTION if the scope
                has no such collection.
        """
        wanted = name or DEFAULT
        members = list(self.collections_of(self.scope(scope).id))
        for collection in members:
            if collection.name == wanted:
                return collection
        known = ", ".join(member.name for member in members) or "none: the scope is empty"
        raise RefusedError(
            Status.UNKNOWN_COLLECTION,
            f"collection: found {name!r} in scope {scope or DEFAULT}, expected one of {known}",
        )

    def at(self, path: str) -> Collection:
        """Return the collection at a path ``scope.collection``; either name may be empty.

        Raises:
            RefusedError: EINVAL if the path has another form; else as ``collection``.
        """
        scope, dot, name = path.partition(".")
        if not dot or "." in name:
            raise RefusedError(Status.EINVAL, f"path: found {path!r}, expected scope.collection")
        return self.collection(scope, name)

    def collections_of(self, scope_id: int) -> Iterator[Collection]:
        return (each for each in self.collections.values() if each.scope_id == scope_id)

    def with_scope(self, scope: Scope) -> "Manifest":
        return replace(self, scopes=MappingProxyType({**self.scopes, scope.id: scope}))

    def without_scope(self, scope_id: int) -> "Manifest":
        left = {id_: scope for id_, scope in self.scopes.items() if id_ != scope_id}
        return replace(self, scopes=MappingProxyType(left))

    def with_collection(self, collection: Collection) -> "Manifest":
        """Return the manifest with one more collection, or another one under its id."""
        collections = {**self.collections, collection.id: collection}
        return replace(self, collections=MappingProxyType(collections))

    def without_collection(self, collection_id: int) -> "Manifest":
        left = {id_: each for id_, each in self.collections.items() if id_ != collection_id}
        return replace(self, collections=MappingProxyType(left))

    def as_json(self) -> bytes:
        """Return the JSON for GET_COLLECTIONS_MANIFEST; its uids are hexadecimal."""
        scopes = [
            {
                "collections": [_as_tree(each) for each in self.collections_of(scope.id)],
                "name": scope.name,
                "uid": f"{scope.id:x}",
            }
            for scope in _default_last(self)
        ]
        tree = {"scopes": scopes, "uid": f"{self.uid:x}"}
        return json.dumps(tree, separators=(",", ":")).encode()

    def after(self, event: ManifestEvent) -> "Manifest":
        uid = event.manifest_uid
        at = replace(self, uid=uid)
        match event:
            case ScopeCreated():
                given = self.given_scope_ids | {event.scope_id}
                scope = Scope(event.scope_id, event.name.decode())
                return replace(at.with_scope(scope), given_scope_ids=given)
            case ScopeDropped():
                return at.without_scope(event.scope_id)
            case CollectionBegun():
                given = self.given_collection_ids | {event.collection_id}
                begun = Collection(
                    event.collection_id,
                    event.name.decode(),
                    event.scope_id,
                    event.max_ttl_seconds,
                    flush_uid=uid if event.collection_id in self.collections else 0,
                )
                return replace(at.with_collection(begun), given_collection_ids=given)
            case CollectionEnded():
                return at.without_collection(event.collection_id)
        return at

    def steps(self, to: "Manifest") -> "list[Step]":
        """Return the system events that lead to another manifest, with the manifest after each."""
        found: list[Step] = []
        at = self
        # kv_engine's order: scopes come, collections go, collections come, scopes go
        # (``engines/ep/src/collections/vbucket_manifest.cc``).
        changes = [*_scopes_come(self, to), *_collections_go(self, to)]
        changes += [*_collections_come(self, to), *_scopes_go(self, to)]
        for number, event in enumerate(changes, 1):
            # Only the last event carries the new uid: a consumer that stops earlier knows that it
            # is not up to date.
            is_last = number == len(changes)
            at = to if is_last else _after(at, event, to)
            found.append((replace(event, manifest_uid=to.uid) if is_last else event, at))
        return found


FIRST: Final = Manifest()
"""The manifest of every new bucket."""
Step = tuple[ManifestEvent, Manifest]
"""A system event, and the vbucket's manifest after it."""


def _as_tree(collection: Collection) -> dict[str, str | int]:
    ttl = collection.max_ttl_seconds
    tree: dict[str, str | int] = {} if ttl is None else {"maxTTL": ttl}
    return {**tree, "name": collection.name, "uid": f"{collection.id:x}"}


def _default_last(manifest: Manifest) -> list[Scope]:
    """Return the scopes in the order in which real servers were seen to list them."""
    return sorted(manifest.scopes.values(), key=lambda scope: (scope.id == DEFAULT_ID, scope.id))


def _scopes_come(old: Manifest, new: Manifest) -> Iterator[ManifestEvent]:
    for scope in new.scopes.values():
        if scope.id not in old.scopes:
            yield ScopeCreated(old.uid, scope.id, scope.name.encode())


def _collections_go(old: Manifest, new: Manifest) -> Iterator[ManifestEvent]:
    for collection in sorted(old.collections.values(), key=lambda each: -each.id):
        if collection.id not in new.collections:
            yield CollectionEnded(old.uid, collection.scope_id, collection.id)


def _collections_come(old: Manifest, new: Manifest) -> Iterator[ManifestEvent]:
    for scope in _default_last(new):
        for collection in new.collections_of(scope.id):
            before = old.collections.get(collection.id)
            # A flushed collection begins anew under its id.
            if before is None or before.flush_uid != collection.flush_uid:
                yield CollectionBegun(
                    old.uid,
                    scope.id,
                    collection.id,
                    collection.name.encode(),
                    collection.max_ttl_seconds,
                )


def _scopes_go(old: Manifest, new: Manifest) -> Iterator[ManifestEvent]:
    for scope in old.scopes.values():
        if scope.id not in new.scopes:
            yield ScopeDropped(old.uid, scope.id)


def _after(at: Manifest, event: ManifestEvent, to: Manifest) -> Manifest:
    match event:
        case ScopeCreated():
            return at.with_scope(to.scopes[event.scope_id])
        case ScopeDropped():
            return at.without_scope(event.scope_id)
        case CollectionBegun():
            return at.with_collection(to.collections[event.collection_id])
        case CollectionEnded():
            return at.without_collection(event.collection_id)
    raise AssertionError(f"manifest: {type(event).__name__} is no step")

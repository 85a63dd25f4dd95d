"""Changes of a manifest: create, drop and flush scopes and collections.

``on`` returns the changed manifest, still with its old uid. It raises RefusedError if the change is
invalid.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dcp.server.model.manifest import (
    DEFAULT_ID,
    Collection,
    Manifest,
    Scope,
)
from dcp.server.model.refused_error import RefusedError
from dcp.types import U32_MAX
from dcp.wire.vocabulary import Status

FIRST_USER_ID: Final = 8
"""Lower ids belong to the server (kv_engine ``docs/Collections.md``)."""
MAX_COLLECTIONS: Final = 1200
"""Most collections, and most scopes, that Couchbase allows in a bucket."""
MAX_TTL_SECONDS: Final = 2**31 - 1
# Couchbase's rule: 1 to 251 characters; names with _ or % in front belong to the system.
_NAME: Final = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_%-]{0,250}")


@dataclass(frozen=True, slots=True)
class CreateScope:
    """Creates an empty scope; without ``id`` it gets the next free one."""

    name: str
    id: int | None = None

    def on(self, manifest: Manifest) -> Manifest:
        _check_new("scope", self.name, [scope.name for scope in manifest.scopes.values()])
        given = manifest.given_scope_ids
        number = _new_id("scope", self.id, given)
        return replace(
            manifest.with_scope(Scope(number, self.name)), given_scope_ids=given | {number}
        )


@dataclass(frozen=True, slots=True)
class DropScope:
    """Drops a scope and its collections; the default scope cannot be dropped."""

    name: str

    def on(self, manifest: Manifest) -> Manifest:
        scope = manifest.scope(self.name)
        if scope.id == DEFAULT_ID:
            raise RefusedError(
                Status.EINVAL, f"drop scope: found {scope.name}, which cannot be dropped"
            )
        # The collections go first: no collection may be without its scope.
        for collection in list(manifest.collections_of(scope.id)):
            manifest = manifest.without_collection(collection.id)
        return manifest.without_scope(scope.id)


@dataclass(frozen=True, slots=True)
class CreateCollection:
    """Creates an empty collection; without ``id`` it gets the next free one."""

    scope: str
    name: str
    max_ttl_seconds: int | None = None
    id: int | None = None

    def on(self, manifest: Manifest) -> Manifest:
        scope = manifest.scope(self.scope)
        siblings = [each.name for each in manifest.collections_of(scope.id)]
        _check_new("collection", self.name, siblings)
        if len(manifest.collections) >= MAX_COLLECTIONS:
            raise RefusedError(
                Status.EINVAL, f"collections: expected at most {MAX_COLLECTIONS} of them"
            )
        ttl = self.max_ttl_seconds
        if ttl is not None and not 0 <= ttl <= MAX_TTL_SECONDS:
            raise RefusedError(
                Status.EINVAL, f"max_ttl: found {ttl}, expected 0 to {MAX_TTL_SECONDS} seconds"
            )
        given = manifest.given_collection_ids
        number = _new_id("collection", self.id, given)
        collection = Collection(number, self.name, scope.id, ttl)
        return replace(manifest.with_collection(collection), given_collection_ids=given | {number})


@dataclass(frozen=True, slots=True)
class DropCollection:
    """Drops a collection and all its documents."""

    scope: str
    name: str

    def on(self, manifest: Manifest) -> Manifest:
        return manifest.without_collection(manifest.collection(self.scope, self.name).id)


@dataclass(frozen=True, slots=True)
class FlushCollection:
    """Drops all documents of a collection, which begins anew under its id."""

    scope: str
    name: str

    def on(self, manifest: Manifest) -> Manifest:
        found = manifest.collection(self.scope, self.name)
        return manifest.with_collection(replace(found, flush_uid=manifest.uid + 1))


ManifestChange = CreateScope | DropScope | CreateCollection | DropCollection | FlushCollection


def changed(manifest: Manifest, changes: Sequence[ManifestChange]) -> Manifest:
    """Return the manifest after all changes, under one new uid.

    Raises:
        RefusedError: a change is invalid (EINVAL), or names a scope or collection that does not
            exist (UNKNOWN_SCOPE, UNKNOWN_COLLECTION).
    """
    for change in changes:
        manifest = change.on(manifest)
    return replace(manifest, uid=manifest.uid + 1)


def _check_new(what: str, name: str, taken: Sequence[str]) -> None:
    if not _NAME.fullmatch(name):
        raise RefusedError(
            Status.EINVAL,
            f"{what} name: found {name!r}, expected 1 to 251 of A-Z a-z 0-9 _ - %, "
            "not beginning with _ or %",
        )
    if name in taken:
        raise RefusedError(Status.EINVAL, f"{what} {name}: found one of that name, expected none")
    if len(taken) >= MAX_COLLECTIONS:
        raise RefusedError(Status.EINVAL, f"{what}s: found {len(taken)}, expected fewer")


def _new_id(what: str, chosen: int | None, given: frozenset[int]) -> int:
    # An id is never used twice: consumers would mix the documents of two collections.
    number = max(given, default=FIRST_USER_ID - 1) + 1 if chosen is None else chosen
    if not FIRST_USER_ID <= number <= U32_MAX:
        raise RefusedError(
            Status.EINVAL, f"{what} id: found {number}, expected {FIRST_USER_ID} to {U32_MAX}"
        )
    if number in given:
        raise RefusedError(
            Status.EINVAL, f"{what} id: found {number:#x}, expected an id that was never used"
        )
    return number

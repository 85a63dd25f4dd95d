from collections.abc import Iterable, Mapping, Set
from types import MappingProxyType
from typing import Any, TypeVar

from dcp.server.model.manifest import FIRST, Collection, Manifest, Scope

T = TypeVar("T")
Row = dict[str, Any]
"""One manifest as JSON: its number, and its difference to the row above. Given ids are listed if
they were given, or not given, in that step."""


class ManifestTable:
    """Numbers the manifests of a bucket; vbuckets save numbers instead of whole manifests.

    The table is saved once for the bucket, with one row for each manifest. A forgotten number is
    not used again. Number 0 is the manifest of every new bucket.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        """Restore a table from its ``rows``."""
        # By number, ascending. The first manifest has no row.
        self._manifests = {0: FIRST}
        self._rows: dict[int, Row] = {}
        self._numbers = {id(FIRST): 0}
        self._by_uid: dict[int, list[int]] = {FIRST.uid: [0]}
        before = FIRST
        for row in rows:
            before = _after(before, row)
            self._add(row["number"], before, row)

    def __getitem__(self, number: int) -> Manifest:
        """Return a manifest by its number; raise KeyError if no manifest has it."""
        return self._manifests[number]

    def __contains__(self, number: int) -> bool:
        return number in self._manifests

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    @property
    def _last(self) -> int:
        return next(reversed(self._manifests))

    def add(self, manifest: Manifest) -> None:
        """Give a manifest a number, unless an equal one has one."""
        if self.find(manifest) is None:
            last = self._last
            self._add(last + 1, manifest, _row(last + 1, self[last], manifest))

    def _add(self, number: int, manifest: Manifest, row: Row) -> None:
        self._numbers[id(manifest)] = number
        self._by_uid.setdefault(manifest.uid, []).append(number)
        self._manifests[number] = manifest  # the reference keeps ``id`` from being reused
        self._rows[number] = row

    def keep(self, numbers: Set[int]) -> None:
        """Forget all manifests but these numbers, the first and the last one."""
        # The last one stays, so its number is not given again.
        gone = self._manifests.keys() - numbers - {0, self._last}
        for number in gone:
            manifest = self._manifests.pop(number)
            del self._rows[number]
            del self._numbers[id(manifest)]
            self._by_uid[manifest.uid].remove(number)
            if not self._by_uid[manifest.uid]:
                del self._by_uid[manifest.uid]
        before = 0
        for number in self._rows:  # a row after a forgotten one needs a new difference
            if not gone.isdisjoint(range(before + 1, number)):
                self._rows[number] = _row(number, self[before], self[number])
            before = number

    def number_given(self, manifest: Manifest) -> int | None:
        """Return the number of this very object; None for an equal one, too."""
        return self._numbers.get(id(manifest))

    def find(self, manifest: Manifest) -> int | None:
        """Return the number of a manifest or its equal; None if neither was added."""
        number = self._numbers.get(id(manifest))
        if number is not None:
            return number
        of_uid = self._by_uid.get(manifest.uid, ())
        return next((each for each in of_uid if self[each] == manifest), None)

    def number(self, manifest: Manifest) -> int:
        """Return the number of a manifest or its equal; raise KeyError if neither was added."""
        number = self.find(manifest)
        if number is None:
            raise KeyError(f"manifest {manifest.uid:x}: never added")
        return number


def _row(number: int, old: Manifest, new: Manifest) -> Row:
    scopes_gone, scopes = _changes(old.scopes, new.scopes)
    collections_gone, collections = _changes(old.collections, new.collections)
    return {
        "number": number,
        "uid": new.uid,
        "scopes_gone": scopes_gone,
        "scopes": [[scope.id, scope.name] for scope in scopes],
        "collections_gone": collections_gone,
        "collections": [
            [each.id, each.name, each.scope_id, each.max_ttl_seconds, each.flush_uid]
            for each in collections
        ],
        "given_scope_ids": sorted(old.given_scope_ids ^ new.given_scope_ids),
        "given_collection_ids": sorted(old.given_collection_ids ^ new.given_collection_ids),
    }


def _changes(old: Mapping[int, T], new: Mapping[int, T]) -> tuple[list[int], list[T]]:
    """Return the removed ids and the added values.

    If applying them would change the order, all ids go and all values come.
    """
    gone = [key for key in old if key not in new]
    came = {key: value for key, value in new.items() if old.get(key) != value}
    order = list({key: None for key in (*old, *came) if key in new})
    return (gone, list(came.values())) if order == list(new) else (list(old), list(new.values()))


def _after(old: Manifest, row: Row) -> Manifest:
    scopes = {id_: scope for id_, scope in old.scopes.items() if id_ not in row["scopes_gone"]}
    scopes |= {id_: Scope(id_, name) for id_, name in row["scopes"]}
    gone = row["collections_gone"]
    collections = {id_: each for id_, each in old.collections.items() if id_ not in gone}
    collections |= {fields[0]: Collection(*fields) for fields in row["collections"]}
    return Manifest(
        row["uid"],
        MappingProxyType(scopes),
        MappingProxyType(collections),
        old.given_scope_ids ^ frozenset(row["given_scope_ids"]),
        old.given_collection_ids ^ frozenset(row["given_collection_ids"]),
    )

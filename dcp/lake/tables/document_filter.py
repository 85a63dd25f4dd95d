"""Resolves a lake's filter against a bucket's collections: which documents it wants.

What a filter leaves out is dropped where it is received: nodes send it all the same. So a filtered
lake sees every drop, flush and new collection, stands where the vbuckets stand however seldom its
own documents change, and meets no rollback that a lake of all documents would not.

The state of each vbucket has the fingerprint of the filter that its rows passed. One that was read
with another filter than that of now is read anew, from its beginning, in a new epoch.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Final

from dcp.errors import ConfigError
from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.tables.collections import Collections, ManifestCollection, collections_of
from dcp.lake.tables.tables import DOCS, ReplicaTable, replica_of
from dcp.suggestions import did_you_mean

_FINGERPRINT_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class DocumentFilter:
    """The documents that a lake wants.

    ``wanted`` says of each collection of the bucket whether it is one of them; ``scopes`` has the
    names of scopes by id. ``fingerprint`` is None where nothing is filtered.
    """

    rules: FilterSettings
    scopes: Mapping[int, str] = field(default_factory=dict)
    wanted: Mapping[int, bool] = field(default_factory=dict)
    fingerprint: str | None = None

    def has_table(self, replica: ReplicaTable) -> bool:
        """Return whether a lake has this table: ``docs`` always, others where they are wanted."""
        return replica == DOCS or self.wanted.get(replica.collection_id, True)

    def wants(self, collection: ManifestCollection) -> bool:
        """Return whether the names of a collection are wanted."""
        include, exclude = self.rules.include_collections, self.rules.exclude_collections
        is_included = not include or any(name in include for name in collection.names)
        return is_included and not any(name in exclude for name in collection.names)

    @classmethod
    def resolve(
        cls, rules: FilterSettings, manifest: bytes | None, tables: Collection[ReplicaTable] = ()
    ) -> "DocumentFilter":
        """Return the filter for the collections that a bucket has now.

        ``tables`` are the lake's: names may be those of collections that were dropped.

        Raises:
            ConfigError: a name that neither the bucket has, nor a table of the lake.
            RemoteProtocolError: the manifest is not what a server sends.

        """
        if rules == EVERYTHING.rules:
            return EVERYTHING
        collections = collections_of(manifest)
        _refuse_unknown(rules, collections, tables)
        told = json.dumps({name: _sorted(value) for name, value in asdict(rules).items()})
        fingerprint = sha256(told.encode()).hexdigest()[:_FINGERPRINT_DIGITS]
        found = cls(rules, collections.scopes, {}, fingerprint)
        wanted = {each.collection_id: found.wants(each) for each in collections.all}
        return cls(rules, collections.scopes, wanted, fingerprint)


EVERYTHING: Final = DocumentFilter(FilterSettings(exclude_keys="", system_xattrs=True))
"""No filter."""


def _sorted(value: str | bool | tuple[str, ...]) -> str | bool | list[str]:
    return sorted(set(value)) if isinstance(value, tuple) else value


def _refuse_unknown(
    rules: FilterSettings, collections: Collections, tables: Collection[ReplicaTable]
) -> None:
    names = {name for each in collections.all for name in each.names}
    names |= set(collections.scopes.values())
    for setting in ("include_collections", "exclude_collections"):
        for name in getattr(rules, setting):
            if name not in names and not any(_is_of(table, name) for table in tables):
                raise ConfigError(
                    f"filter.{setting}: found {name!r}{did_you_mean(name, names)}, expected "
                    f"scopes or collections of the bucket: {', '.join(sorted(names))}"
                )


def _is_of(table: ReplicaTable, name: str) -> bool:
    """Return whether a table holds a collection that goes by a name, as far as it shows."""
    scope, _, collection = name.partition(".")
    like = replica_of(scope, collection, 1).name.removesuffix("1").removesuffix("__")
    return table.name.startswith(like + "__" if collection else like)

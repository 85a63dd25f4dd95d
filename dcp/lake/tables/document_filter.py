"""Resolves a lake's filter against a bucket's collections: which documents it wants.

What a filter leaves out is dropped where it is received: nodes send it all the same. So a filtered
lake sees every drop, flush and new collection, stands where the vbuckets stand however seldom its
own documents change, and meets no rollback that a lake of all documents would not.

The state of each vbucket has the fingerprint of the filter that its rows passed. One that was read
with another filter than that of now is read anew, from its beginning, in a new epoch.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Final

from dcp.errors import ConfigError
from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.tables.collections import Collections, collections_in, collections_of
from dcp.lake.tables.lake_tables import DOCS, LakeTables, ReplicaTable
from dcp.lake.tables.vbucket_state import VbucketProgress
from dcp.suggestions import did_you_mean
from dcp.wire.xattr import TRANSACTION_NAME

_FINGERPRINT_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class DocumentFilter:
    rules: FilterSettings
    scopes: Mapping[int, str] = field(default_factory=dict)
    """Names of scopes by id."""
    is_wanted: Mapping[int, bool] = field(default_factory=dict)
    """By a collection's id."""
    fingerprint: str | None = None
    """None without a filter."""

    def has_table(self, replica: ReplicaTable) -> bool:
        """Return whether a lake has this table: ``docs`` always, others if they are wanted."""
        return replica == DOCS or self.is_wanted.get(replica.collection_id, True)

    def has_read(self, state: VbucketProgress) -> bool:
        """Return whether all rows that were read of a vbucket passed this filter.

        The filter includes where a vbucket starts.
        """
        is_unread = state.position.seqno == 0 and state.start_seqno is None
        return is_unread or state.filter_fingerprint == self.fingerprint

    @classmethod
    def resolve(
        cls,
        rules: FilterSettings,
        manifest: bytes | None,
        gone: Callable[[], Collection[str]] = tuple,
    ) -> "DocumentFilter":
        """Return the filter for the present collections of a bucket.

        ``gone`` is called only if the bucket lacks a name. It returns the names that the lake
        knows, those of dropped collections among them.

        Raises:
            ConfigError: neither the bucket nor the lake knows a name to include.
            RemoteProtocolError: no server sends such a manifest.
        """
        if rules == EVERYTHING.rules:
            return EVERYTHING
        collections = collections_of(manifest)
        _refuse_unknown(rules.include_collections, collections, gone)
        is_wanted = {each.collection_id: rules.wants(each.names) for each in collections.all}
        return cls(rules, collections.scopes, is_wanted, _fingerprint(rules))


def filter_of(lake: LakeTables, rules: FilterSettings, manifest: bytes | None) -> DocumentFilter:
    return DocumentFilter.resolve(rules, manifest, lambda: collections_in(lake).names)


EVERYTHING: Final = DocumentFilter(FilterSettings(exclude_keys="", system_xattrs=True))


def _fingerprint(rules: FilterSettings) -> str:
    """Return a hash of the rules' effect, however they are written.

    It omits a rule that filters nothing, so that rules of later versions change no hash.
    """
    told: dict[str, object] = {}
    for rule in fields(rules):
        value = getattr(rules, rule.name)
        if value != getattr(EVERYTHING.rules, rule.name):
            told[rule.name] = sorted(set(value)) if isinstance(value, tuple) else value
    if rules.since_ns:
        told["since"] = rules.since_ns
    if not rules.system_xattrs:
        told["system_xattrs"] = ["_*", TRANSACTION_NAME]
    text = json.dumps(told, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:_FINGERPRINT_DIGITS]


def _refuse_unknown(
    include: Iterable[str], collections: Collections, gone: Callable[[], Collection[str]]
) -> None:
    names = collections.names
    unknown = [name for name in include if name not in names]
    known = gone() if unknown else ()
    for name in unknown:
        if name not in known:
            raise ConfigError(
                f"filter.include_collections: found {name!r}{did_you_mean(name, names)}, expected "
                f"scopes or collections of the bucket: {', '.join(sorted(names))}"
            )

"""Resolves a lake's filter and privacy rules against a bucket's collections.

Nodes send all documents; the receiver drops those that the filter excludes. A filtered lake
therefore receives every flush, drop and new collection, and its positions follow the vbuckets. It
meets no more rollbacks than a lake of all documents.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Final

from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.config.privacy_settings import PrivacySettings
from dcp.lake.config.settings import Settings
from dcp.lake.tables.collections import Collections, collections_in, collections_of
from dcp.lake.tables.lake_tables import DOCS, LakeTables, ReplicaTable, replica_of
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.protocol.events import SystemEventReceived
from dcp.wire.system_event import CollectionBegun, ScopeCreated
from dcp.wire.xattr import TRANSACTION_NAME

_FINGERPRINT_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class DocumentFilter:
    rules: FilterSettings
    scopes: Mapping[int, str] = field(default_factory=dict)
    """Scope names by id."""
    names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By collection id: the name of its scope, and its own."""
    fingerprint: str | None = None
    """None without a filter.

    Each vbucket's state has the fingerprint of the filter that its rows passed. If it differs, the
    vbucket is read again from its beginning, in a new epoch.
    """
    # Not in the fingerprint: changed privacy rules apply to later documents only.
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    kept_out: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By collection, hashes of the keys whose values never land (`dcplake erase --keep-out`)."""

    def keeping_out(
        self, kept_out: Mapping[str, frozenset[str]], there: Collections
    ) -> "DocumentFilter":
        """Return the same, which keeps these values out; ``there`` are the present collections."""
        if not kept_out:
            return self
        names = {each.collection_id: each.setting_names for each in there.all}
        return replace(self, scopes=there.scopes, names=names, kept_out=kept_out)

    @property
    def is_wanted(self) -> Mapping[int, bool]:
        return {each: self.rules.wants(names) for each, names in self.names.items()}

    def with_event(self, event: SystemEventReceived) -> "DocumentFilter":
        meaning = event.meaning
        if isinstance(meaning, ScopeCreated) and meaning.scope_id not in self.scopes:
            return replace(self, scopes={**self.scopes, meaning.scope_id: meaning.name.decode()})
        if isinstance(meaning, CollectionBegun) and meaning.scope_id in self.scopes:
            scope, name = self.scopes[meaning.scope_id], meaning.name.decode()
            names = replica_of(scope, name, meaning.collection_id).setting_names
            if self.names.get(meaning.collection_id) != names:  # each vbucket sends the event
                return replace(self, names={**self.names, meaning.collection_id: names})
        return self

    def has_table(self, replica: ReplicaTable) -> bool:
        """Return whether the lake has this table: ``docs`` always, others if wanted."""
        return replica == DOCS or self.rules.wants(replica.setting_names)

    def has_read(self, state: LakeVbucketState) -> bool:
        """Return whether all rows of a vbucket passed this filter, from its start seqno on."""
        is_unread = state.position.seqno == 0 and state.start_seqno is None
        return is_unread or state.filter_fingerprint == self.fingerprint

    @classmethod
    def resolve(
        cls,
        rules: FilterSettings,
        manifest: bytes | None,
        gone: Callable[[], Collection[str]] = tuple,
        privacy: PrivacySettings = PrivacySettings(),  # noqa: B008 -- it is frozen
    ) -> "DocumentFilter":
        """Return the filter for the present collections of a bucket.

        ``gone`` is called only if the bucket lacks a name. It returns the names that the lake
        knows, including those of dropped collections.

        Raises:
            ConfigError: neither the bucket nor the lake has a name that the settings include, or
                that has privacy rules.
            RemoteProtocolError: the manifest is malformed.
        """
        is_filtered = rules != EVERYTHING.rules
        if not is_filtered and not privacy.rules:
            return EVERYTHING
        collections = collections_of(manifest)
        included = rules.include_collections
        _refuse_unknown("filter.include_collections", included, collections, gone)
        _refuse_unknown("privacy.rules", sorted(privacy.names), collections, gone)
        names = {each.collection_id: each.setting_names for each in collections.all}
        fingerprint = _fingerprint(rules) if is_filtered else None
        return cls(rules, collections.scopes, names, fingerprint, privacy)


def filter_of(
    lake: LakeTables | None, settings: Settings, manifest: bytes | None
) -> DocumentFilter:
    """Return the filter and privacy rules for a lake, whose collections may have been dropped.

    ``lake`` is None if there is none yet.

    Raises:
        ConfigError: see `DocumentFilter.resolve`.
    """

    def gone() -> Collection[str]:
        return () if lake is None else collections_in(lake).names

    return DocumentFilter.resolve(settings.filter, manifest, gone, settings.privacy)


EVERYTHING: Final = DocumentFilter(FilterSettings(exclude_keys="", system_xattrs=True))


def _fingerprint(rules: FilterSettings) -> str:
    """Return a hash of the rules' effect, independent of their spelling and order."""
    told: dict[str, object] = {}
    for rule in fields(rules):
        value = getattr(rules, rule.name)
        # Only rules with an effect count, so that a new setting changes no existing hash.
        if value != getattr(EVERYTHING.rules, rule.name):
            told[rule.name] = sorted(set(value)) if isinstance(value, tuple) else value
    if rules.since_ns:
        told["since"] = rules.since_ns
    if not rules.system_xattrs:
        told["system_xattrs"] = ["_*", TRANSACTION_NAME]
    text = json.dumps(told, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:_FINGERPRINT_DIGITS]


def _refuse_unknown(
    setting: str,
    wanted: Iterable[str],
    collections: Collections,
    gone: Callable[[], Collection[str]],
) -> None:
    names = collections.names
    unknown = [name for name in wanted if name not in names]
    known = gone() if unknown else ()
    for name in unknown:
        if name not in known:
            raise collections.unknown(setting, name)

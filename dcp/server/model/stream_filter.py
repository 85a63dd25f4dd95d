"""Filters a stream's items: everything, the default collection, some collections, or a scope.

    kind          requested by                    passes
    LEGACY        a client without Collections    documents of the default collection
    EVERYTHING    no value, or one without names  everything
    COLLECTIONS   ``collections``                 their items and their system events
    SCOPE         ``scope``                       the same for all its collections, later ones too,
                                                  and the scope's own events

Source: kv_engine ``engines/ep/src/collections/vbucket_filter.cc``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from dcp.server.model.manifest import DEFAULT_ID
from dcp.server.model.versions import Version
from dcp.wire.system_event import CollectionBegun, CollectionEnded, ManifestEvent, ScopeDropped
from dcp.wire.vocabulary import EndReason


class FilterKind(Enum):
    LEGACY = "legacy"
    EVERYTHING = "everything"
    COLLECTIONS = "collections"
    SCOPE = "scope"


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """The filter of a stream, and the other values in its request; immutable.

    ``stream_request_value.py`` parses it.
    """

    kind: FilterKind = FilterKind.EVERYTHING
    collections: frozenset[int] = frozenset()
    scope: int | None = None
    purge_seqno: int = 0
    """Seqno up to which the client knows all deletions."""
    stream_id: int | None = None
    """Distinguishes the client's streams of one vbucket."""
    sync_writes: bool = False
    """True: prepares and aborts pass, too."""
    is_empty: bool = False
    """True once all that the filter names was dropped: its stream ends."""

    @property
    def is_pass_through(self) -> bool:
        return self.kind is FilterKind.EVERYTHING

    @property
    def end_reason(self) -> EndReason:
        # Clients without Collections do not know FILTER_EMPTY.
        return EndReason.OK if self.kind is FilterKind.LEGACY else EndReason.FILTER_EMPTY

    def passes_collection(self, collection: int) -> bool:
        return self.is_pass_through or collection in self.collections

    def passes(self, version: Version) -> bool:
        """Return True if an item passes; ``self`` is the filter before the item."""
        if version.event is not None:
            return self._passes_event(version.event)
        if not (version.is_visible or self.sync_writes):
            return False
        return self.passes_collection(version.collection)

    def after(self, version: Version) -> "StreamFilter":
        """Return the filter after an item, passed or not: system events change it."""
        event = version.event
        if event is None or self.is_pass_through:
            return self
        match event:
            case CollectionBegun() if self.kind is FilterKind.SCOPE:
                if event.scope_id == self.scope:
                    return replace(self, collections=self.collections | {event.collection_id})
            case CollectionEnded() if event.collection_id in self.collections:
                left = self.collections - {event.collection_id}
                ends = not left and self.kind is not FilterKind.SCOPE
                return replace(self, collections=left, is_empty=ends)
            case ScopeDropped() if event.scope_id == self.scope:
                return replace(self, is_empty=True)
        return self

    def split(self, versions: Iterable[Version]) -> tuple[list[Version], "StreamFilter"]:
        """Return the items of a snapshot that pass, and the filter after the last item."""
        passed = []
        at = self
        for version in versions:
            if at.passes(version):
                passed.append(version)
            at = at.after(version)
        return passed, at

    def high_seqno(self, high_seqnos: Mapping[int, int]) -> int | None:
        """Return the highest seqno among the filter's collections; None if it omits none."""
        if self.is_pass_through:
            return None
        return max((high_seqnos.get(each, 0) for each in self.collections), default=0)

    def _passes_event(self, event: ManifestEvent) -> bool:
        if self.is_pass_through or self.kind is FilterKind.LEGACY:
            return self.is_pass_through
        if self.scope is not None:
            return getattr(event, "scope_id", None) == self.scope
        return getattr(event, "collection_id", None) in self.collections


EVERYTHING: Final = StreamFilter()
"""Filter of a client with Collections that names nothing."""
LEGACY: Final = StreamFilter(FilterKind.LEGACY, frozenset({DEFAULT_ID}))
"""Filter of a client without Collections."""

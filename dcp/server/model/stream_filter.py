"""Filters a stream's items: everything, the default collection, some collections, or a scope.

    kind          asked for by                        shows
    LEGACY        a client without Collections        documents of the default collection
    EVERYTHING    no value, or one without names  everything
    COLLECTIONS   ``collections``                     their items and the events that tell of them
    SCOPE         ``scope``                           as of its collections, those of later too, and
                                                      the scope's own events

A filter is a value: the event of a collection's or scope's coming or going makes it another one
(``after``). When all is gone that it named, it is empty for good and its stream ends. The request's
JSON value becomes one in ``stream_request_value.py``. Source: kv_engine
``engines/ep/src/collections/vbucket_filter.cc``.
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
    """The kind of a filter, by what it names."""

    LEGACY = "legacy"
    EVERYTHING = "everything"
    COLLECTIONS = "collections"
    SCOPE = "scope"


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """The filter of a stream, and the other values of its request.

    ``purge_seqno`` is that up to which the client knows of all deletions, ``stream_id`` tells its
    streams of one vbucket apart. With ``sync_writes`` prepares and aborts pass as well.
    """

    kind: FilterKind = FilterKind.EVERYTHING
    collections: frozenset[int] = frozenset()
    scope: int | None = None
    purge_seqno: int = 0
    stream_id: int | None = None
    sync_writes: bool = False
    is_empty: bool = False

    @property
    def is_pass_through(self) -> bool:
        """True if no collection is left out."""
        return self.kind is FilterKind.EVERYTHING

    @property
    def end_reason(self) -> EndReason:
        """The end reason of a stream whose filter is empty; without Collections there is none."""
        return EndReason.OK if self.kind is FilterKind.LEGACY else EndReason.FILTER_EMPTY

    def passes_collection(self, collection: int) -> bool:
        """Return whether documents of a collection pass."""
        return self.is_pass_through or collection in self.collections

    def passes(self, version: Version) -> bool:
        """Return whether an item is shown, with the filter as it stands before the item."""
        if version.event is not None:
            return self._passes_event(version.event)
        if not (version.is_visible or self.sync_writes):
            return False
        return self.passes_collection(version.collection)

    def after(self, version: Version) -> "StreamFilter":
        """Return the filter as it stands after an item, shown or not."""
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
        """Return those of a snapshot's items that pass, in order, and the filter after the last."""
        shown = []
        at = self
        for version in versions:
            if at.passes(version):
                shown.append(version)
            at = at.after(version)
        return shown, at

    def high_seqno(self, high_seqnos: Mapping[int, int]) -> int | None:
        """Return the newest seqno of what the filter names, of those per collection.

        None for a filter that names nothing: then it is the vbucket's own.
        """
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
"""What a client with Collections sees that names nothing."""
LEGACY: Final = StreamFilter(FilterKind.LEGACY, frozenset({DEFAULT_ID}))
"""What a client without Collections sees."""

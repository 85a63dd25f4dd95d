"""What answers tell of the bucket's manifest in passing: its uid, and one collection by its name.

A server learns a manifest before its vbuckets tell of it in their streams, and a recording need not
show the streams that would.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from dcp.producer.model.manifest import DEFAULT, Collection, Manifest, Scope
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.system_event import ManifestEvent
from dcp.wire.vocabulary import Opcode, Status

_TOLD_BY: Final = frozenset({Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE})


@dataclass(frozen=True, slots=True)
class ManifestNews:
    """The manifest's uid, and perhaps the collection that has a path."""

    uid: int
    path: str = ""
    collection_id: int = 0


def news_in(request: Frame, answer: Frame, body: m.Body) -> ManifestNews | None:
    """Return what an answer tells; None if it is nothing."""
    if request.opcode == Opcode.GET_COLLECTION_ID and isinstance(body, m.IdAnswer):
        path = request.value.decode("utf-8", "replace")
        return ManifestNews(body.manifest_uid, path, body.collection_id)
    if answer.status not in _TOLD_BY:
        return None
    try:
        return ManifestNews(int(json.loads(answer.value)["manifest_uid"], 16))
    except (ValueError, KeyError, TypeError):
        return None


def with_news(manifest: Manifest, news: ManifestNews, events: Iterable[ManifestEvent]) -> Manifest:
    """Return a manifest as it is by the news, after those of the events that came up to them."""
    found = manifest
    for event in sorted(events, key=lambda one: one.manifest_uid):
        if manifest.uid < event.manifest_uid <= news.uid:
            found = found.after(event)
    if news.path:
        found = _with_collection(found, news)
    return replace(found, uid=max(manifest.uid, news.uid))


def _with_collection(manifest: Manifest, news: ManifestNews) -> Manifest:
    scope_name, _, name = news.path.partition(".")
    wanted = scope_name or DEFAULT
    known = manifest.collections.get(news.collection_id)
    scope = next((each for each in manifest.scopes.values() if each.name == wanted), None)
    if scope is None and known is not None and known.scope_id:
        scope = Scope(known.scope_id, wanted)  # it began where nobody was told its name
    if scope is None:
        scope = Scope(max(7, *manifest.scopes) + 1, wanted)
    collection = Collection(news.collection_id, name or DEFAULT, scope.id)
    if known is not None and known.scope_id == scope.id:
        collection = replace(known, name=collection.name)
    return manifest.with_scope(scope).with_collection(collection)

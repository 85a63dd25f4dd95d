"""Resolves what becomes of the rows of dropped collections: by id, from names of the settings.

The event of a drop has ids only, and what was dropped is in no manifest any more. So names come
from the manifests that a driver sees, and of earlier times from the events that the log keeps.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from dcp.errors import ConfigError
from dcp.lake.config.settings import PolicySettings
from dcp.lake.tables.collections import Collections
from dcp.protocol.events import SystemEventReceived
from dcp.suggestions import did_you_mean
from dcp.wire.system_event import CollectionBegun, CollectionEnded, CollectionFlushed
from dcp.wire.vocabulary import SystemEventKind


class DroppedPolicy(StrEnum):
    """The configured treatment of rows of a collection that was dropped at the source."""

    DELETE = "delete"
    """They leave the replica, in the commit of the snapshot that carries the drop."""
    KEEP = "keep"
    """They stay as they were; the drop ends no documents."""


@dataclass(frozen=True, slots=True)
class DroppedPolicies:
    default: DroppedPolicy = DroppedPolicy.DELETE
    by_collection: Mapping[int, DroppedPolicy] = field(default_factory=dict)
    """Collections with a policy of their own, by id."""
    met: frozenset[str] = frozenset()
    """Names of the settings for which a scope or collection was found."""

    def of(self, collection_id: int) -> DroppedPolicy:
        return self.by_collection.get(collection_id, self.default)

    def knowing(self, rules: PolicySettings, collections: Collections) -> "DroppedPolicies":
        own = rules.dropped_collections.keys()
        found = {
            each.collection_id: DroppedPolicy(rules.dropped_of(each.names))
            for each in collections.all
            if own & set(each.names)
        }
        met = own & collections.names
        return DroppedPolicies(self.default, {**self.by_collection, **found}, self.met | met)

    def refuse_unknown(self, rules: PolicySettings, collections: Collections) -> None:
        """Refuse a name that no scope or collection has or had: a drop would follow another policy.

        Raises:
            ConfigError: there is such a name. ``collections`` are the present ones.
        """
        names = collections.names
        for name in sorted(rules.dropped_collections.keys() - self.met):
            raise ConfigError(
                f"policy.dropped_collections: found {name!r}{did_you_mean(name, names)}, expected "
                f"scopes or collections of the bucket: {', '.join(sorted(names))}"
            )


_KINDS: Final = frozenset(map(int, SystemEventKind))


def collection_of(event: SystemEventReceived) -> int | None:
    """Return the collection that began, was flushed or was dropped; None for other events."""
    if isinstance(event.meaning, CollectionBegun | CollectionEnded | CollectionFlushed):
        return event.meaning.collection_id
    return None


def emptied_collection(event: SystemEventReceived, dropped: DroppedPolicies) -> int | None:
    """Return the collection whose documents at lower seqnos of the vbucket are gone; or None.

    A flush arrives as the begin of an existing collection, so every begin counts; a new one has no
    older documents.
    """
    collection_id = collection_of(event)
    if collection_id is None or not isinstance(event.meaning, CollectionEnded):
        return collection_id
    return None if dropped.of(collection_id) is DroppedPolicy.KEEP else collection_id


def system_event_text(event: SystemEventReceived) -> str:
    """Return the event as JSON: its name, ids if we know its layout, and bytes as sent."""
    told: dict[str, Any] = {
        "event": SystemEventKind(event.event).name if event.event in _KINDS else event.event,
        "version": event.version,
        "value": event.value.hex(),
    }
    if event.meaning is not None:
        for field in fields(event.meaning):
            value = getattr(event.meaning, field.name)
            told[field.name] = _text(value) if isinstance(value, bytes) else value
    elif event.name:
        told["name"] = _text(event.name)
    return json.dumps(told)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")

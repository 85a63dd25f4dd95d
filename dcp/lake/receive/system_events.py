"""Converts system events for ``changes``: JSON, and the collection whose documents they end."""

import json
from dataclasses import fields
from enum import StrEnum
from typing import Any

from dcp.protocol.events import SystemEventReceived
from dcp.wire.json_tree import json_tree
from dcp.wire.system_event import CollectionBegun, CollectionEnded, CollectionFlushed
from dcp.wire.vocabulary import SystemEventKind


class DroppedPolicy(StrEnum):
    """The configured treatment of rows of a collection that was dropped at the source."""

    DELETE = "delete"
    """They leave the replica, in the commit of the snapshot that carries the drop."""
    KEEP = "keep"
    """They stay as they were; the drop ends no documents."""


def collection_of(event: SystemEventReceived) -> int | None:
    """Return the collection that began, was flushed or was dropped; None for other events."""
    if isinstance(event.meaning, CollectionBegun | CollectionEnded | CollectionFlushed):
        return event.meaning.collection_id
    return None


def emptied_collection(event: SystemEventReceived, dropped: DroppedPolicy) -> int | None:
    """Return the collection whose documents at lower seqnos of the vbucket are gone; or None.

    A flush arrives as the begin of a collection that exists, so every begin counts; of a new one
    there are no older documents.
    """
    if isinstance(event.meaning, CollectionEnded) and dropped is DroppedPolicy.KEEP:
        return None
    return collection_of(event)


def kept_collection(text: str) -> int | None:
    """Return the collection whose drop a `system_event_text` tells; None for other events.

    Where such a row of ``changes`` names no collection, the drop ended none of its documents.
    """
    told = json_tree(text)
    if told["event"] != SystemEventKind.END_COLLECTION.name:
        return None
    collection_id: int | None = told.get("collection_id")
    return collection_id


def system_event_text(event: SystemEventReceived) -> str:
    """Return the event as JSON: its name, its ids where we know its layout, its bytes as sent."""
    told: dict[str, Any] = {
        "event": _name(event.event),
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


def _name(kind: int) -> str | int:
    try:
        return SystemEventKind(kind).name
    except ValueError:
        return kind


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")

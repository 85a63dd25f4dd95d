"""Converts system events for ``changes``: JSON, and the collection whose documents they end."""

import json
from dataclasses import fields
from datetime import datetime
from typing import Any

from dcp.lake.receive.dropped_policies import DroppedPolicies, DroppedPolicy
from dcp.protocol.events import SystemEventReceived
from dcp.wire.system_event import CollectionBegun, CollectionEnded, CollectionFlushed
from dcp.wire.vocabulary import SystemEventKind


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
    if _policy_of(event, dropped) in (DroppedPolicy.KEEP, DroppedPolicy.SOFT):
        return None
    return collection_of(event)


def _policy_of(event: SystemEventReceived, dropped: DroppedPolicies) -> DroppedPolicy | None:
    if isinstance(event.meaning, CollectionEnded):
        return dropped.of(event.meaning.collection_id)
    return None


def system_event_text(event: SystemEventReceived, dropped: DroppedPolicies, now: datetime) -> str:
    """Return the event as JSON: its name, ids if we know its layout, and bytes as sent.

    A soft drop gets ``marked_at``, which is ``now``: from then on its rows are marked.
    """
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
    if _policy_of(event, dropped) is DroppedPolicy.SOFT:
        told["marked_at"] = now.isoformat()
    return json.dumps(told)


def _name(kind: int) -> str | int:
    try:
        return SystemEventKind(kind).name
    except ValueError:
        return kind


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")

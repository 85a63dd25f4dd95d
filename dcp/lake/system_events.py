"""System events as the JSON text that ``changes`` keeps of them."""

import json
from dataclasses import fields
from typing import Any

from dcp.errors import FrameError
from dcp.protocol.events import SystemEventReceived
from dcp.wire.messages import SystemEvent
from dcp.wire.system_event import decode_system_event
from dcp.wire.vocabulary import SystemEventKind


def system_event_text(event: SystemEventReceived) -> str:
    """Return the event as JSON: its name, its ids where we know its layout, its bytes as sent."""
    message = SystemEvent(event.seqno, event.event, event.version, event.name, event.value)
    told: dict[str, Any] = {
        "event": _name(event.event),
        "version": event.version,
        "value": event.value.hex(),
    }
    try:
        decoded = decode_system_event(message)
    except FrameError as error:
        return json.dumps(told | {"error": str(error)})
    if decoded is not None:
        for field in fields(decoded):
            value = getattr(decoded, field.name)
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

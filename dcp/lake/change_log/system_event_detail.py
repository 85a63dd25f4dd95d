"""The ``detail`` of ``system_event`` rows: how it is written, read, and asked for in SQL."""

import json
from dataclasses import dataclass
from typing import Final

from dcp.lake.config.settings import DroppedPolicy
from dcp.lake.store.sql import string
from dcp.protocol.events import SystemEventReceived
from dcp.records import brief, read, row_of
from dcp.wire.json_tree import json_tree
from dcp.wire.vocabulary import SystemEventKind

_KINDS: Final = frozenset(map(int, SystemEventKind))
_DROP: Final = SystemEventKind.END_COLLECTION.name


@dataclass(frozen=True, slots=True)
class SystemEventDetail:
    """A system event. Its JSON lacks the fields without a value."""

    event: str
    """The name of its `SystemEventKind`; the number of an unknown event."""
    version: int | None = None
    value: str | None = None
    """The bytes that the node sent, in hexadecimal."""
    manifest_uid: int | None = None
    scope_id: int | None = None
    collection_id: int | None = None
    name: str | None = None
    """The name of the scope or collection."""
    max_ttl_seconds: int | None = None
    policy: DroppedPolicy | None = None
    """The policy for the rows of a dropped collection, in the row that records it."""

    @classmethod
    def of(cls, event: SystemEventReceived) -> "SystemEventDetail":
        told = {"name": event.name} if event.meaning is None else row_of(event.meaning)
        name: bytes = told.pop("name", b"")
        return cls(
            SystemEventKind(event.event).name if event.event in _KINDS else str(event.event),
            event.version,
            event.value.hex(),
            name=name.decode("utf-8", "backslashreplace") or None,
            **told,
        )

    @classmethod
    def parse(cls, detail: str) -> "SystemEventDetail":
        return read(cls, json_tree(detail))

    @property
    def is_drop(self) -> bool:
        return self.event == _DROP

    def __str__(self) -> str:
        return json.dumps(brief(self))


def drop_with_policy(collection_id: int, policy: DroppedPolicy) -> SystemEventDetail:
    return SystemEventDetail(_DROP, collection_id=collection_id, policy=policy)


IS_DROP_SQL: Final = f"get_json_object(detail, '$.event') = {string(_DROP)}"

KEEPS_ROWS_SQL: Final = f"get_json_object(detail, '$.policy') = {string(DroppedPolicy.KEEP)}"

"""Reads and writes the lake's table ``control``: requests to its driver, and the answers.

A user makes a request by a row; anybody who may write to the lake can insert one, also in SQL. The
driver looks for requests before each round, and answers with rows of the same id. Rows never
change, so that the table shows who did what, and when.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from getpass import getuser
from socket import gethostname
from typing import Annotated, Any, Final
from uuid import uuid4

import pyarrow as pa

from dcp.errors import LakeError
from dcp.lake.config.table_names import CONTROL_TABLE
from dcp.lake.tables.history import LAKE
from dcp.lake.tables.lake_tables import LakeTables, ensure_ledger
from dcp.lake.tables.schema import columns_of
from dcp.records import STORED_ONLY, UNSTORED, read, row_of
from dcp.wire.json_tree import json_tree


class RequestAction(StrEnum):
    BACKFILL = "backfill"
    ERASE = "erase"
    PAUSE = "pause"
    RESUME = "resume"
    RESYNC = "resync"
    CANCEL = "cancel"
    """It takes back the request of the same id."""


class RequestState(StrEnum):
    REQUESTED = "requested"
    BEGUN = "begun"
    DONE = "done"
    INCOMPLETE = "incomplete"
    """Ended; ``detail`` names its failures."""
    REFUSED = "refused"
    """The driver cannot do it; ``detail`` says why."""
    CANCELLED = "cancelled"


_VOID: Final = (RequestState.CANCELLED, RequestState.REFUSED)
"""Requests in these states change nothing."""

_NOBODY: Final = "(unknown)"
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_OPEN: Final = frozenset({RequestState.REQUESTED, RequestState.BEGUN})
_ANSWERS: Final = frozenset(RequestState) - {RequestState.REQUESTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """A request and its newest answer: a user's row asks, a driver's row of the same id answers."""

    id: str
    time: Annotated[datetime | None, STORED_ONLY] = None
    who: str = ""
    action: str = ""
    """A `RequestAction`; the driver refuses any other text."""
    vbuckets: str | None = None
    """As 0-63, 70; None: all."""
    options: Annotated[str | None, STORED_ONLY] = None
    """A JSON object. Those of an erasure may name documents."""
    state: RequestState = RequestState.REQUESTED
    """A user's row has null or requested, a driver's row any other state."""
    round: Annotated[int, STORED_ONLY, pa.int64()] = 0
    """The newest round when a driver began it. In a row: when the driver answered."""
    detail: str = ""
    is_to_be_cancelled: Annotated[bool, UNSTORED] = False
    """A cancel request for it has no answer. If it has ended, the driver refuses that cancel."""
    begun_detail: Annotated[str, UNSTORED] = ""
    """The driver's note at the time when it began it."""

    @classmethod
    def new(
        cls, action: RequestAction, vbuckets: str | None, options: Mapping[str, Any]
    ) -> "ControlRequest":
        told = json.dumps(options) if options else None
        named = uuid4().hex[:12]
        return cls(id=named, who=_user(), action=action, vbuckets=vbuckets, options=told)

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN


def options_object(options: str | None) -> dict[str, Any] | None:
    """Return the JSON object of the column ``options``; None if the text is no JSON object."""
    try:
        told = json_tree(options or "{}")
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


CONTROL: Final = pa.schema(columns_of(ControlRequest))
"""The columns of ``control``."""


def _user() -> str:
    try:
        name = getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name}@{gethostname()}"


class Control:
    """The requests of one lake. It reads the table only if the table has a new version."""

    def __init__(self, lake: LakeTables, *, writes: bool = True) -> None:
        """Without ``writes``, this object alone remembers the answers."""
        self.writes = writes
        self._lake = lake
        self._version = -1
        self._requests: tuple[ControlRequest, ...] = ()
        self._unwritten: list[Mapping[str, Any]] = []

    def requests(self) -> tuple[ControlRequest, ...]:
        table = self._lake.table(CONTROL_TABLE)
        if not table.exists():
            return ()
        version = int(table.commits(1)[0]["version"])
        if version != self._version:
            rows = [*table.rows(", ".join(CONTROL.names), "true"), *self._unwritten]
            self._requests, self._version = requests_of(rows), version
        return self._requests

    def request(self, request_id: str) -> ControlRequest:
        """Return a request by its id.

        Raises:
            LakeError: no request has this id.
        """
        for each in self.requests():
            if each.id == request_id:
                return each
        known = ", ".join(each.id for each in self.requests()) or "none"
        raise LakeError(f"control: found no request {request_id!r}, expected one of: {known}")

    def write(
        self,
        request: ControlRequest,
        state: RequestState,
        round_number: int | None = None,
        detail: str = "",
    ) -> None:
        now, who = datetime.now(UTC), request.who or _user()
        row = row_of(replace(request, time=now, who=who, state=state)) | {
            "round": round_number,
            "detail": detail or None,
        }
        if not self.writes:
            self._unwritten.append(row)
            self._version = -1
            return
        lake = self._lake
        table = ensure_ledger(lake, CONTROL_TABLE, CONTROL)
        ours = {LAKE: lake.identity.lake_id, "control": request.id}
        asked = pa.Table.from_pylist([row], schema=CONTROL)
        table.append(asked, ours)


def requests_of(rows: Iterable[Mapping[str, Any]]) -> tuple[ControlRequest, ...]:
    """Return the requests in the rows of ``control``, oldest first.

    Rows without an id belong to no request; a row with an unknown state has no effect. A cancel
    whose id no other request has becomes a request itself, which the driver refuses.
    """
    by_id: dict[str, list[ControlRequest]] = {}
    for row in sorted(rows, key=lambda each: each["time"] or _LONG_AGO):
        if row["id"]:
            state = row["state"] if row["state"] in _ANSWERS else None
            told = read(ControlRequest, {**row, "state": state})
            by_id.setdefault(told.id, []).append(told)
    return tuple(map(_joined, by_id.values()))


def _joined(rows: Sequence[ControlRequest]) -> ControlRequest:
    asked = next((row for row in rows if row.action != RequestAction.CANCEL), rows[0])
    who = asked.who or _NOBODY
    request = replace(asked, who=who, state=RequestState.REQUESTED, round=0, detail="")
    is_cancel, cancels = request.action == RequestAction.CANCEL, 0
    for row in rows:
        is_answer = row.state is not RequestState.REQUESTED
        if row.action == RequestAction.CANCEL:
            cancels += -1 if is_answer else 1  # a count, since clocks may order an answer first
            if not is_cancel:
                continue
        if not is_answer or not request.is_open:
            continue
        if row.state is not RequestState.BEGUN:
            request = replace(request, state=row.state, detail=row.detail)
        elif request.state is RequestState.REQUESTED:
            request = replace(request, state=row.state, round=row.round, begun_detail=row.detail)
        else:
            request = replace(request, detail=row.detail)  # why it waits
    # This end also answers one cancel.
    cancels -= request.state is RequestState.CANCELLED
    is_first = is_cancel and request.is_open
    return replace(request, is_to_be_cancelled=cancels > 0 and not is_first)


def pause_of(requests: Sequence[ControlRequest]) -> ControlRequest | None:
    """Return the newest pause without a later resume; pauses to be cancelled do not count."""
    pause: ControlRequest | None = None
    for request in requests:
        is_void = request.state in _VOID or (request.is_open and request.is_to_be_cancelled)
        if request.action in (RequestAction.PAUSE, RequestAction.RESUME) and not is_void:
            pause = request if request.action == RequestAction.PAUSE else None
    return pause


def paused_by(pause: ControlRequest) -> str:
    return f"paused by {pause.who or 'somebody'} (request {pause.id})"

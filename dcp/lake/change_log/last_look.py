"""The driver's last look at the cluster, in a small file of the lake.

A bucket without changes has no rounds, so its tables cannot tell a driver that looks and finds
nothing from one that died. A driver notes its looks, at most one a minute: that is one request to
an object store, and no commit. The note only informs. Where it cannot be written or read, readers
go by the newest round.
"""

import json
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from dcp.lake.config.settings import RoundSettings
from dcp.lake.store.lake_store import LakeStore
from dcp.printable import age_text
from dcp.records import Record, read
from dcp.wire.json_tree import json_tree

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = "_dcplake_last_look.json"
_NOTE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class LastLook(Record):
    time: datetime
    """A driver asked the cluster then what it holds."""
    next_seconds: float
    """The driver looks again within this time; 0: it has ended."""
    behind: int = 0
    """Seqnos that the lake lacked then."""
    machine: str = ""
    """The driver's machine; empty if only the newest round tells of the look."""
    pid: int = 0
    """The driver's process there."""

    def age_seconds(self, at: datetime) -> float:
        return max(0.0, (at - self.time).total_seconds())

    def is_overdue(self, at: datetime) -> bool:
        """Return whether nobody drives the lake: what the cluster holds is unknown then."""
        return self.age_seconds(at) > self.next_seconds

    def told(self, at: datetime) -> str:
        age = age_text(self.age_seconds(at))
        if self.is_overdue(at):
            return f"nobody has looked at the cluster for {age}"
        return f"last look at the cluster {age} ago"


class LookNotes:
    """Notes the looks of one driver."""

    def __init__(
        self,
        store: LakeStore,
        rounds: RoundSettings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._next_seconds = _next_seconds(rounds)
        self._now = now
        self._noted: LastLook | None = None
        self._newest: LastLook | None = None

    def looked(self, behind: int) -> None:
        """Note a look that found the lake to lack ``behind`` seqnos, unless one was just noted."""
        self._newest = LastLook(self._now(), self._next_seconds, behind, _machine(), os.getpid())
        if self._noted is None or self._noted.age_seconds(self._newest.time) >= _NOTE_SECONDS:
            self._note(self._newest)

    def ended(self) -> None:
        """Note that this driver looks no more; a driver that never looked notes nothing."""
        if self._newest is not None:
            self._note(replace(self._newest, next_seconds=0.0))

    def _note(self, look: LastLook) -> None:
        self._noted = look  # a store that fails is tried again in a minute
        try:
            self._store.note(_NAME, json.dumps(look.to_json()).encode())
        except Exception as failure:  # of many classes: the note must not end a run
            _LOG.info("%s: cannot note the last look: %s", self._store.location, failure)


def last_look(store: LakeStore, round_at: datetime | None) -> LastLook | None:
    """Return the last look that the note, or the newest round, tells of; None without either.

    ``round_at`` is the time of the newest round: its driver had looked shortly before.
    """
    by_round = None if round_at is None else LastLook(round_at, _next_seconds(RoundSettings()))
    try:
        content = store.noted(_NAME)
        noted = None if content is None else read(LastLook, json_tree(content))
    except Exception as failure:  # of many classes: the lake itself may be readable
        _LOG.info("%s: cannot read the last look: %s", store.location, failure)
        noted = None
    if noted is None:
        return by_round
    if noted.machine == _machine() and not psutil.pid_exists(noted.pid):
        noted = replace(noted, next_seconds=0.0)
    return noted if by_round is None else replace(noted, time=max(noted.time, by_round.time))


def _machine() -> str:
    """Return the name of this machine, and in Linux of the world of its process ids.

    A container may have the name of its host.
    """
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _next_seconds(rounds: RoundSettings) -> float:
    return rounds.stall_seconds + _NOTE_SECONDS

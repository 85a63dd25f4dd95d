"""The driver's last contact with the cluster, and its last hours, in a small file of the lake.

A bucket without changes has no rounds, so that an idle driver looks like a dead one. A driver
therefore writes this note at most once a minute (`dcp.lake.run.contact_notes`). It only informs: if
it cannot be read, readers use the newest round.
"""

import json
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import psutil

from dcp.lake.config.settings import RoundSettings
from dcp.lake.store.lake_store import LakeStore
from dcp.records import STORED_ONLY, brief, read
from dcp.wire.json_tree import json_tree

_LOGGER: Final = logging.getLogger(__name__)
_NAME: Final = "_dcplake_last_contact.json"
NOTE_SECONDS: Final = 60.0
MINUTES_KEPT: Final = 6 * 60


@dataclass(frozen=True, slots=True)
class Minute:
    """The driver's work in one minute. A minute without a contact has no entry."""

    minute: int
    """Minutes since 1970, in UTC."""
    rounds: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """The seconds that its rounds took together."""
    longest_round: float = 0.0
    """In seconds, like the next two fields."""
    longest_apply: float = 0.0
    lag: float = 0.0
    """The longest time that the oldest received change had waited for its apply."""
    rollbacks: int = 0
    full: Mapping[str, float] = field(default_factory=dict)
    """By stage: the seconds of the rounds during which flow control's buffers were full."""

    def plus(self, later: "Minute") -> "Minute":
        stages = self.full.keys() | later.full.keys()
        return Minute(
            self.minute,
            self.rounds + later.rounds,
            self.rows + later.rows,
            self.bytes + later.bytes,
            round(self.seconds + later.seconds, 3),
            max(self.longest_round, later.longest_round),
            max(self.longest_apply, later.longest_apply),
            max(self.lag, later.lag),
            self.rollbacks + later.rollbacks,
            {
                each: round(self.full.get(each, 0.0) + later.full.get(each, 0.0), 3)
                for each in stages
            },
        )


@dataclass(frozen=True, slots=True)
class LastContact:
    time: datetime
    """The time when a driver last asked the cluster for its seqnos."""
    next_seconds: float
    """The driver asks the cluster again within this time; 0: it has ended."""
    behind: int
    """The seqnos that the lake lacked at that time."""
    machine: str = ""
    """The driver's machine; empty if the driver left no note."""
    pid: int = 0
    """The driver's process id on that machine."""
    minutes: Annotated[tuple[Minute, ...], STORED_ONLY] = ()
    """The minutes of the last hours, oldest first."""

    @classmethod
    def now(cls, time: datetime, rounds: RoundSettings, behind: int) -> "LastContact":
        return cls(time, _next_seconds(rounds), behind, _machine(), os.getpid())

    def age_seconds(self, at: datetime) -> float:
        return max(0.0, (at - self.time).total_seconds())

    def is_overdue(self, at: datetime) -> bool:
        """Return whether no driver has asked the cluster in time; the lag is then unknown."""
        return self.age_seconds(at) > self.next_seconds


def note_contact(store: LakeStore, contact: LastContact) -> None:
    try:
        store.note(_NAME, json.dumps(brief(contact), separators=(",", ":")).encode())
    except Exception as failure:  # of many classes: a failed note must not end the run
        _LOGGER.info("%s: cannot note the last contact: %s", store.location, failure)


def noted_contact(store: LakeStore) -> LastContact | None:
    try:
        if (content := store.noted(_NAME)) is None:
            return None
        return read(LastContact, json_tree(content))
    except Exception as failure:  # of many classes: the lake itself may still be readable
        _LOGGER.info("%s: cannot read the last contact: %s", store.location, failure)
        return None


def last_contact(store: LakeStore, round_at: datetime | None, behind: int) -> LastContact | None:
    """Return the last contact, from the note or the newest round; None if there is neither.

    ``round_at`` is the time of the newest round: a contact at which the lake lacked ``behind``
    seqnos, as its driver asked the cluster shortly before it.
    """
    next_seconds = _next_seconds(RoundSettings())
    by_round = None if round_at is None else LastContact(round_at, next_seconds, behind)
    if (noted := noted_contact(store)) is None:
        return by_round
    # The driver was on this machine and its process has ended, so it will not ask again.
    if noted.machine == _machine() and not _is_process(noted.pid):
        noted = replace(noted, next_seconds=0.0)
    if by_round is None or by_round.time <= noted.time:
        return noted
    return replace(noted, time=by_round.time, behind=by_round.behind)


def _next_seconds(rounds: RoundSettings) -> float:
    return rounds.stall_seconds + NOTE_SECONDS


def _is_process(pid: int) -> bool:
    try:
        return psutil.pid_exists(pid)
    except OverflowError:  # the note is damaged
        return False


def _machine() -> str:
    """Return this machine's name and, on Linux, its namespace of process ids.

    A container may share its host's name, but not its process ids.
    """
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()

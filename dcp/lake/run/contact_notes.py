"""Notes when a driver asked the cluster, and its work of the last hours, minute by minute."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from dcp.lake.change_log.last_contact import (
    MINUTES_KEPT,
    NOTE_SECONDS,
    LastContact,
    Minute,
    note_contact,
    noted_contact,
)
from dcp.lake.config.settings import RoundSettings
from dcp.lake.rounds.round_report import RoundReport, window_full_shares
from dcp.lake.store.lake_store import LakeStore
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.round_record import Outcome


class ContactNotes:
    """The notes of one driver. Threads that apply call `applied`; one other thread calls the
    rest.
    """

    def __init__(
        self,
        store: LakeStore,
        rounds: RoundSettings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        applies: bool = True,
    ) -> None:
        """The first contact reads the notes of the previous driver. ``applies``: this driver
        applies.
        """
        self._store = store
        self._rounds = rounds
        self._now = now
        self._applies = applies
        self._noted_at: datetime | None = None
        self._newest: LastContact | None = None
        self._minutes: deque[Minute] = deque(maxlen=MINUTES_KEPT)
        self._pending: dict[int, datetime] = {}
        """The commit times of rounds with rows that no apply has reached, by round."""
        self._lock = Lock()

    def contacted(self, behind: int) -> None:
        """Note a contact at which the lake lacked ``behind`` seqnos; at most one note a minute."""
        if self._newest is None and (before := noted_contact(self._store)) is not None:
            self._minutes.extend(before.minutes)
        self._newest = LastContact.now(self._now(), self._rounds, behind)
        self._add()
        self._note(is_due=False)

    def committed(self, report: RoundReport) -> None:
        rollbacks = sum(each.outcome is Outcome.ROLLBACK for each in report.vbuckets)
        shares = window_full_shares(report.vbuckets)
        if report.rows and self._applies:
            with self._lock:
                self._pending[report.round] = self._now()
        self._add(
            rounds=1,
            rows=report.rows,
            bytes=report.frame_bytes,
            seconds=report.seconds,
            longest_round=report.seconds,
            rollbacks=rollbacks,
            full={stage: share * report.seconds for stage, share in shares.items() if share},
        )
        self._note(is_due=bool(rollbacks))

    def applied(self, versions: Sequence[AppliedVersion], seconds: float) -> None:
        """Note the versions of an apply; ``seconds`` is their common time."""
        self._add(longest_apply=seconds)
        reached = max(each.to_round for each in versions)
        with self._lock:
            rest = {number: time for number, time in self._pending.items() if number > reached}
            self._pending = rest

    def ended(self) -> None:
        """Note that this driver ends, unless it never asked the cluster or another driver does."""
        if self._newest is None:
            return
        noted = noted_contact(self._store)
        if noted is None or (noted.machine, noted.pid) == (self._newest.machine, self._newest.pid):
            self._newest = replace(self._newest, next_seconds=0.0)
            self._note(is_due=True)

    def _add(self, **found: Any) -> None:
        now = self._now()
        with self._lock:
            waiting = (now - time for time in self._pending.values())
            lag = max((each.total_seconds() for each in waiting), default=0.0)
            new = Minute(int(now.timestamp() // 60), lag=round(lag, 1), **found)
            if self._minutes and self._minutes[-1].minute >= new.minute:
                new = self._minutes.pop().plus(new)
            self._minutes.append(new)

    def _note(self, *, is_due: bool) -> None:
        if self._newest is None:
            return
        now = self._now()
        if not is_due and self._noted_at is not None:
            is_due = (now - self._noted_at).total_seconds() >= NOTE_SECONDS
        if is_due or self._noted_at is None:
            self._noted_at = now  # a store that fails is tried again in a minute
            with self._lock:
                minutes = tuple(self._minutes)
            note_contact(self._store, replace(self._newest, minutes=minutes))

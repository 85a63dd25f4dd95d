"""Decides when pending changes are merged into a replica: a pure rule, and the facts it needs."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dcp.lake.apply.readable_slice import slice_to_publish
from dcp.lake.config.settings import ApplySettings
from dcp.lake.log.applied import replica_status
from dcp.lake.log.changes import newest_round, round_time
from dcp.lake.log.slice_rows import count_rows
from dcp.lake.tables.history import history
from dcp.lake.tables.tables import LakeTables, ReplicaTable

_NO_AGE: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Pending:
    """Changes that a replica table has not merged yet."""

    rows: int
    table_rows: int
    age_seconds: float
    takes_back: bool = False
    """The apply removes rows that the source lost, or changes which vbuckets are stale: that never
    waits.
    """

    @property
    def is_some(self) -> bool:
        return self.rows > 0 or self.takes_back


def is_due(settings: ApplySettings, pending: Pending) -> bool:
    if pending.takes_back:
        return True
    if pending.rows == 0:
        return False
    match settings.when:
        case "every_round":
            return True
        case "pending_fraction":
            return pending.rows >= settings.pending_fraction * pending.table_rows
        case "age":
            return pending.age_seconds >= settings.age_seconds
    return False


def pending_of(
    lake: LakeTables,
    replica: ReplicaTable,
    to_round: int | None = None,
    now: datetime | None = None,
) -> Pending:
    """Return the changes that an apply to a round (the newest) would publish, and the age of the
    first.

    Rows older than the last apply count if their snapshot has ended since. Rows that still wait for
    that do not: an apply cannot take them. An age that the history no longer tells is infinite: a
    log keeps twice the horizon.
    """
    newest_commits = history(lake.changes)
    if to_round is None:
        to_round = newest_round(lake, newest_commits)
    status = replica_status(lake, replica)
    log_slice = slice_to_publish(lake, replica, status, to_round)
    if log_slice is None:
        return Pending(0, 0, 0.0)
    if log_slice.undone or log_slice.cleared or log_slice.stale != status.held.stale:
        return Pending(0, 0, 0.0, takes_back=True)
    pending_rows, first_round = count_rows(lake.changes, replica.collection_id, log_slice)
    if first_round is None:
        return Pending(0, 0, 0.0)
    [counted] = lake.table(replica.name).rows("count(*) AS found", "true")
    time = round_time(lake, first_round, newest_commits)
    now = now or datetime.now(UTC)
    age_seconds = _NO_AGE if time is None else (now - time).total_seconds()
    return Pending(pending_rows, counted["found"], age_seconds)

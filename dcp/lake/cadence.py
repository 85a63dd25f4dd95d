"""When pending changes are merged into a replica: a pure rule, and the facts it needs."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dcp.lake.applied import replica_status
from dcp.lake.history import history
from dcp.lake.schema import ITEM_KINDS
from dcp.lake.settings import ApplySettings
from dcp.lake.sql import string_list
from dcp.lake.tables import LakeTables, ReplicaTable

_NO_AGE: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Pending:
    """What a replica table has not taken over yet."""

    rows: int
    table_rows: int
    age_seconds: float


def is_due(settings: ApplySettings, pending: Pending) -> bool:
    """Whether it is time to apply, by the settings."""
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


def pending_of(lake: LakeTables, replica: ReplicaTable, now: datetime | None = None) -> Pending:
    """Return what the rounds after the table's last apply brought, and how old the first of it is.

    Where the history no longer tells the age, it counts as infinite.
    """
    applied_round = replica_status(lake, replica).round
    row = lake.spark.sql(
        f"SELECT count(*) AS rows, min(round) AS first FROM {lake.changes_sql} "
        f"WHERE round > {applied_round} AND kind IN ({string_list(ITEM_KINDS)}) "
        f"AND collection_id = {replica.collection_id}"
    ).collect()[0]
    table_rows = lake.spark.sql(f"SELECT count(*) FROM {lake.table_sql(replica.name)}").collect()[
        0
    ][0]
    age_seconds = 0.0
    if row["rows"]:
        commits = history(lake.spark, lake.changes_sql)
        time = next((commit.time for commit in commits if commit.round == row["first"]), None)
        now = now or datetime.now(UTC)
        age_seconds = _NO_AGE if time is None else (now - time).total_seconds()
    return Pending(int(row["rows"]), int(table_rows), age_seconds)

"""Reads a lake's rollbacks and the rows that they undid, for ``dcplake rollbacks``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dcp.lake.change_log.epochs import rollback_rows
from dcp.lake.config.table_names import AUDIT_TABLE
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.undone_key import UndoneKey
from dcp.lake.tables.vbucket_state import RestartReason
from dcp.records import Record, read

NEWEST: Final = 100


@dataclass(frozen=True, slots=True)
class Epoch(Record):
    """The beginning of a vbucket's epoch, with the rollback order that caused it."""

    vbucket: int
    epoch: int
    round: int
    reason: str
    fork_seqno: int
    from_seqno: int | None = None
    from_vb_uuid: int | None = None
    to_seqno: int | None = None

    def __str__(self) -> str:
        told = f"round {self.round}: vbucket {self.vbucket} goes on from seqno {self.fork_seqno}"
        if self.from_seqno is None:
            return f"{told} ({self.reason})"
        return (
            f"{told}; it had read up to {self.from_seqno} of branch {self.from_vb_uuid:016x}, the "
            f"producer ordered it back to {self.to_seqno}"
        )


def newest_epochs(lake: LakeTables, count: int = NEWEST) -> list[Epoch]:
    orders: dict[tuple[int, int], Mapping[str, Any]] = {}  # the newest of each vbucket and epoch
    epochs = []
    for row in rollback_rows(lake):
        vbucket, epoch = row["vbucket"], row["epoch"]
        if row["seqno"] is None:
            orders[vbucket, epoch] = row["rollback"]
            continue
        is_ordered = row["detail"] == RestartReason.ROLLBACK
        order = orders.get((vbucket, epoch - 1), {}) if is_ordered else {}
        begun = {**row, "reason": row["detail"], "fork_seqno": row["seqno"]}
        epochs.append(read(Epoch, {**order, **begun}))
    epochs.sort(key=lambda each: (-each.round, each.vbucket, -each.epoch))
    return epochs[:count]


def undone_keys(lake: LakeTables, count: int = NEWEST) -> tuple[list[UndoneKey], int]:
    """Return the keys that rollbacks took back, newest applies first, and their total number."""
    if not lake.table(AUDIT_TABLE).exists():
        return [], 0
    audit = lake.table(AUDIT_TABLE)
    [[total]] = (row.values() for row in audit.rows("count(*) AS total", "true"))
    newest = f"true ORDER BY time DESC, version DESC, vbucket, key LIMIT {int(count)}"
    return [read(UndoneKey, row) for row in audit.rows("*", newest)], total

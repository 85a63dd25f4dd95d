"""A producer's ROLLBACK answer to a stream request, as a lake stores it.

It is stored in the vbucket's position row until the next plan has begun a new epoch for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dcp.types import FailoverEntry, FailoverLog, require_unsigned


@dataclass(frozen=True, slots=True)
class RollbackOrder:
    """The request (branch and seqno) that was refused, the seqno to go back to, the server's log.

    ``failover_log`` is None where the server did not tell it.
    """

    from_vb_uuid: int
    from_seqno: int
    to_seqno: int
    failover_log: FailoverLog | None = None

    def __post_init__(self) -> None:
        """Reject an order that does not lead back."""
        for name in ("from_vb_uuid", "from_seqno", "to_seqno"):
            require_unsigned(name, getattr(self, name))
        if self.to_seqno > self.from_seqno:
            raise ValueError(
                f"rollback order: found seqno {self.to_seqno}, expected at most the requested "
                f"{self.from_seqno}"
            )

    @property
    def is_for_unknown_branch(self) -> bool:
        """True if the server's log lacks the branch that the request named."""
        log = self.failover_log
        return log is not None and all(entry.vb_uuid != self.from_vb_uuid for entry in log.entries)

    def __str__(self) -> str:
        """Say what was ordered, for messages."""
        return (
            f"the producer ordered a rollback from seqno {self.from_seqno} "
            f"(branch {self.from_vb_uuid:016x}) to {self.to_seqno}"
        )


def order_row(order: RollbackOrder) -> dict[str, Any]:
    """Return an order as the column ``rollback`` of ``changes`` holds it."""
    return {
        "from_seqno": order.from_seqno,
        "to_seqno": order.to_seqno,
        "from_vb_uuid": order.from_vb_uuid,
        "failover_log": None if order.failover_log is None else failover_rows(order.failover_log),
    }


def order_from_row(row: Mapping[str, Any] | None) -> RollbackOrder | None:
    """Return the order that `order_row` wrote."""
    if row is None:
        return None
    return RollbackOrder(
        int(row["from_vb_uuid"]),
        int(row["from_seqno"]),
        int(row["to_seqno"]),
        failover_log_from(row["failover_log"]),
    )


def failover_rows(log: FailoverLog) -> list[dict[str, int]]:
    """Return a failover log as its column holds it, newest entry first."""
    return [{"vb_uuid": entry.vb_uuid, "seqno": entry.seqno} for entry in log.entries]


def failover_log_from(rows: Any) -> FailoverLog | None:
    """Return the log that `failover_rows` wrote; None where there is none."""
    if not rows:
        return None
    entries = (FailoverEntry(int(entry["vb_uuid"]), int(entry["seqno"])) for entry in rows)
    return FailoverLog(tuple(entries))

"""What a committed round says of each vbucket: its position, and how its part of the round ended.

A round never changes once it is committed, so an open lake remembers the newest ones it has read.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dcp.errors import REREAD_COMMAND, LakeError
from dcp.lake.config.memory import DOCUMENT_BYTES
from dcp.lake.log.stream_result import Outcome
from dcp.lake.tables.sql import integer_list
from dcp.lake.tables.vbucket_state import VbucketState, states_from_rows

if TYPE_CHECKING:
    from dcp.lake.tables.tables import LakeTables

UNDECODABLE: Final = (
    "values cannot be decoded and are as they were sent: datatype is above 1 there, "
    "row_history.detail says why"
)
"""What is said behind their number."""

REMEMBERED_ROUNDS: Final = 4
"""Enough for the round of the newest apply and the newest round, before and after a commit."""


@dataclass(frozen=True, slots=True)
class VbucketReport:
    """What a round did for one vbucket, as its ``status`` row tells.

    Of a vbucket that was left out only the reason is told; its numbers are 0 here.
    """

    vbucket: int
    outcome: Outcome
    rows: int
    frame_bytes: int
    largest_bytes: int
    seqno: int
    complete_seqno: int
    target_seqno: int
    reason: str = ""
    detail: str = ""
    escaped_keys: int = 0
    undecodable_values: int = 0
    window_full: float = 0.0
    gate: str = ""

    @property
    def failed(self) -> bool:
        """Whether the source kept it from going on."""
        return self.outcome in (Outcome.ROLLBACK, Outcome.STOPPED, Outcome.LEFT_OUT)

    @classmethod
    def parse(cls, vbucket: int, status: str) -> "VbucketReport":
        """Read the ``detail`` of a status row."""
        told = json.loads(status)
        return cls(
            vbucket=vbucket,
            outcome=Outcome(told["outcome"]),
            rows=told.get("rows", 0),
            frame_bytes=told.get("bytes", 0),
            largest_bytes=told.get("largest_bytes", DOCUMENT_BYTES),
            seqno=told.get("seqno", 0),
            complete_seqno=told.get("complete_seqno", 0),
            target_seqno=told.get("target_seqno", 0),
            reason=told.get("reason", ""),
            detail=told.get("detail", ""),
            escaped_keys=told.get("escaped_keys", 0),
            undecodable_values=told.get("undecodable_values", 0),
            window_full=told.get("window_full", 0.0),
            gate=told.get("gate", ""),
        )

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""
        return {
            "vbucket": self.vbucket,
            "outcome": str(self.outcome),
            "rows": self.rows,
            "bytes": self.frame_bytes,
            "seqno": self.seqno,
            "complete_seqno": self.complete_seqno,
            "target_seqno": self.target_seqno,
            "reason": self.reason,
            "detail": self.detail,
            "escaped_keys": self.escaped_keys,
            "undecodable_values": self.undecodable_values,
            "window_full": self.window_full,
            "gate": self.gate,
        }


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A committed round: the state of every vbucket after it, and what it tells of some.

    These are the vbuckets that it streamed, and those that it should have streamed and could not.
    """

    states: Mapping[int, VbucketState]
    reports: tuple[VbucketReport, ...]

    @property
    def largest_bytes(self) -> int:
        """Size of the largest document of the round; the most there can be if that is not told."""
        return max((report.largest_bytes for report in self.reports), default=DOCUMENT_BYTES)


BEFORE_THE_FIRST: Final = RoundRecord({}, ())
"""Round 0: no vbucket was met yet."""


def round_records(lake: "LakeTables", rounds: Collection[int]) -> dict[int, RoundRecord]:
    """Return the records of some rounds, by number; those not remembered in one query.

    Raises:
        LakeError: a round is not there, or its position vector is not whole.

    """
    known = lake.remembered_rounds
    missing = sorted({number for number in rounds if number and number not in known})
    if missing:
        known |= _read(lake, missing)
    found = {number: known[number] if number else BEFORE_THE_FIRST for number in rounds}
    for number in sorted(known)[:-REMEMBERED_ROUNDS]:
        del known[number]
    return found


def round_record(lake: "LakeTables", round_number: int) -> RoundRecord:
    """Return the record of one round; see `round_records`."""
    return round_records(lake, [round_number])[round_number]


def positions_at(lake: "LakeTables", round_number: int) -> Mapping[int, VbucketState]:
    """Return every vbucket's state after a round; empty for round 0. See `round_records`."""
    return round_record(lake, round_number).states


def largest_document_bytes(lake: "LakeTables", rounds: Collection[int]) -> int:
    """Return the size of the largest document of some rounds; the most there is if not told."""
    known = lake.remembered_rounds
    if all(number in known for number in rounds):
        return max(known[number].largest_bytes for number in rounds)
    told = lake.changes.rows(
        "vbucket, detail", f"kind = 'status' AND round IN ({integer_list(rounds)})"
    )
    reports = (VbucketReport.parse(row["vbucket"], row["detail"]) for row in told)
    return max((each.largest_bytes for each in reports), default=DOCUMENT_BYTES)


def _read(lake: "LakeTables", rounds: Collection[int]) -> dict[int, RoundRecord]:
    rows = lake.changes.rows(
        "round, kind, vbucket, epoch, position, detail",
        f"round IN ({integer_list(rounds)}) AND kind IN ('position', 'status')",
    )
    by_round: dict[int, list[dict[str, Any]]] = {number: [] for number in rounds}
    for row in rows:
        by_round[row["round"]].append(row)
    return {number: _record(lake, number, found) for number, found in by_round.items()}


def _record(lake: "LakeTables", number: int, rows: list[dict[str, Any]]) -> RoundRecord:
    states = states_from_rows(row for row in rows if row["kind"] == "position")
    expected = lake.identity.vbucket_count
    if len(states) != expected:
        raise LakeError(
            f"{lake.location}: found {len(states)} positions in round {number} of changes, "
            f"expected one for each of the {expected} vbuckets: they were cleaned, or somebody "
            f"changed the log; {REREAD_COMMAND} reads the bucket again"
        )
    statuses = sorted((row["vbucket"], row["detail"]) for row in rows if row["kind"] == "status")
    return RoundRecord(
        states, tuple(VbucketReport.parse(vbucket, detail) for vbucket, detail in statuses)
    )

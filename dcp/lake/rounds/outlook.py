"""Tells what a plan foresees beside its streams: vbuckets and tables to be made anew. Pure data."""

from dataclasses import dataclass

from dcp.lake.rounds.rollback_plan import RollbackPolicy
from dcp.lake.tables.records import Record
from dcp.printable import number_ranges


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """Vbuckets that will be read from seqno 0, because their nodes order them back."""

    vbuckets: tuple[int, ...]
    documents: int
    """The most that they hold."""
    bytes: float | None
    """Their size by the mean of the tables' rows; None without rows."""
    policy: RollbackPolicy

    def __str__(self) -> str:
        about = "" if self.bytes is None else f", about {self.bytes / 1e6:,.1f} MB"
        then = "their rows stay as they are until all of it is read"
        if self.policy is RollbackPolicy.FAIL:
            then = "they stay as they are, and a run ends with code 5"
        return (
            f"ordered back, to be read from seqno 0: vbuckets {number_ranges(self.vbuckets)}: "
            f"at most {self.documents:,} documents{about}; policy.rollback is {self.policy}: {then}"
        )


@dataclass(frozen=True, slots=True)
class Outlook(Record):
    read_again: ReadAgain | None = None
    written_anew: tuple[str, ...] = ()
    """Tables that get other typed columns."""
    without_effect: tuple[str, ...] = ()
    """Settings without effect at this bucket, with the reason."""

    @property
    def lines(self) -> list[str]:
        again = [] if self.read_again is None else [f"  {self.read_again}"]
        tables = (
            f"  {table}: the next apply writes all rows anew, with other typed columns"
            for table in self.written_anew
        )
        return [*again, *tables, *(f"  {setting}" for setting in self.without_effect)]

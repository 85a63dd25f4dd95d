"""The record of an apply. Its commit has it, heartbeats repeat it, and ``applied`` rows list it."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import pyarrow as pa

from dcp.lake.store.log_slice import EMPTY_TABLE, LogSlice, Undo
from dcp.lake.tables.vbucket_state import Round, Vbucket
from dcp.printable import number_ranges
from dcp.records import TOLD_ONLY

Version = Annotated[int, pa.int64()]
Count = Annotated[int, TOLD_ONLY]


@dataclass(frozen=True, slots=True, order=True)
class StaleVbucket:
    """A vbucket whose rows in a replica are as of an older round."""

    vbucket: Vbucket
    round: Round


@dataclass(frozen=True, slots=True)
class AppliedVersion:
    """A version of a replica table with the state of ``to_round``."""

    table: str
    version: Version
    from_round: Round
    to_round: Round
    log_from_round: Round
    """All rows that the table lacks are in the log from this round on.

    It is ``to_round``, or the oldest round with a row whose snapshot was still incomplete.
    """
    stale_vbuckets: tuple[StaleVbucket, ...] = ()
    """In the order of vbuckets."""
    undone: tuple[Undo, ...] = ()
    """The vbuckets that the apply took back."""
    cleared: tuple[Vbucket, ...] = ()
    """The vbuckets in which the apply removed all rows of the collection."""
    revived: tuple[Vbucket, ...] = ()
    """The vbuckets in which the apply undid a flush or drop."""
    inserted: Count = field(default=0, compare=False)
    updated: Count = field(default=0, compare=False)
    deleted: Count = field(default=0, compare=False)
    rewritten: Count = field(default=0, compare=False)

    def __str__(self) -> str:
        counts = f"{self.inserted} inserted, {self.updated} updated, {self.deleted} deleted"
        if self.rewritten:
            counts = f"all {self.rewritten} rows written anew, with other typed columns"
        told = (
            f"{self.table} version {self.version}: round {self.from_round} -> {self.to_round}, "
            f"{counts}"
        )
        if self.undone:
            told += f"; rolled back: vbuckets {number_ranges(each.vbucket for each in self.undone)}"
        if self.cleared:
            told += f"; flushed or dropped: vbuckets {number_ranges(self.cleared)}"
        if self.revived:
            told += f"; flush or drop undone: vbuckets {number_ranges(self.revived)}"
        if self.stale:
            told += f"; stale: vbuckets {number_ranges(self.stale)}"
        return told

    @property
    def stale(self) -> Mapping[int, int]:
        """By stale vbucket, the older round that its rows show."""
        return {each.vbucket: each.round for each in self.stale_vbuckets}

    def round_of(self, vbucket: int) -> int:
        """Return the round whose state the version has for a vbucket."""
        at = bisect_left(self.stale_vbuckets, vbucket, key=lambda each: each.vbucket)
        found = self.stale_vbuckets[at : at + 1]
        return found[0].round if found and found[0].vbucket == vbucket else self.to_round

    def after(self, log_slice: LogSlice) -> "AppliedVersion":
        """Return the record after an apply of a slice; Delta numbers the new version."""
        return AppliedVersion(
            self.table,
            self.version,
            self.to_round,
            log_slice.to_round,
            log_slice.log_from_round,
            tuple(StaleVbucket(*each) for each in sorted(log_slice.stale.items())),
            log_slice.undone,
            log_slice.cleared,
            log_slice.revived,
        )


BEGINNING: Final = AppliedVersion("", EMPTY_TABLE, 0, 0, 0)
"""A new table without rows."""

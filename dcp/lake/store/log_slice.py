"""A slice of the log: the row ranges of an apply, and its effect on the replica's vbuckets.

`dcp.lake.apply.slice_rules` has the rules that make it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Final

import pyarrow as pa

from dcp.printable import number_ranges

REPLACED: Final = -1
EMPTY_TABLE: Final = 0


class Role(StrEnum):
    """The role of a row of the log, or of the table, in an apply."""

    FRESH = "fresh"
    """Live, but not in the table."""
    KEPT = "kept"
    """Live and in the table, above the restored version."""
    UNDONE = "undone"
    """In the table, but dead."""
    IN_TABLE = "in_table"
    """In the table; a flush, drop or replacement ends it."""
    REVIVED = "revived"
    """Live; a published flush or drop had ended it, and is undone."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows of one vbucket and epoch with ``low`` < seqno <= ``high``."""

    vbucket: int
    epoch: int
    low: int
    high: int
    role: Role = Role.FRESH


@dataclass(frozen=True, slots=True, order=True)
class Undo:
    vbucket: Annotated[int, pa.int32()]
    version: Annotated[int, pa.int64()]
    """Has the lost rows. 0: the empty table; -1: the vbucket is replaced completely."""
    fork_seqno: int
    """Rows above this seqno are undone."""

    @property
    def is_replacement(self) -> bool:
        return self.version == REPLACED


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The row ranges that an apply reads from the log, and its effect on each vbucket."""

    ranges: tuple[RowRange, ...]
    """Rows of the table stay unless these ranges have newer rows of their keys."""
    first_round: int
    """The ranges lie in the rounds from this one to `to_round`."""
    to_round: int
    log_from_round: int
    """See `AppliedVersion`."""
    undone: tuple[Undo, ...] = ()
    """Vbuckets whose rows above the fork go back to the restored version, or are replaced."""
    cleared: tuple[int, ...] = ()
    """Vbuckets that lose all old rows, because the collection was flushed or dropped."""
    revived: tuple[int, ...] = ()
    """Vbuckets in which all keys of the restored version return: a flush or drop is undone."""
    stale: Mapping[int, int] = field(default_factory=dict)
    """By vbucket, the older round whose rows stay in the table."""
    begins_anew: bool = False
    """True if every vbucket began again at 0: the table's present rows then decide nothing.

    The apply replaces each vbucket, unless it is stale or keeps rows of a dropped collection.
    """

    @property
    def vbuckets(self) -> tuple[int, ...]:
        of_ranges = (each.vbucket for each in self.ranges)
        return tuple(sorted({*of_ranges, *self.cleared, *self.replaced, *self.revived}))

    @property
    def replaced(self) -> tuple[int, ...]:
        return tuple(each.vbucket for each in self.undone if each.is_replacement)

    @property
    def restored_versions(self) -> Mapping[int, int]:
        """By vbucket, the version with the rows that it gets back; without `replaced` vbuckets."""
        return {each.vbucket: each.version for each in self.undone if not each.is_replacement}

    @property
    def has_work(self) -> bool:
        return bool(self.ranges or self.undone or self.cleared)

    def without(self, vbuckets: Collection[int]) -> "LogSlice":
        """Return the slice without the ranges of some vbuckets."""
        ranges = (each for each in self.ranges if each.vbucket not in vbuckets)
        return replace(self, ranges=tuple(ranges))

    def __str__(self) -> str:
        parts = [
            f"rounds {self.first_round} to {self.to_round}: {len(self.ranges)} ranges of rows in "
            f"{len(self.vbuckets)} vbuckets"
        ]
        if self.begins_anew:
            parts.append("every vbucket began anew")
        if restored := self.restored_versions:
            oldest = min(restored.values())
            parts.append(f"vbuckets {number_ranges(restored)} go back (oldest version {oldest})")
        parts += [
            f"vbuckets {number_ranges(vbuckets)} {what}"
            for vbuckets, what in (
                (self.replaced, "are replaced"),
                (self.cleared, "were flushed or dropped"),
                (self.revived, "lose a flush or drop"),
                (self.stale, "stay stale"),
            )
            if vbuckets
        ]
        return "; ".join(parts)

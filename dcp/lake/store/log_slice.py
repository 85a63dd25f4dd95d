"""A slice of the log: the row ranges of an apply, and its effect on the replica's vbuckets.

The rules that decide it are in `dcp.lake.apply.slice_rules`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

import pyarrow as pa

REPLACED: Final = -1
EMPTY_TABLE: Final = 0


class Role(StrEnum):
    """The role of a row in an apply: of the log, or of the table."""

    FRESH = "fresh"
    """Live, and not published yet."""
    KEPT = "kept"
    """Live, and published already, above the base version."""
    UNDONE = "undone"
    """Published, and dead now."""
    HELD = "held"
    """Of the table: a flush, a drop or a replacement ends it, or an undone flush returns it."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of one vbucket and epoch: above ``low``, up to ``high``."""

    vbucket: int
    epoch: int
    low: int
    high: int
    role: Role = Role.FRESH


@dataclass(frozen=True, slots=True, order=True)
class Undo:
    vbucket: Annotated[int, pa.int32()]
    version: Annotated[int, pa.int64()]
    """Gives the lost rows; 0: the empty table, -1: the vbucket was replaced as a whole."""
    fork_seqno: int
    """Rows above it are undone."""

    @property
    def is_replacement(self) -> bool:
        return self.version == REPLACED


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The row ranges that an apply takes from the log, and its effect on each vbucket."""

    ranges: tuple[RowRange, ...]
    """The table's rows stay, except those of keys with newer rows here."""
    first_round: int
    """All rows are in rounds from this one to `to_round`."""
    to_round: int
    log_from_round: int
    """See `AppliedVersion`."""
    undone: tuple[Undo, ...] = ()
    """Rows above the fork go back to an older version (`restored`), or all rows are `replaced`."""
    cleared: tuple[int, ...] = ()
    """All rows go: the collection was flushed or dropped."""
    revived: tuple[int, ...] = ()
    """All keys of the older version return: a flush or drop is undone."""
    stale: Mapping[int, int] = field(default_factory=dict)
    """By vbucket, the older round whose rows stay."""
    begins_anew: bool = False
    """True if the table's present rows do not matter: every vbucket is replaced or stale, or
    belongs to a dropped collection whose rows stay.
    """

    @property
    def vbuckets(self) -> tuple[int, ...]:
        return tuple(
            sorted({*(each.vbucket for each in self.ranges), *self.emptied, *self.revived})
        )

    @property
    def replaced(self) -> tuple[int, ...]:
        return tuple(each.vbucket for each in self.undone if each.is_replacement)

    @property
    def emptied(self) -> tuple[int, ...]:
        """The vbuckets that keep none of their old rows, in order."""
        return tuple(sorted({*self.cleared, *self.replaced}))

    @property
    def restored(self) -> Mapping[int, int]:
        """The versions that give the vbuckets their lost rows, without `replaced` ones."""
        return {each.vbucket: each.version for each in self.undone if not each.is_replacement}

    @property
    def has_work(self) -> bool:
        return bool(self.ranges or self.undone or self.cleared)

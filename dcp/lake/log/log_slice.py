"""A slice of the log: the row ranges of an apply, and the facts that decide them.

The rules are in `dcp.lake.apply.slice_rules`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dcp.lake.log.epochs import Fork
from dcp.lake.tables.applied_version import AppliedVersion, StaleVbucket, Undo
from dcp.lake.tables.vbucket_state import VbucketProgress


class Role(StrEnum):
    """The role of log rows in an apply: new, kept, or undone by a rollback."""

    FRESH = "fresh"
    """Live, and not published yet."""
    KEPT = "kept"
    """Live, and published already, above the base version."""
    UNDONE = "undone"
    """Published, and dead now."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of one vbucket and epoch: above ``low``, up to ``high``."""

    vbucket: int
    epoch: int
    low: int
    high: int
    role: Role = Role.FRESH


@dataclass(frozen=True, slots=True)
class CollectionEvent:
    """The begin, flush or drop of a collection in one vbucket, as a round of the log has it.

    No document of the collection at a lower seqno is left after it.
    """

    vbucket: int
    epoch: int
    seqno: int
    round: int
    keeps: bool = False
    """It is a drop that removes none (`dcp.lake.receive.system_events.DroppedPolicy`)."""


class ReplicaFacts(Protocol):
    """The facts about one replica and the log from which a slice is decided."""

    @property
    def cleaned_round(self) -> int:
        """Up to this round the log may lack published rows; 0 if it is whole."""

    def states(self, rounds: Collection[int]) -> Mapping[int, Mapping[int, VbucketProgress]]:
        """Return every vbucket's state after some rounds; none at all after round 0."""

    def forks(
        self, after_round: int, to_round: int, vbuckets: Collection[int]
    ) -> Sequence[Fork]: ...

    def collection_events(
        self, from_round: int, to_round: int, vbuckets: Collection[int]
    ) -> Sequence[CollectionEvent]: ...

    def older_versions(self) -> Sequence[AppliedVersion]:
        """Return the versions that may still be readable, newest first."""

    def is_readable(self, version: int, vbucket: int) -> bool: ...


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
    """Every vbucket is replaced, stale, or of a dropped collection whose rows are kept. The table's
    present rows do not matter.
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
        """The versions that give the vbuckets their lost rows, without those that it replaces as a
        whole.
        """
        return {each.vbucket: each.version for each in self.undone if not each.is_replacement}

    def applied_to(self, held: AppliedVersion) -> AppliedVersion:
        """Return what a table becomes that holds ``held``.

        The version stays that of ``held``: Delta numbers the new one.
        """
        return AppliedVersion(
            held.table,
            held.version,
            held.to_round,
            self.to_round,
            self.log_from_round,
            tuple(StaleVbucket(*each) for each in sorted(self.stale.items())),
            self.undone,
            self.cleared,
            self.revived,
            self.first_round,
        )

    @property
    def has_work(self) -> bool:
        return bool(self.ranges or self.undone or self.cleared)

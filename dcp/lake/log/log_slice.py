"""A slice of the log: the row ranges of an apply, and the facts that decide them.

The rules are in `dcp.lake.apply.slice_rules`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from dcp.lake.log.epochs import Fork
from dcp.lake.tables.vbucket_state import VbucketProgress

REPLACED: Final = -1
EMPTY_TABLE: Final = 0


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

    No document of the collection at a lower seqno is left after it. With ``keeps`` it is a drop
    that removes none (`dcp.lake.receive.system_events.DroppedPolicy`).
    """

    vbucket: int
    epoch: int
    seqno: int
    round: int
    keeps: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Undo:
    """The rollback of a vbucket in a replica: rows above ``fork_seqno`` are undone.

    ``version`` is the one that its lost rows come from; 0 is the empty table, -1 says that the
    vbucket was replaced as a whole.
    """

    vbucket: int
    version: int
    fork_seqno: int

    @property
    def is_replacement(self) -> bool:
        """True if the whole vbucket was replaced."""
        return self.version == REPLACED


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """A version of a replica and the round it holds; ``stale`` vbuckets are at older rounds."""

    version: int
    round: int
    stale: Mapping[int, int] = field(default_factory=dict)

    def round_of(self, vbucket: int) -> int:
        """Return the round whose state it holds of a vbucket."""
        return self.stale.get(vbucket, self.round)


class ReplicaFacts(Protocol):
    """The facts about one replica and the log from which a slice is decided."""

    @property
    def cleaned_round(self) -> int:
        """Up to this round the log may lack rows that were published; 0 where it is whole."""

    def states(self, rounds: Collection[int]) -> Mapping[int, Mapping[int, VbucketProgress]]:
        """Return every vbucket's state after some rounds; none at all after round 0."""

    def forks(self, after_round: int, to_round: int, vbuckets: Collection[int]) -> Sequence[Fork]:
        """Return the forks of some vbuckets in rounds after one, up to another."""

    def collection_events(
        self, from_round: int, to_round: int, vbuckets: Collection[int]
    ) -> Sequence[CollectionEvent]:
        """Return what became of the replica's collection in some vbuckets, in these rounds."""

    def older_versions(self) -> Sequence[HeldVersion]:
        """Return the versions that could be read as they were, newest first."""

    def is_readable(self, version: int, vbucket: int) -> bool:
        """Return whether the rows of a vbucket in an old version can still be read."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The row ranges that an apply takes from the log, and what it does to each vbucket.

    What a vbucket is listed in says what becomes of the rows that the table has of it:

    ========================  =====================================================================
    ``ranges`` alone          they stay, but for the keys that ``ranges`` have newer rows of
    ``undone``                those above the fork go back to the version named, or all are replaced
    ``cleared``               all go: the collection was flushed or dropped
    ``revived``               all keys of the version gone back to return: a flush or drop is undone
    ``stale``                 they stay as they were at that round
    ========================  =====================================================================

    Of those ``undone`` the ``replaced`` are replaced as a whole, and the ``restored`` go back to an
    older version. The ``emptied`` keep none of their old rows: they are replaced or cleared.

    With ``begins_anew`` every vbucket is replaced, stale, or of a dropped collection whose rows are
    kept, and what rows the table has does not matter. All rows are in rounds ``first_round`` to
    ``to_round``; ``log_from_round`` is what `dcp.lake.log.applied.AppliedVersion` means by it.
    """

    ranges: tuple[RowRange, ...]
    first_round: int
    to_round: int
    log_from_round: int
    undone: tuple[Undo, ...] = ()
    cleared: tuple[int, ...] = ()
    revived: tuple[int, ...] = ()
    stale: Mapping[int, int] = field(default_factory=dict)
    begins_anew: bool = False

    @property
    def vbuckets(self) -> tuple[int, ...]:
        """The vbuckets that it may touch, in order."""
        return tuple(
            sorted({*(each.vbucket for each in self.ranges), *self.emptied, *self.revived})
        )

    @property
    def replaced(self) -> tuple[int, ...]:
        """The vbuckets that are replaced as a whole, in order."""
        return tuple(each.vbucket for each in self.undone if each.is_replacement)

    @property
    def emptied(self) -> tuple[int, ...]:
        """The vbuckets that keep none of their old rows, in order."""
        return tuple(sorted({*self.cleared, *self.replaced}))

    @property
    def restored(self) -> Mapping[int, int]:
        """From which version the vbuckets get their lost rows that are not replaced as a whole."""
        return {each.vbucket: each.version for each in self.undone if not each.is_replacement}

    @property
    def has_work(self) -> bool:
        """True if it can change a row."""
        return bool(self.ranges or self.undone or self.cleared)

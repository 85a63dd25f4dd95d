"""What one apply of a replica table does, as pure data, and the rules that decide it. No Spark.

Every rollback of a vbucket starts a new epoch of it, at a fork seqno. A row (epoch g, seqno s) is
*live* when s <= the fork seqno of every later epoch; what is not live is on a dead branch and is
never published. An apply from round a to round b publishes, for each vbucket, the live rows with
``complete(a) < seqno <= complete(b)``; of each key the newest one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dcp.errors import LakeError
from dcp.lake.memory import DOCUMENT_BYTES
from dcp.lake.vbucket_state import FIRST_EPOCH, VbucketState

KEY_LITERALS: Final = 10_000
"""Up to so many changed keys go into the MERGE as literals; beyond it a hash join is cheaper."""


@dataclass(frozen=True, slots=True)
class Fork:
    """The start of an epoch: history of earlier epochs beyond ``seqno`` is dead."""

    vbucket: int
    epoch: int
    seqno: int

    def __post_init__(self) -> None:
        """Reject the first epoch, which forks from nothing."""
        if self.epoch <= FIRST_EPOCH:
            raise ValueError(f"fork: found epoch {self.epoch}, expected one after {FIRST_EPOCH}")


@dataclass(frozen=True, slots=True)
class PublishedRange:
    """What an apply publishes of one vbucket and epoch: above ``low``, up to ``high``."""

    vbucket: int
    epoch: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where in the log the rows of an apply are: from ``first_round`` to ``to_round``.

    ``log_from_round`` is what `dcp.lake.applied.AppliedVersion` means by it.
    """

    ranges: tuple[PublishedRange, ...]
    first_round: int
    to_round: int
    log_from_round: int


@dataclass(frozen=True, slots=True)
class Winner:
    """The newest row to publish of one key: where it is in the log."""

    key: str
    round: int
    vbucket: int
    epoch: int
    seqno: int


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """One MERGE: which stretch of the log it reads, and what it publishes into which table.

    ``winners`` are the rows to publish, none at all if the table is only moved on, or None when
    they are too many to be named. ``base_version`` is the version of the table that the plan was
    made on, and ``since_version`` the one that put it where it stands (an apply, or a RESTORE: the
    fence counts it). ``is_first`` says that no commit has changed a row of it so far: it is empty.
    ``largest_bytes`` is the size of the largest document in the stretch.
    """

    table: str
    collection_id: int
    from_round: int
    stretch: Stretch
    winners: tuple[Winner, ...] | None = field(repr=False)
    base_version: int
    since_version: int
    is_first: bool = False
    largest_bytes: int = DOCUMENT_BYTES

    @property
    def to_round(self) -> int:
        """The round that the table holds afterwards."""
        return self.stretch.to_round

    @property
    def vbuckets(self) -> tuple[int, ...]:
        """The vbuckets that it touches, in order."""
        return tuple(sorted({each.vbucket for each in self.winners or self.stretch.ranges}))

    @property
    def method(self) -> str:
        """How rows find their target: ``key literals`` or ``hash join``."""
        return "hash join" if self.winners is None else "key literals"

    def __str__(self) -> str:
        """Say in one line what it does."""
        count = "many" if self.winners is None else str(len(self.winners))
        return (
            f"apply {self.table}: round {self.from_round} -> {self.to_round}, {count} changed keys "
            f"in {len(self.vbuckets)} vbuckets, by {self.method}, reading changes from round "
            f"{self.stretch.first_round}"
        )

    def to_json(self) -> dict[str, object]:
        """Return the plan for machines; the keys are counted, not listed."""
        return {
            "table": self.table,
            "from_round": self.from_round,
            "to_round": self.to_round,
            "first_round": self.stretch.first_round,
            "vbuckets": list(self.vbuckets),
            "changed_keys": None if self.winners is None else len(self.winners),
            "method": self.method,
            "base_version": self.base_version,
        }


def published_ranges(
    before: Mapping[int, VbucketState],
    after: Mapping[int, VbucketState],
    forks: Iterable[Fork],
    from_round: int,
) -> tuple[PublishedRange, ...]:
    """Return what an apply publishes; empty where no vbucket can have a row for it.

    ``before`` and ``after`` are the states at the two rounds; a vbucket that ``before`` lacks was
    at its beginning.

    Raises:
        LakeError: the log contradicts itself, or asks to take back what is published already.

    """
    by_vbucket: dict[int, list[Fork]] = {}
    for fork in forks:
        by_vbucket.setdefault(fork.vbucket, []).append(fork)
    ranges: list[PublishedRange] = []
    for vbucket, state in sorted(after.items()):
        old = before.get(vbucket) or VbucketState.beginning(vbucket)
        _refuse_undo(old, state, by_vbucket.get(vbucket, ()))
        if not may_have_rows(old, state, from_round):
            continue
        for epoch in range(FIRST_EPOCH, state.epoch + 1):
            high = min(
                state.complete_seqno,
                live_up_to(epoch, state.epoch, by_vbucket.get(vbucket, ())),
            )
            if high > old.complete_seqno:
                ranges.append(PublishedRange(vbucket, epoch, old.complete_seqno, high))
    return tuple(ranges)


def may_have_rows(old: VbucketState, new: VbucketState, from_round: int) -> bool:
    """Whether the log can hold a document row of this vbucket to publish."""
    if new.complete_seqno <= old.complete_seqno:
        return False
    brought = new.last_data_round is not None and new.last_data_round > from_round
    return brought or old.first_pending_round is not None


def live_up_to(epoch: int, newest_epoch: int, forks: Iterable[Fork]) -> int:
    """Return the newest seqno of ``epoch`` that is live, seen from ``newest_epoch``."""
    later = [fork.seqno for fork in forks if epoch < fork.epoch <= newest_epoch]
    return min(later, default=2**64 - 1)


def oldest_pending_round(states: Iterable[VbucketState], otherwise: int) -> int:
    """Return the oldest round with a row that waits in one of these states, or an older one.

    ``otherwise`` is the round from which on everything is asked for anyway.
    """
    pending = (state.first_pending_round for state in states)
    return min([otherwise, *(number for number in pending if number)])


def _refuse_undo(old: VbucketState, new: VbucketState, forks: Iterable[Fork]) -> None:
    known = {fork.epoch for fork in forks}
    missing = set(range(FIRST_EPOCH + 1, new.epoch + 1)) - known
    if missing or new.epoch < old.epoch:
        raise LakeError(
            f"changes: vbucket {new.vbucket} is in epoch {new.epoch} (was {old.epoch}), but no "
            f"fork of the epochs {sorted(missing) or '(none missing)'} is recorded"
        )
    for fork in forks:
        if old.epoch < fork.epoch <= new.epoch and fork.seqno < old.complete_seqno:
            raise LakeError(
                f"vbucket {new.vbucket}: rolled back to seqno {fork.seqno} (epoch {fork.epoch}), "
                f"below the published seqno {old.complete_seqno}; undoing what a replica has "
                "published is not yet supported, the table is left as it is"
            )
    if new.complete_seqno < old.complete_seqno:
        raise LakeError(
            f"changes: vbucket {new.vbucket} went back from complete seqno {old.complete_seqno} "
            f"to {new.complete_seqno} without a rollback"
        )

"""Defines live history and dead branches of a vbucket, by its epochs. No Spark.

Every rollback of a vbucket starts a new epoch of it, at a fork seqno. A row, or what a version of a
replica holds, (epoch g, seqno s) is *live* when s <= the fork seqno of every later epoch; what is
not live is on a dead branch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dcp.lake.tables.vbucket_state import FIRST_EPOCH
from dcp.types import U64_MAX


@dataclass(frozen=True, slots=True)
class Fork:
    """The start of an epoch, in a round: history of earlier epochs beyond ``seqno`` is dead."""

    vbucket: int
    epoch: int
    seqno: int
    round: int

    def __post_init__(self) -> None:
        if self.epoch <= FIRST_EPOCH:
            raise ValueError(f"fork: found epoch {self.epoch}, expected one after {FIRST_EPOCH}")


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


def live_up_to(epoch: int, newest_epoch: int, forks: Iterable[Fork]) -> int:
    """Return the newest seqno of ``epoch`` that is live, seen from ``newest_epoch``.

    ``forks`` are those of one vbucket.
    """
    later = (fork.seqno for fork in forks if epoch < fork.epoch <= newest_epoch)
    return min(later, default=U64_MAX)


def begun_anew(
    stale: Mapping[int, int], forks: Iterable[Fork], cleaned_round: int
) -> frozenset[int]:
    """Return the stale vbuckets whose new history begins at 0 and is complete in the log.

    ``stale`` are vbuckets and the rounds that they are shown at. A beginning in a cleaned round may
    lack rows: that vbucket must begin once more.
    """
    return frozenset(
        fork.vbucket
        for fork in forks
        if fork.seqno == 0
        and fork.vbucket in stale
        and fork.round > max(stale[fork.vbucket], cleaned_round)
    )


def is_live(epoch: int, seqno: int, newest_epoch: int, forks: Iterable[Fork]) -> bool:
    """Return whether (``epoch``, ``seqno``) is on the history that ``newest_epoch`` continues."""
    return epoch <= newest_epoch and seqno <= live_up_to(epoch, newest_epoch, forks)


def dead_by_sql(fork: str, row: str) -> str:
    """Return the condition by which a fork kills a row, of one vbucket: `is_live` in SQL.

    Both are names of structs or tables with ``epoch`` and ``seqno``.
    """
    return f"{fork}.epoch > {row}.epoch AND {row}.seqno > {fork}.seqno"

"""The state of one vbucket after a round, as its ``position`` row stores it.

Each field of `LakeVbucketState` is a column of the row. Unsigned 64-bit values are Python ints here
and DECIMAL(20,0) in tables: a float or signed 64-bit integer would damage them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final

import pyarrow as pa

from dcp.protocol.position import Position
from dcp.records import SPREAD
from dcp.types import U16_MAX, FailoverLog, require_unsigned


@dataclass(frozen=True, slots=True)
class RollbackOrder:
    """The refused stream request, the seqno to roll back to, and the server's failover log."""

    from_seqno: int
    """The seqno of the refused request."""
    to_seqno: int
    from_vb_uuid: int
    """The branch of the refused request."""
    failover_log: FailoverLog | None = None
    """None if the server did not send it."""

    def __post_init__(self) -> None:
        for name in ("from_vb_uuid", "from_seqno", "to_seqno"):
            require_unsigned(name, getattr(self, name))
        if self.to_seqno > self.from_seqno:
            raise ValueError(
                f"rollback order: found seqno {self.to_seqno}, expected at most the requested "
                f"{self.from_seqno}"
            )

    @property
    def is_for_unknown_branch(self) -> bool:
        failover_log = self.failover_log
        return failover_log is not None and all(
            entry.vb_uuid != self.from_vb_uuid for entry in failover_log.entries
        )

    def __str__(self) -> str:
        return (
            f"the producer ordered a rollback from seqno {self.from_seqno} "
            f"(branch {self.from_vb_uuid:016x}) to {self.to_seqno}"
        )


class RestartReason(StrEnum):
    """The reason why a vbucket begins a new epoch. Rounds and the view ``epochs`` show it."""

    ROLLBACK = "rollback"
    STALE = "stale"
    """A replica could not follow a rollback: the rows are in no readable version and not in the
    log."""
    FILTER = "filter"
    """The filter has changed, so that all rows are read again."""
    BACKFILL = "backfill"
    RESYNC = "resync"


@dataclass(frozen=True, slots=True)
class Restart:
    """The start of a vbucket's next epoch. Its fork ``seqno`` is a complete seqno."""

    vbucket: int
    reason: RestartReason
    seqno: int = 0
    vb_uuid: int = 0
    """The branch that holds the seqno."""
    is_fruitless: bool = False
    """See `LakeVbucketState.fruitless_rollbacks`."""


FIRST_EPOCH = 0

Round = Annotated[int, pa.int64()]
Vbucket = Annotated[int, pa.int32()]

_ROUNDS: Final = (
    "first_incomplete_round",
    "last_data_round",
    "last_complete_round",
    "last_collection_round",
)


@dataclass(frozen=True, slots=True)
class LakeVbucketState:
    """A vbucket's position in its stream, and what a round needs to continue from there."""

    vbucket: Vbucket
    epoch: Annotated[int, pa.int32()]
    position: Annotated[Position, SPREAD]
    caught_up_seqno: int = 0
    """The complete seqno at which the vbucket last caught up with its node; 0 before that.

    A restart sets it to the fork's seqno, and a start (`starting_at`) to the start seqno.
    """
    first_incomplete_round: Round | None = None
    """A lower bound of the oldest round with rows above the complete seqno."""
    last_data_round: Round | None = None
    last_complete_round: Round | None = None
    """The newest round that reached a snapshot's end on the present branch.

    None after a rollback to 0: the lake then has no whole state of the vbucket.
    """
    last_collection_round: Round | None = None
    """The newest round that brought a begin or end of a collection, on any branch."""
    failover_log: FailoverLog | None = None
    """The failover log that was accepted together with the data up to ``position``."""
    filter_fingerprint: str | None = None
    start_seqno: int | None = None
    """The lake lacks all older history (`filter.since` is now). None: it reads from seqno 0."""
    purge_seqno: int | None = None
    order: RollbackOrder | None = None
    """A rollback order that no restart has followed."""
    fruitless_rollbacks: Annotated[int, pa.int32()] = 0
    """Consecutive rollbacks without progress.

    Such a rollback led to the request that the node had refused, or to 0 before the vbucket was
    caught up.
    """
    rollbacks: Annotated[int, pa.int32()] = 0
    """All rollbacks that nodes have ordered in the life of the lake."""

    def __post_init__(self) -> None:
        require_unsigned("vbucket", self.vbucket, U16_MAX)
        require_unsigned("epoch", self.epoch, 2**31 - 1)
        require_unsigned("caught_up_seqno", self.caught_up_seqno)
        for name in ("start_seqno", "purge_seqno"):
            if (value := getattr(self, name)) is not None:
                require_unsigned(name, value)
        for name in _ROUNDS:
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}: found {value}, expected a round (1 or more) or None")

    @classmethod
    def beginning(cls, vbucket: int) -> "LakeVbucketState":
        return cls(vbucket, FIRST_EPOCH, Position.beginning())

    @property
    def complete_seqno(self) -> int:
        """The newest complete snapshot end. Rows up to it may be published."""
        return self.position.complete_seqno

    @property
    def is_whole(self) -> bool:
        """True if the rows up to ``complete_seqno`` are a state of the source, perhaps empty."""
        return self.complete_seqno > 0 or self.last_complete_round is not None

    @property
    def is_beginning_again(self) -> bool:
        """True if the vbucket began at 0 again, and the new history is not whole."""
        return self.epoch > FIRST_EPOCH and not self.is_whole

    def starting_at(self, failover_log: FailoverLog, seqno: int) -> "LakeVbucketState":
        """Return the state of an unread vbucket that starts at ``seqno``.

        ``failover_log`` is its node's failover log. No stream has accepted it yet, but a rollback
        of the first stream needs one.
        """
        vb_uuid = failover_log.uuid_at(seqno) if seqno else 0
        return replace(
            self,
            position=Position.complete_at(vb_uuid, seqno),
            caught_up_seqno=seqno,
            start_seqno=seqno,
            failover_log=failover_log,
        )

    def started_below(self, seqno: int) -> int:
        """Return the lower of ``seqno`` and the start; 0 without a start.

        The lake has no rows up to its start, so that it can continue from any seqno there.
        """
        return min(self.start_seqno or 0, seqno)

    def restarted(self, restart: Restart) -> "LakeVbucketState":
        seqno = restart.seqno
        return replace(
            self,
            epoch=self.epoch + 1,
            position=Position.complete_at(restart.vb_uuid, seqno),
            caught_up_seqno=seqno,  # the node that proved a higher one may have lost it
            first_incomplete_round=None,
            last_complete_round=self.last_complete_round if seqno else None,
            purge_seqno=None,
            order=None,
            fruitless_rollbacks=self.fruitless_rollbacks + 1 if restart.is_fruitless else 0,
        )

    def advanced(
        self,
        round_number: int,
        position: Position,
        *,
        brought_rows: bool,
        brought_collections: bool = False,
        failover_log: FailoverLog | None = None,
        caught_up_seqno: int | None = None,
        purge_seqno: int | None = None,
    ) -> "LakeVbucketState":
        """Return the state after ``round_number`` streamed up to ``position`` in the same epoch.

        None leaves a field unchanged.

        Raises:
            ValueError: the position goes back, which only a rollback may, in a new epoch.
        """
        before = self.position
        if position.seqno < before.seqno or position.complete_seqno < before.complete_seqno:
            raise ValueError(
                f"vbucket {self.vbucket}: found position {position} after {before}, "
                "expected one that does not go back"
            )
        # A vbucket that is caught up at seqno 0 is empty at the source, so its state is whole.
        is_empty = position.seqno == 0 and caught_up_seqno is not None
        completed = position.complete_seqno > before.complete_seqno or is_empty
        return replace(
            self,
            position=position,
            caught_up_seqno=self.caught_up_seqno if caught_up_seqno is None else caught_up_seqno,
            first_incomplete_round=self._first_incomplete(round_number, position, completed),
            last_data_round=round_number if brought_rows else self.last_data_round,
            last_complete_round=round_number if completed else self.last_complete_round,
            last_collection_round=round_number
            if brought_collections
            else self.last_collection_round,
            failover_log=failover_log or self.failover_log,
            purge_seqno=self.purge_seqno if purge_seqno is None else purge_seqno,
            # An accepted stream request, which brings a failover log, ends a series of rollbacks.
            fruitless_rollbacks=self.fruitless_rollbacks if failover_log is None else 0,
        )

    def ordered(self, order: RollbackOrder) -> "LakeVbucketState":
        return replace(self, order=order, rollbacks=self.rollbacks + 1)

    def _first_incomplete(
        self, round_number: int, position: Position, completed: bool
    ) -> int | None:
        """Return the oldest round that may have rows above the complete seqno."""
        if position.is_complete:
            return None
        # A new complete seqno is at or above every row of earlier rounds, so that only this round
        # can have brought rows above it.
        return round_number if completed else (self.first_incomplete_round or round_number)


def state_of(states: Mapping[int, LakeVbucketState], vbucket: int) -> LakeVbucketState:
    """Return a vbucket's state; one that ``states`` lacks has never been read."""
    return states.get(vbucket) or LakeVbucketState.beginning(vbucket)

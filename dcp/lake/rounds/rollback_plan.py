"""Decides where a vbucket restarts after its producer ordered a rollback. Pure.

The new epoch forks at E: the newest complete seqno on the live history at or below the ordered one.
The uuid for E comes from the failover log that was accepted *with that data*. A newer one may have
a branch, from a second failover, that the lake never read. At 0 the uuid is 0.

A producer that does not know a request's branch orders a rollback to 0, although the failover logs
nearly always share history. The first retry is therefore at their newest common ancestor, with its
uuid. (kv_engine's own replication does the same, ``dcp/passive_stream.cc``.)
"""

from typing import Final

from dcp.lake.config.settings import RollbackPolicy
from dcp.lake.rounds.round_plan import LeftOut
from dcp.lake.tables.round_record import StuckReason
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart, RestartReason
from dcp.types import FailoverEntry, FailoverLog

FRUITLESS_MOST: Final = 2
"""So many rollbacks in a row to the request that the node refused mean no progress."""


def plan_rollback(
    state: LakeVbucketState, complete_seqno: int, policy: RollbackPolicy
) -> Restart | LeftOut:
    """Return where a vbucket with a rollback order restarts, or why it cannot.

    ``complete_seqno`` is the newest snapshot end on its live history up to the `rollback_target`; 0
    without one.
    """
    if (order := state.order) is None:
        raise ValueError(f"vbucket {state.vbucket}: found no rollback order, expected one")
    if policy is RollbackPolicy.FAIL:
        return LeftOut(
            state.vbucket,
            StuckReason.ROLLBACK,
            f"{order}; policy.rollback is fail: set it to rewrite or resync, or run "
            f"dcplake resync --vbuckets {state.vbucket} (dcplake plan shows how much that reads)",
        )
    most_seqno, branches = rollback_target(state, policy)
    seqno = max(state.started_below(most_seqno), complete_seqno)
    vb_uuid = branches.uuid_at(seqno) if seqno and branches is not None else 0
    is_refused_again = (vb_uuid, seqno) == (order.from_vb_uuid, order.from_seqno)
    # A producer that has purged tombstones orders a rollback to 0 if a consumer resumes below the
    # newest purged one. If the next round ends below it again, the producer repeats the order. So a
    # round reads a vbucket with fruitless rollbacks up to its high seqno, whatever the budget.
    is_fruitless = is_refused_again or seqno == state.caught_up_seqno == 0
    if is_refused_again and state.fruitless_rollbacks + 1 >= FRUITLESS_MOST:
        return LeftOut(
            state.vbucket,
            StuckReason.ROLLBACK_WITHOUT_PROGRESS,
            f"{order}, again, although nothing was read since the last order; the node does not "
            f"follow the protocol, or lost more than it says: "
            f"dcplake resync --vbuckets {state.vbucket} streams it again from the beginning",
        )
    return Restart(state.vbucket, RestartReason.ROLLBACK, seqno, vb_uuid, is_fruitless)


def rollback_target(
    state: LakeVbucketState, policy: RollbackPolicy
) -> tuple[int, FailoverLog | None]:
    """Return the highest seqno to go back to, and the failover log that tells its branch.

    The vbucket goes back to a complete seqno at or below it.
    """
    order = state.order
    assert order is not None
    ours, theirs = state.failover_log, order.failover_log
    if policy is RollbackPolicy.RESYNC or ours is None:
        return 0, None
    if order.to_seqno == 0 and order.is_for_unknown_branch and theirs is not None:
        return common_history(ours, theirs, state.position.seqno)
    return order.to_seqno, ours


def common_history(
    ours: FailoverLog, theirs: FailoverLog, our_seqno: int
) -> tuple[int, FailoverLog | None]:
    """Return the end of the history that two failover logs share, and the shared branches of ours.

    In a failover log, a branch ends at the start of the next newer one; our newest ends at
    ``our_seqno``. Both share a branch up to the earlier of its two ends.
    """
    ends: dict[int, int | None] = {}
    end: int | None = None
    for entry in theirs.entries:
        ends[entry.vb_uuid] = end
        end = entry.seqno
    shared: list[FailoverEntry] = []
    seqno, our_end = 0, our_seqno
    for entry in ours.entries:
        if entry.vb_uuid in ends:
            their_end = ends[entry.vb_uuid]
            if not shared:
                seqno = our_end if their_end is None else min(our_end, their_end)
            shared.append(entry)
        our_end = min(our_seqno, entry.seqno)
    return (seqno, FailoverLog(tuple(shared))) if shared else (0, None)


def start_seqno_on(state: LakeVbucketState, failover_log: FailoverLog) -> int | None:
    """Return a vbucket's start on the history of an accepted failover log.

    It is lower if the history forked off below the old start: the lake needs all writes after the
    fork. It is 0 if the common part of the history is unknown.
    """
    ours, start_seqno = state.failover_log, state.start_seqno
    if ours is None or not start_seqno:
        return start_seqno
    common_seqno, _ = common_history(ours, failover_log, start_seqno)
    return common_seqno

"""The reason with which a vbucket's next epoch begins, if several providers ask for a restart."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.client.probe import ProbedCluster, VbucketHolder
from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.settings import PolicySettings, RollbackPolicy, RoundSettings, Settings
from dcp.lake.rounds.backfill_plan import BackfillPlan
from dcp.lake.rounds.lake_state import read_lake_state
from dcp.lake.rounds.round_plan import BackfillNodes, Idle
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.vbucket_state import LakeVbucketState, RestartReason, RollbackOrder
from dcp.protocol.position import Position
from dcp.types import FailoverEntry, FailoverLog
from tests.lake.forking_log import ForkingLog

NODE, REPLICA = NodeAddress("node", 11210), NodeAddress("node", 11220)
BRANCH: Final = 7
LOG = FailoverLog((FailoverEntry(BRANCH, 0),))
CLUSTER = ProbedCluster(
    ClusterMap("b", "uuid", 1, 1, (NODE, REPLICA), (0,)), {0: 12}, {}, None, {0: LOG}
)

REFUSED: Final = "refused"
"""The node ordered a rollback, and ``policy.rollback`` is fail."""
FILTER, RESYNC, STALE, ROLLBACK, BACKFILL = (
    RestartReason.FILTER,
    RestartReason.RESYNC,
    RestartReason.STALE,
    RestartReason.ROLLBACK,
    RestartReason.BACKFILL,
)
WINNERS: Final = {
    (REFUSED, FILTER): REFUSED,
    (REFUSED, RESYNC): RESYNC,
    (REFUSED, STALE): STALE,
    (REFUSED, BACKFILL): REFUSED,
    (FILTER, RESYNC): FILTER,
    (FILTER, STALE): FILTER,
    (FILTER, ROLLBACK): FILTER,
    (FILTER, BACKFILL): FILTER,
    (RESYNC, STALE): RESYNC,
    (RESYNC, ROLLBACK): RESYNC,
    (RESYNC, BACKFILL): RESYNC,
    (STALE, ROLLBACK): STALE,
    (STALE, BACKFILL): STALE,
    (ROLLBACK, BACKFILL): ROLLBACK,
    # A resync reads the vbucket from seqno 0, so no order holds it back.
    (REFUSED, FILTER, RESYNC): FILTER,
    (REFUSED, FILTER, STALE): FILTER,
}


def decided(asked: Collection[str], *, has_started: bool = True) -> str | None:
    """Return the reason of the next round's restart, or why the vbucket is left out.

    ``asked`` ask for a restart of the only vbucket.
    """
    state = LakeVbucketState(
        0,
        0,
        Position.complete_at(BRANCH, 10),
        caught_up_seqno=10,
        failover_log=LOG if has_started else None,
        start_seqno=None if has_started else 0,
    )
    now = FilterSettings(since="" if has_started else "now")
    followed = DocumentFilter.resolve(replace(now, exclude_keys=""), None)
    state = replace(state, filter_fingerprint=followed.fingerprint)
    if ROLLBACK in asked or REFUSED in asked:
        state = state.ordered(RollbackOrder(10, 4, BRANCH))
    log = ForkingLog(seed=1, vbuckets=1)
    log.append([], [state])
    policy = RollbackPolicy.FAIL if REFUSED in asked else RollbackPolicy.REWRITE
    copies = {0: VbucketHolder(REPLICA, 12, LOG)}
    backfill = BackfillPlan(BackfillNodes(reads_replicas=True), copies, frozenset({0}), {}, {})
    changed = DocumentFilter.resolve(replace(now, exclude_keys="x"), None)
    lake_state = read_lake_state(
        log.tables,
        Settings(policy=PolicySettings(rollback=policy)),
        changed if FILTER in asked else followed,
        {0: 1} if STALE in asked else {},
        {0: 1} if RESYNC in asked else {},
        lambda *_: backfill if BACKFILL in asked else None,
    )
    plan = plan_round(lake_state, CLUSTER, RoundSettings(), FlowControlSettings(), 1)
    if isinstance(plan, Idle):
        assert [left.reason for left in plan.left_out] == ["rollback"]
        return REFUSED
    [stream] = plan.streams
    return None if stream.restart is None else stream.restart.reason


@pytest.mark.parametrize("reason", [REFUSED, *RestartReason])
def test_each_provider_alone_decides(reason: str) -> None:
    assert decided([reason]) == reason


@pytest.mark.parametrize(("asked", "winner"), WINNERS.items(), ids=str)
def test_of_several_reasons_one_wins(asked: Collection[str], winner: str) -> None:
    assert decided(asked) == winner


def test_the_pairs_are_complete() -> None:
    alone = [REFUSED, *RestartReason]
    pairs = {frozenset((one, other)) for one in alone for other in alone if one != other}
    pairs.remove(frozenset((REFUSED, ROLLBACK)))  # one order is refused or followed
    assert pairs <= set(map(frozenset, WINNERS))


@pytest.mark.parametrize("reason", [RESYNC, STALE, ROLLBACK, BACKFILL])
def test_a_vbucket_that_has_not_started_has_no_rows_to_read_again(reason: str) -> None:
    assert decided([reason], has_started=False) is None
    assert decided([reason, FILTER], has_started=False) == FILTER

"""The rows of the log that may be removed: the rule against every possible rollback; no Spark."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.maintain.cleaning import (
    CleaningDeferredError,
    CleaningPlan,
    plan_cleaning,
    rounds_to_judge,
    versions_within,
)
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import TableCommit
from dcp.lake.tables.lake_tables import DOCS, ReplicaTable
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.protocol.position import Position
from dcp.records import plain

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = ReplicaTable("docs__shop__orders__8", 8)


def state(vbucket: int, complete: int, epoch: int = 0) -> LakeVbucketState:
    return replace(
        LakeVbucketState.beginning(vbucket),
        epoch=epoch,
        position=Position.complete_at(7 if complete else 0, complete),
    )


def stands_at(version: int, to_round: int, log_from: int | None = None) -> AppliedVersion:
    return AppliedVersion("docs", version, 0, to_round, to_round if log_from is None else log_from)


def test_the_least_of_all_replicas_decides() -> None:
    versions = {DOCS: [stands_at(3, 8, 6), stands_at(4, 9)], ORDERS: [stands_at(2, 5, 4)]}
    assert rounds_to_judge(versions.values()) == {5, 8}
    states = {
        5: {0: state(0, 50), 1: state(1, 90)},
        8: {0: state(0, 80), 1: state(1, 70, epoch=1)},
    }
    plan = plan_cleaning(versions, states)
    assert isinstance(plan, CleaningPlan)
    assert (plan.to_round, plan.keep_positions_from) == (5, 4)
    assert (plan.seqnos, plan.epochs) == ((50, 70), (0, 0))
    assert "collection_id IN (0, 8)" in plan.documents_sql()


def test_a_restore_within_the_horizon_keeps_what_it_went_back_to() -> None:
    versions = {DOCS: [stands_at(3, 8), stands_at(4, 9), stands_at(2, 3)]}
    assert rounds_to_judge(versions.values()) == {3, 8}
    plan = plan_cleaning(versions, {3: {0: state(0, 30)}, 8: {0: state(0, 80)}})
    assert isinstance(plan, CleaningPlan)
    assert (plan.to_round, plan.seqnos) == (3, (30,))


def test_before_the_first_apply_nothing_goes() -> None:
    with pytest.raises(CleaningDeferredError):
        plan_cleaning({DOCS: [stands_at(3, 0)]}, {0: {}})
    with pytest.raises(CleaningDeferredError):
        plan_cleaning({}, {})


def commits(*hours_ago: float) -> list[TableCommit]:
    """A table: made first, then an apply to round n at version n."""
    made = []
    for version, ago in enumerate(hours_ago):
        ours = {
            "from_round": version - 1,
            "to_round": version,
            "log_from_round": version,
            "writer": "w",
        }
        operation = "MERGE" if version else "CREATE TABLE"
        time = NOW - timedelta(hours=ago)
        made.append(TableCommit(version, time, operation, ours if version else {}))
    return made[::-1]


@pytest.mark.parametrize(
    ("horizon_hours", "rounds"),
    [(1, [3]), (2, [3]), (3, [2, 3]), (9, [1, 2, 3]), (11, None), (30, None)],
)
def test_the_versions_that_a_rollback_may_need(
    horizon_hours: float, rounds: list[int] | None
) -> None:
    commit_history = CommitHistory(tuple(commits(20, 10, 5, 2)))
    start = NOW - timedelta(hours=horizon_hours)
    if rounds is None:
        with pytest.raises(CleaningDeferredError):
            versions_within(DOCS, commit_history, start, ())
    else:
        assert [
            each.to_round for each in versions_within(DOCS, commit_history, start, ())
        ] == rounds


def test_what_the_history_forgot_is_told_by_heartbeats_and_by_the_index() -> None:
    start = NOW - timedelta(hours=1)
    cut = CommitHistory((TableCommit(9, NOW - timedelta(hours=2), "OPTIMIZE"),))
    with pytest.raises(CleaningDeferredError):
        versions_within(DOCS, cut, start, ())
    indexed = [stands_at(4, 4), stands_at(7, 6), stands_at(30, 20)]
    assert versions_within(DOCS, cut, start, indexed) == [indexed[1]]
    told = {"since": 5, **plain(AppliedVersion("docs", 5, 1, 2, 2))}
    beat = TableCommit(
        10, NOW - timedelta(hours=2), "WRITE", {"read_version": 9, "heartbeat": told}
    )
    found = versions_within(DOCS, CommitHistory((beat, *cut.commits)), start, indexed)
    assert found == [AppliedVersion("docs", 5, 1, 2, 2)]
    foreign = TableCommit(11, NOW - timedelta(hours=2), "UPDATE")
    with pytest.raises(CleaningDeferredError):
        versions_within(DOCS, CommitHistory((foreign, beat)), start, indexed)


Step = tuple[int, int | None]
"""What a round brings a vbucket: so many seqnos, or first a rollback that keeps so many."""


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.none() | st.integers(0, 100)), min_size=2, max_size=12
    ),
    st.data(),
)
def test_no_rollback_within_the_horizon_misses_a_row(
    steps: list[Step], data: st.DataObject
) -> None:
    """Rounds of one vbucket, each applied; rollbacks go back at most to the version at the horizon.

    After the cleaning, from every version that is live, all live rows above it are in the log.
    """
    at_horizon = data.draw(st.integers(1, len(steps)))
    rows: set[tuple[int, int, int]] = set()  # round, epoch, seqno
    forks: dict[int, int] = {}
    after: dict[int, tuple[int, int]] = {}  # round -> epoch, complete
    epoch = complete = 0
    for number, (items, kept_part) in enumerate(steps, 1):
        if kept_part is not None:
            floor = (
                min(after[r][1] for r in range(at_horizon, number)) if number > at_horizon else 0
            )
            epoch += 1
            complete = forks[epoch] = floor + (complete - floor) * kept_part // 100
        for _ in range(items):
            complete += 1
            rows.add((number, epoch, complete))
        after[number] = (epoch, complete)

    def is_live(row_epoch: int, seqno: int) -> bool:
        return all(seqno <= fork for later, fork in forks.items() if later > row_epoch)

    versions = {DOCS: [stands_at(number, number) for number in range(at_horizon, len(steps) + 1)]}
    states = {
        n: {0: state(0, after[n][1], after[n][0])} for n in rounds_to_judge(versions.values())
    }
    plan = plan_cleaning(versions, states)
    assert isinstance(plan, CleaningPlan)
    [epoch], [newest] = plan.epochs, plan.seqnos
    left = {
        row
        for row in rows
        if not (row[0] <= plan.to_round and row[1] <= epoch and row[2] <= newest)
    }
    for number in range(at_horizon, len(steps) + 1):
        version_epoch, version_complete = after[number]
        if not is_live(version_epoch, version_complete):
            continue
        needed = {row for row in rows if is_live(*row[1:]) and row[2] > version_complete}
        assert needed <= left
    assert plan.keep_positions_from <= at_horizon

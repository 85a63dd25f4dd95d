"""The cases in which tables that follow DCP go wrong, each by name, against a real producer.

The product's driver over tables in memory; streams over sockets.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.epochs import forks_between
from dcp.lake.config.settings import RollbackPolicy
from dcp.lake.rounds.round_plan import Idle
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.store.log_slice import REPLACED
from dcp.lake.tables.lake_tables import DOCS, record_cleaned_round
from dcp.lake.tables.round_record import VbucketReport
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.wire.vocabulary import Status
from tests.lake.memory_rounds import MemoryRounds
from tests.lake.receiving import SMALL_FLOW, settings_for

NewCluster = Callable[..., ProducerCluster]
Values = dict[bytes, bytes]


@pytest.fixture
def new_cluster() -> Iterator[NewCluster]:
    with ExitStack() as stack:

        def make(**settings: Any) -> ProducerCluster:
            chosen = {"nodes": 2, "vbuckets": 1, "replicas": 1, "seed": 11, **settings}
            return stack.enter_context(ProducerCluster(ClusterSettings(**chosen)))

        yield make


def consumer(
    cluster: ProducerCluster, folder: Path, policy: RollbackPolicy = RollbackPolicy.REWRITE
) -> MemoryRounds:
    quick = {"quiet_seconds": 0.05, "node_deadline_seconds": 10.0}
    flow = {"batch_seconds": 0.01}
    settings = settings_for(
        cluster, folder, round=quick, flow_control=flow, policy={"rollback": str(policy)}
    )
    return MemoryRounds(settings)


def write(cluster: ProducerCluster, **documents: str) -> None:
    """Write documents one by one: each has a seqno of its own, together they are a snapshot."""
    with cluster.batch():
        for key, value in documents.items():
            cluster.set(key.encode(), value.encode())


def shown(rounds: MemoryRounds, vbucket: int = 0) -> Values:
    """What the replica's newest version holds of a vbucket."""
    rows = rounds.lake.versions[-1].rows
    return {key.encode(): row["value"] for (vb, key), row in rows.items() if vb == vbucket}


def held(cluster: ProducerCluster, vbucket: int = 0) -> Values:
    """What the producer holds now."""
    documents = cluster.state_at(vbucket, cluster.high_seqno(vbucket))
    return {key: document.value for key, document in documents.items()}


def follow(rounds: MemoryRounds) -> None:
    """Run rounds until there is nothing to do, then apply."""
    rounds.until_idle()
    rounds.apply()


def lose(cluster: ProducerCluster) -> None:
    """Fail over the node that holds vbucket 0, and let it come back empty."""
    node = cluster.vbucket_owner(0)
    cluster.failover(node)
    cluster.restore_node(node)


def test_phantoms_go_and_only_they(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1", b="1", c="1")
    follow(rounds)
    cluster.wait_until_replicated()
    cluster.pause_replication()
    write(cluster, phantom="x", a="lost")
    cluster.delete(b"b")
    follow(rounds)
    assert shown(rounds) == {b"a": b"lost", b"c": b"1", b"phantom": b"x"}
    lose(cluster)
    follow(rounds)
    assert shown(rounds) == held(cluster) == {b"a": b"1", b"b": b"1", b"c": b"1"}
    [undo] = rounds.lake.versions[-1].undone
    assert (undo.vbucket, undo.version, undo.fork_seqno) == (0, 1, 3)


def test_the_same_seqno_means_another_document_on_two_branches(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """The new branch is exactly as long as the lost tail: high seqnos tell nothing."""
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1", b="1")
    follow(rounds)
    cluster.wait_until_replicated()
    cluster.pause_replication()
    write(cluster, c="lost", d="lost")
    follow(rounds)
    high = cluster.high_seqno(0)
    lose(cluster)
    write(cluster, c="kept", e="kept")
    assert cluster.high_seqno(0) == high
    follow(rounds)
    assert shown(rounds) == held(cluster) == {
        b"a": b"1", b"b": b"1", b"c": b"kept", b"e": b"kept",
    }  # fmt: skip


def test_a_new_branch_whose_seqno_is_lower_than_the_dead_ones(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1")
    follow(rounds)
    cluster.wait_until_replicated()
    cluster.pause_replication()
    for number in range(10):
        write(cluster, a=f"lost {number}", b=f"lost {number}")
    follow(rounds)
    lose(cluster)
    write(cluster, a="new")
    assert cluster.high_seqno(0) < rounds.lake.states[0].position.seqno
    follow(rounds)
    assert shown(rounds) == held(cluster) == {b"a": b"new"}


def test_an_old_version_of_a_dead_branch_whose_number_fits_but_whose_branch_does_not(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """Version 2 ends at seqno 4 of a dead branch; the second rollback goes to 5 of another."""
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1", b="1")
    follow(rounds)  # version 1: seqno 2
    cluster.wait_until_replicated()
    cluster.pause_replication()
    write(cluster, a="dead", c="dead")
    follow(rounds)  # version 2: seqno 4 of the branch that dies
    lose(cluster)
    cluster.resume_replication()
    write(cluster, d="2", e="2", f="2")
    follow(rounds)  # version 3: seqno 5 of the second branch
    cluster.wait_until_replicated()
    cluster.pause_replication()
    write(cluster, a="dead too", g="dead too")
    follow(rounds)  # version 4: seqno 7 of it
    lose(cluster)
    follow(rounds)
    assert shown(rounds) == held(cluster)
    assert [undo.version for undo in rounds.lake.versions[-1].undone] == [3]
    rounds.lake.unreadable.add(3)
    cluster.crash_restart(cluster.vbucket_owner(0), lost_seqnos=1)
    follow(rounds)  # back to seqno 4 of the second branch: version 2 has that number
    assert shown(rounds) == held(cluster)
    assert all(undo.version != 2 for undo in rounds.lake.versions[-1].undone)


def test_a_second_failover_between_the_rollback_answer_and_the_next_request(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """The log fetched with the first answer names a branch that was never read."""
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1", b="1")
    follow(rounds)
    write(cluster, c="1", d="1")
    follow(rounds)
    cluster.crash_restart(cluster.vbucket_owner(0), lost_seqnos=1)
    write(cluster, c="second branch")
    assert rounds.run()  # the answer: ROLLBACK
    assert rounds.lake.states[0].order is not None
    cluster.crash_restart(cluster.vbucket_owner(0), lost_seqnos=2)
    write(cluster, e="third branch", f="third branch", g="third branch")
    follow(rounds)
    assert shown(rounds) == held(cluster)
    assert rounds.lake.states[0].epoch >= 1


def test_a_marker_extended_on_resume_whose_first_end_was_never_complete(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """A snapshot cut at 4 of 6 is resumed up to 9; the rollback to 7 may not stop at 6."""
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1", b="1")
    follow(rounds)
    with cluster.batch():
        cluster.snapshot_cut_after(2)
    write(cluster, c="1", d="1", e="1", f="1")
    rounds.with_budget(1)
    assert rounds.run()
    state = rounds.lake.states[0]
    assert not state.position.is_complete
    first_end = state.position.snap_end
    rounds.with_budget(10**9)
    write(cluster, c="2", d="2", e="2")
    assert rounds.run()
    assert rounds.lake.states[0].complete_seqno > first_end
    rounds.apply()
    cluster.crash_restart(cluster.vbucket_owner(0), lost_seqnos=2)
    follow(rounds)
    [fork] = forks_between(rounds.driver.lake, 0, rounds.lake.round, [0])[0]
    assert fork.seqno == 2
    assert shown(rounds) == held(cluster)


def test_a_rollback_into_rows_that_were_never_applied_changes_no_table(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1")
    follow(rounds)
    cluster.wait_until_replicated()
    cluster.pause_replication()
    write(cluster, b="lost")
    rounds.until_idle()  # complete, but not applied
    lose(cluster)
    rounds.until_idle()
    assert rounds.lake.states[0].epoch == 1
    assert rounds.apply() is None
    write(cluster, c="new")
    follow(rounds)
    assert shown(rounds) == held(cluster) == {b"a": b"1", b"c": b"new"}
    assert rounds.lake.versions[-1].undone == ()


def test_several_rollbacks_of_one_vbucket_between_two_applies(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1", b="1", c="1", d="1")
    follow(rounds)
    write(cluster, a="2", e="2")
    follow(rounds)
    for number in range(3):
        cluster.crash_restart(cluster.vbucket_owner(0), lost_seqnos=1 + number)
        write(cluster, a=f"branch {number}", f=f"branch {number}")
        rounds.until_idle()
    rounds.apply()
    assert rounds.lake.states[0].epoch >= 3
    assert shown(rounds) == held(cluster)


def test_many_vbuckets_restored_from_different_versions(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster(vbuckets=6, nodes=2)
    rounds = consumer(cluster, tmp_path)
    for number in range(4):
        write(cluster, **{f"key{key}": f"{number}" for key in range(0, 60, 1 + number)})
        follow(rounds)
    with cluster.batch():
        lost = {vb: cluster.high_seqno(vb) for vb in range(6)}
    cluster.crash_restart(0, lost_seqnos=5)
    cluster.crash_restart(1, lost_seqnos=12)
    follow(rounds)
    assert any(cluster.high_seqno(vb) < lost[vb] for vb in range(6))
    for vbucket in range(6):
        assert shown(rounds, vbucket) == held(cluster, vbucket)
    assert len({undo.version for undo in rounds.lake.versions[-1].undone}) > 1


def test_a_rollback_to_zero_keeps_the_old_state_until_the_new_one_is_whole(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """Purged tombstones: what was deleted meanwhile can be told by nobody."""
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1", b="1", c="1")
    follow(rounds)
    before = shown(rounds)
    cluster.delete(b"a")
    write(cluster, d="1", e="1", f="1")
    cluster.purge_tombstones(0)
    assert rounds.run()  # ROLLBACK to 0
    assert rounds.lake.states[0].order is not None
    told = [row["detail"] for row in rounds.lake.rows if row["kind"] == "status"]
    report = RoundReport(2, 2, 0.1, (VbucketReport.parse(0, told[-1]),), ())
    assert "ordered back to 0: vbuckets 0: they hold at most 7 documents" in str(report)
    rounds.with_budget(1)
    assert rounds.run()  # a part of the new history
    rounds.apply()
    if not rounds.lake.states[0].is_whole:
        assert shown(rounds) == before
        assert rounds.lake.versions[-1].current.stale == {0: 1}
    rounds.with_budget(10**9)
    follow(rounds)
    assert shown(rounds) == held(cluster)
    assert b"a" not in shown(rounds)
    assert rounds.lake.versions[-1].undone[0].version == REPLACED
    assert rounds.lake.versions[-1].current.stale == {}


def test_a_bucket_that_lost_everything_is_empty_in_the_end(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """Nothing will ever be streamed; that it is empty must be proven, and shown."""
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    cluster.wait_until_replicated()
    cluster.pause_replication()
    write(cluster, a="1", b="1")
    follow(rounds)
    lose(cluster)
    assert cluster.high_seqno(0) == 0
    follow(rounds)
    assert shown(rounds) == {}


def test_a_rollback_met_again_while_the_first_one_is_undone(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    for number in range(6):
        write(cluster, a=str(number), **{f"k{number}": "1"})
        follow(rounds)
    cluster.crash_restart(cluster.vbucket_owner(0), lost_seqnos=3)
    assert rounds.run()
    plan = plan_merge(rounds.driver.lake, DOCS, rounds.lake.round)  # planned, and its driver dies
    assert plan is None
    assert rounds.run()
    cluster.crash_restart(cluster.vbucket_owner(0), lost_seqnos=4)
    assert rounds.run()
    rounds.apply()
    follow(rounds)
    assert shown(rounds) == held(cluster)


def test_no_old_version_any_more_rebuilds_from_the_log(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1", b="1")
    follow(rounds)
    cluster.wait_until_replicated()
    cluster.pause_replication()
    write(cluster, a="lost", c="lost")
    follow(rounds)
    rounds.lake.unreadable.add(1)
    lose(cluster)
    follow(rounds)
    assert shown(rounds) == held(cluster) == {b"a": b"1", b"b": b"1"}
    assert [undo.version for undo in rounds.lake.versions[-1].undone] == [0]


def test_neither_old_version_nor_log_streams_the_vbucket_again(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1", b="1")
    follow(rounds)
    cluster.wait_until_replicated()
    cluster.pause_replication()
    write(cluster, a="lost", c="lost")
    follow(rounds)
    before = shown(rounds)
    rounds.lake.unreadable.add(1)
    record_cleaned_round(rounds.driver.lake, [DOCS], 1)
    lose(cluster)
    rounds.until_idle()
    rounds.apply()
    assert shown(rounds) == before
    assert rounds.lake.versions[-1].current.stale == {0: 2}
    follow(rounds)
    assert shown(rounds) == held(cluster) == {b"a": b"1", b"b": b"1"}
    assert rounds.lake.versions[-1].current.stale == {}


def test_an_unknown_branch_is_retried_at_the_common_ancestor_first(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """What was read of the second branch is unknown to the third, which forked below it."""
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path)
    write(cluster, a="1", b="1")
    follow(rounds)
    write(cluster, c="1", d="1")
    follow(rounds)
    cluster.crash_restart(cluster.vbucket_owner(0), lost_seqnos=0)
    write(cluster, e="second branch")
    follow(rounds)
    cluster.crash_restart(cluster.vbucket_owner(0), lost_seqnos=2)
    follow(rounds)
    assert shown(rounds) == held(cluster)
    orders = [row for row in rounds.lake.rows if row["kind"] == "rollback" and row["rollback"]]
    assert orders[-1]["rollback"]["to_seqno"] == 0
    [fork] = forks_between(rounds.driver.lake, 0, rounds.lake.round, [0])[0]
    assert fork.seqno == 2


@pytest.mark.parametrize("policy", [RollbackPolicy.RESYNC, RollbackPolicy.FAIL])
def test_policies(new_cluster: NewCluster, tmp_path: Path, policy: RollbackPolicy) -> None:
    cluster = new_cluster()
    rounds = consumer(cluster, tmp_path, policy)
    write(cluster, a="1")
    follow(rounds)
    cluster.wait_until_replicated()
    cluster.pause_replication()
    write(cluster, b="lost")
    follow(rounds)
    before = shown(rounds)
    lose(cluster)
    follow(rounds)
    if policy is RollbackPolicy.RESYNC:
        assert shown(rounds) == held(cluster)
        assert rounds.lake.versions[-1].undone[0].version == REPLACED
        return
    assert shown(rounds) == before
    idle = rounds.prepare_round()
    assert isinstance(idle, Idle)
    assert [left.reason for left in idle.left_out] == ["rollback"]


def test_a_server_that_orders_rollbacks_for_ever_is_reported(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster(vbuckets=2)
    rounds = consumer(cluster, tmp_path)
    write(cluster, **{f"key{number}": "1" for number in range(10)})
    follow(rounds)
    write(cluster, **{f"key{number}": "2" for number in range(10)})
    cluster.refuse_stream(0, Status.ROLLBACK, times=1000)
    follow(rounds)
    idle = rounds.prepare_round()
    assert isinstance(idle, Idle)
    [left] = idle.left_out
    assert (left.vbucket, left.reason) == (0, "rollback without progress")
    assert shown(rounds, 1) == held(cluster, 1)


def test_rounds_that_end_inside_a_snapshot_of_several_branches_go_on(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """Each round resumes inside it: none is taken back to its start, and each brings rows."""
    cluster = new_cluster(nodes=1, checkpoint_items=10)
    for branch in range(3):
        write(
            cluster,
            **{f"k{number}": f"{branch}" * 300 for number in range(branch, 120, branch + 1)},
        )
        cluster.crash_restart(0, lost_seqnos=0)
        cluster.restore_node(0)
    settings = settings_for(
        cluster,
        tmp_path,
        round={"quiet_seconds": 0.05, "node_deadline_seconds": 10.0, "target_bytes": 3000},
        flow_control=SMALL_FLOW,
    )
    rounds = MemoryRounds(settings)
    rounds.until_idle(most=40)
    assert rounds.lake.round > 5, "a round is a part of the snapshot"
    assert rounds.lake.states[0].epoch == 0, "no rollback"
    rounds.apply()
    assert shown(rounds) == held(cluster)

"""One task's receiving against the real producer over sockets, without Spark."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import pyarrow as pa
import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.kv.kv_client import KvClient
from dcp.errors import AuthenticationError, BucketError, NodeUnavailableError
from dcp.lake.receive.source_access import query_cluster
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.tables.round_record import Outcome, VbucketReport
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.streams.active_stream import ActiveStream
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype, Status
from tests.cli.serving import Serving
from tests.client.cut_off import no_stream_cut_off
from tests.client.drained import wait_for
from tests.lake.receiving import (
    PASSWORD,
    QUICK_ROUND,
    QUICK_SOURCE,
    SMALL_FLOW,
    USER,
    RoundsInProcess,
    documents_at,
    item_rows,
    settings_for,
    settings_of,
    source_at,
)
from tests.lake.swallowing_proxy import SwallowingProxy

USERS = {"Administrator": "password"}


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    settings = ClusterSettings(nodes=2, vbuckets=8, users=USERS, seed=7, checkpoint_items=50)
    with ProducerCluster(settings) as cluster:
        yield cluster


def fill(cluster: ProducerCluster, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        cluster.set(b"key-%d" % number, b'{"n": %d}' % number)


def statuses(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["vbucket"]: json.loads(row["detail"]) for row in rows if row["kind"] == "status"}


def require_exact(rounds: RoundsInProcess, cluster: ProducerCluster) -> None:
    for vbucket, state in rounds.states.items():
        seqno = state.complete_seqno
        assert documents_at(rounds.rows, vbucket, seqno) == source_at(cluster, vbucket, seqno)


def require_complete(rounds: RoundsInProcess, cluster: ProducerCluster) -> None:
    for vbucket, state in rounds.states.items():
        assert state.complete_seqno == cluster.high_seqno(vbucket)
    require_exact(rounds, cluster)


def require_sent_once(rounds: RoundsInProcess, cluster: ProducerCluster) -> None:
    """No row twice in the log, and none sent twice by the producer."""
    counts = Counter((row["vbucket"], row["seqno"]) for row in item_rows(rounds.rows))
    assert {key: count for key, count in counts.items() if count > 1} == {}
    for vbucket, seqnos in cluster.counters().seqnos_sent.items():
        assert len(seqnos) == len(set(seqnos)), f"vbucket {vbucket} resent"


def test_a_round_brings_everything_and_the_next_is_idle(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    fill(cluster, 400)
    rounds = RoundsInProcess(settings_for(cluster, tmp_path), slots=2)
    rows = rounds.run()
    assert len(item_rows(rows)) == 400
    assert {status["outcome"] for status in statuses(rows).values()} == {"reached"}
    require_complete(rounds, cluster)
    assert {row["kind"] for row in rows} >= {"snapshot_marker", "complete", "position", "status"}
    assert rounds.plan() is None


def test_compressed_documents_come_as_they_are_stored(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    """Their bytes are those of the network, their size is what readers of the tables meet."""
    body = b'{"pad": "%s"}' % (b"x" * 10_000)
    cluster.set(b"key", deflate(body), datatype=int(Datatype.SNAPPY))
    rounds = RoundsInProcess(settings_for(cluster, tmp_path))
    rows = rounds.run()
    assert [row["value"] for row in item_rows(rows)] == [body]
    status = statuses(rows)[cluster.vbucket_of(b"key")]
    assert len(deflate(body)) < status["bytes"] < 1000
    assert len(body) <= status["largest_bytes"]


def test_only_changed_vbuckets_are_streamed_again(cluster: ProducerCluster, tmp_path: Path) -> None:
    fill(cluster, 100)
    rounds = RoundsInProcess(settings_for(cluster, tmp_path), slots=2)
    rounds.run()
    opened = cluster.counters().streams_opened
    document = cluster.delete(b"key-5")
    vbucket = cluster.vbucket_of(b"key-5")
    rows = rounds.run()
    assert [(row["kind"], row["seqno"]) for row in item_rows(rows)] == [
        ("deletion", document.seqno)
    ]
    again = Counter(cluster.counters().streams_opened)
    again.subtract(opened)
    assert +again == Counter({vbucket: 1})
    assert sorted(rounds.states) == list(range(8))
    require_complete(rounds, cluster)


@pytest.mark.parametrize("target_bytes", [2**40, 6000], ids=["target", "budget"])
def test_a_task_closes_its_streams_and_asks_for_none_again(
    cluster: ProducerCluster, tmp_path: Path, target_bytes: int
) -> None:
    fill(cluster, 600)
    rounds = RoundsInProcess(
        settings_for(
            cluster, tmp_path, flow_control=SMALL_FLOW, round={"target_bytes": target_bytes}
        )
    )
    with no_stream_cut_off(cluster):
        rounds.run()
    # One node may spend the budget before the other has opened a stream.
    assert set(cluster.counters().streams_opened.values()) == {1}


def test_a_small_budget_stops_inside_a_snapshot_and_nothing_is_resent(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    fill(cluster, 600)
    settings = settings_for(
        cluster,
        tmp_path,
        flow_control={"window_bytes": 4096, "batch_bytes": 2048},
        round={"target_bytes": 6000},
    )
    rounds = RoundsInProcess(settings)
    inside = False
    while rounds.plan() is not None:
        rounds.run()
        inside = inside or any(not state.position.is_complete for state in rounds.states.values())
        require_exact(rounds, cluster)
        assert rounds.round < 100
    assert inside, "found no round that stopped inside a snapshot"
    assert rounds.round > 5
    require_complete(rounds, cluster)
    counts = Counter((row["vbucket"], row["seqno"]) for row in item_rows(rounds.rows))
    assert max(counts.values()) == 1


def test_a_first_load_that_a_budget_cuts_leaves_whole_vbuckets(tmp_path: Path) -> None:
    chosen = ClusterSettings(nodes=2, vbuckets=16, users=USERS, seed=7, checkpoint_items=0)
    with ProducerCluster(chosen) as cluster:
        with cluster.batch():
            fill(cluster, 1600)
        settings = settings_for(
            cluster, tmp_path, flow_control=SMALL_FLOW, round={"target_bytes": 60_000}
        )
        rounds = RoundsInProcess(settings)
        begun = {row["vbucket"] for row in item_rows(rounds.run())}
        complete = {vbucket for vbucket, state in rounds.states.items() if state.complete_seqno}
        assert 4 <= len(complete) < len(rounds.states)
        assert len(begun - complete) <= 2, "one of each node is cut"
        require_exact(rounds, cluster)
        while rounds.plan() is not None:
            rounds.run()
        require_complete(rounds, cluster)


def test_a_pending_row_waits_for_the_end_of_a_longer_snapshot(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    rng = Random(3)
    fill(cluster, 200)
    settings = settings_for(
        cluster,
        tmp_path,
        flow_control=SMALL_FLOW,
        round={"target_bytes": 3000},
    )
    rounds = RoundsInProcess(settings)
    while (plan := rounds.plan()) is not None:
        rounds.run(plan)
        require_exact(rounds, cluster)
        if rounds.round < 25:  # overwrite what was sent, and what was not
            for _ in range(4):
                cluster.set(b"key-%d" % rng.randrange(200), b'{"again": %d}' % rounds.round)
        assert rounds.round < 200
    require_complete(rounds, cluster)


def test_a_cut_connection_resumes_within_the_round(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    with cluster.batch():
        fill(cluster, 300)
    rounds = RoundsInProcess(settings_for(cluster, tmp_path))
    cluster.snapshot_cut_after(60)
    rounds.run()
    assert cluster.faults.cuts_done == 1
    require_complete(rounds, cluster)
    counts = Counter((row["vbucket"], row["seqno"]) for row in item_rows(rounds.rows))
    assert max(counts.values()) == 1


@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_a_lost_node_ends_its_vbuckets_only(
    cluster: ProducerCluster, tmp_path: Path, fault: str
) -> None:
    fill(cluster, 200)
    rounds = RoundsInProcess(
        settings_for(cluster, tmp_path, source=QUICK_SOURCE, round=QUICK_ROUND)
    )
    plan = rounds.plan()
    assert plan is not None
    getattr(cluster, f"{fault}_node")(1)
    rows = rounds.run(plan)
    lost = {vb for vb in range(8) if cluster.vbucket_owner(vb) == 1}
    found = statuses(rows)
    assert {vb for vb, told in found.items() if told["outcome"] == "stopped"} == lost
    assert {vb for vb, told in found.items() if told["outcome"] == "reached"} == (
        set(range(8)) - lost
    )
    assert all(found[vb]["detail"] and found[vb]["reason"] for vb in lost)
    require_exact(rounds, cluster)
    cluster.restore_node(1)
    rounds.run()
    require_complete(rounds, cluster)


@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_a_vbucket_that_cannot_be_planned_is_told_in_the_round(
    cluster: ProducerCluster, tmp_path: Path, fault: str
) -> None:
    """Nobody waits for a node that does not come."""
    fill(cluster, 100)
    rounds = RoundsInProcess(settings_for(cluster, tmp_path, source=QUICK_SOURCE), slots=2)
    rounds.run()
    fill(cluster, 100)
    getattr(cluster, f"{fault}_node")(1)
    lost = {vb for vb in range(8) if cluster.vbucket_owner(vb) == 1}
    before = {vb: rounds.states[vb] for vb in lost}
    plan = rounds.plan()
    begin = time.monotonic()
    found = rounds.run(plan)
    assert time.monotonic() - begin < 45, "the deadline of a node is 90 s here"
    assert {vb: rounds.states[vb] for vb in lost} == before
    told = {vb: VbucketReport.parse(vb, json.dumps(each)) for vb, each in statuses(found).items()}
    left_out = {vb: each for vb, each in told.items() if each.outcome is Outcome.LEFT_OUT}
    assert left_out.keys() == lost
    assert all(each.failed and each.reason == "node unreachable" for each in left_out.values())
    assert {each.largest_bytes for each in left_out.values()} == {0}
    assert {row["epoch"] for row in found if row["kind"] == "status"} == {0}


@pytest.mark.parametrize("cure", ["failover", "restore_node"])
def test_a_vbucket_without_a_node_at_planning_is_read_in_the_next_round(
    tmp_path: Path, cure: str
) -> None:
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=8, replicas=1)) as cluster:
        fill(cluster, 400)
        rounds = RoundsInProcess(settings_for(cluster, tmp_path, source=QUICK_SOURCE))
        rounds.run()
        fill(cluster, 400)
        late = {vb for vb in range(8) if cluster.vbucket_owner(vb) == 1}
        cluster.kill_node(1)
        plan = rounds.plan()
        assert plan is not None
        assert {left.vbucket for left in plan.left_out} == late
        getattr(cluster, cure)(1)
        rounds.run(plan)
        plan = rounds.plan()
        assert plan is not None
        assert {stream.vbucket for stream in plan.streams} == late
        assert {told["outcome"] for told in statuses(rounds.run(plan)).values()} == {"reached"}


def test_a_refused_stream_is_reported_with_its_status(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    fill(cluster, 100)
    cluster.refuse_stream(3, Status.EINVAL, times=1000)
    rounds = RoundsInProcess(settings_for(cluster, tmp_path))
    told = statuses(rounds.run())[3]
    assert (told["outcome"], told["reason"]) == ("stopped", "refused")
    assert "EINVAL" in told["detail"]
    cluster.faults.clear()
    rounds.run()
    require_complete(rounds, cluster)


def test_a_target_that_its_node_does_not_hold_counts_as_caught_up(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    fill(cluster, 50)
    rounds = RoundsInProcess(settings_for(cluster, tmp_path, round={"quiet_seconds": 0.5}))
    beyond = cluster.high_seqno(2) + 1
    probed = query_cluster(rounds.access)
    lake_state = LakeState("x" * 16, 0)
    plan = plan_round(
        lake_state,
        probed,
        rounds.settings.round,
        rounds.settings.flow_control,
        1,
        targets={2: beyond},
    )
    assert isinstance(plan, RoundPlan)
    begin = time.monotonic()
    rows = rounds.run(plan)
    assert time.monotonic() - begin < 60, "by its silence, and by no deadline"
    assert statuses(rows)[2]["outcome"] == "caught_up"
    assert rounds.states[2].complete_seqno == beyond - 1
    assert rounds.states[2].caught_up_seqno == beyond - 1, "what comes at the target is news"


def test_rows_that_come_with_a_streams_answer_and_its_position_agree(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    """A target that was reached before ends a vbucket at once: rows may be in that delivery."""
    fill(cluster, 100)
    rounds = RoundsInProcess(settings_for(cluster, tmp_path))
    rounds.run()
    for number in range(5):
        fill(cluster, 100)
        plan = rounds.plan()
        assert plan is not None
        before = {vb: state.position.seqno for vb, state in rounds.states.items()}
        (task,) = plan.tasks
        streams = tuple(replace(each, target_seqno=0) for each in task.streams)
        rows = rounds.run(replace(plan, tasks=(replace(task, streams=streams),)))
        assert {told["outcome"] for told in statuses(rows).values()} == {"reached"}, number
        for vb, state in rounds.states.items():
            found = {row["seqno"] for row in item_rows(rows) if row["vbucket"] == vb}
            assert max(found, default=before[vb]) == state.position.seqno
    while rounds.plan() is not None:
        rounds.run()
    require_complete(rounds, cluster)


def test_values_beyond_63_bits_and_odd_keys(cluster: ProducerCluster, tmp_path: Path) -> None:
    for vbucket in range(8):
        cluster.start_vbucket_at(vbucket, seqno=2**63 + vbucket, cas=2**63 + 5)
    keys = [b"\x00", b"\xff\xfe", b"\\x41", b"k" * 250, "ключ".encode()]
    keys += [b"key-%d" % number for number in range(40)]  # something in each vbucket
    for key in keys:
        cluster.set(key, b"not json \xff")
    rounds = RoundsInProcess(settings_for(cluster, tmp_path))
    found = rounds.run()
    rows = item_rows(found)
    assert sorted(row["key_bytes"] or row["key"].encode() for row in rows) == sorted(keys)
    assert all(row["seqno"] > 2**63 and row["cas"] > 2**63 for row in rows)
    assert all(row["value"] == b"not json \xff" for row in rows)
    told = [VbucketReport.parse(vb, json.dumps(told)) for vb, told in statuses(found).items()]
    report = RoundReport(1, 1, 0.1, tuple(told), ())
    assert (report.rows, report.escaped_keys) == (len(keys), 2)
    assert "2 rows have a key that is not UTF-8 (or begins with \\x)" in str(report)
    require_exact(rounds, cluster)
    assert rounds.plan() is None


def test_a_document_larger_than_the_window(cluster: ProducerCluster, tmp_path: Path) -> None:
    cluster.set(b"large", b"x" * (2 * 1024 * 1024))
    cluster.set(b"small", b"y")
    flow = {"window_bytes": 65536, "batch_bytes": 32768}
    rounds = RoundsInProcess(settings_for(cluster, tmp_path, flow_control=flow))
    rounds.run()
    require_complete(rounds, cluster)


def test_batches_hold_back_the_producer_until_they_are_taken(tmp_path: Path) -> None:
    """One node, whose window alone can be full: of two, one may be done before the other begins."""
    window, message = 8192, 200
    flow = {"window_bytes": window, "batch_bytes": 2048, "ack_fraction": 0.2}
    settings = ClusterSettings(vbuckets=8, users=USERS, seed=7, checkpoint_items=50)
    with ProducerCluster(settings) as cluster:
        fill(cluster, 2000)
        rounds = RoundsInProcess(settings_for(cluster, tmp_path, flow_control=flow))
        plan = rounds.plan()
        assert plan is not None
        batches = rounds.receiver(plan, plan.tasks[0]).batches()
        taken = [next(batches)]
        assert 0 < taken[0].num_rows < 200
        wait_for("a full window", lambda: _outstanding_bytes(cluster) >= window)
        sent_bytes = cluster.counters().bytes_sent
        time.sleep(0.5)
        assert cluster.counters().bytes_sent - sent_bytes < 200, "nothing is sent, NOOPs aside"
        rest = list(batches)
        assert sum(batch.num_rows for batch in [*taken, *rest]) > 2000
        assert window <= cluster.counters().peak_unacked_bytes <= window + message


def _outstanding_bytes(cluster: ProducerCluster) -> int:
    """Return what is sent and not acknowledged, of all connections."""
    with cluster.bucket.lock:
        return sum(each.flow.outstanding_bytes for each in cluster.bucket.dcp_connections.values())


@pytest.mark.parametrize("rules", ["document", "server"])
def test_many_streams_whose_snapshots_are_larger_than_their_windows(
    tmp_path: Path, rules: Literal["document", "server"]
) -> None:
    """No batch is full, and no time is over, before a stream has filled its window."""
    settings = ClusterSettings(vbuckets=64, users=USERS, seed=7, rules=rules)
    with ProducerCluster(settings) as cluster:
        with cluster.batch():
            for number in range(64 * 20):
                cluster.set(b"key-%d" % number, b'{"n": %d}' % number + b" " * 1000)
        flow = {"stream_window_bytes": 4096, "batch_seconds": 60.0, "ack_seconds": 60.0}
        rounds = RoundsInProcess(settings_for(cluster, tmp_path, flow_control=flow))
        rows = rounds.run()
        assert {status["outcome"] for status in statuses(rows).values()} == {"reached"}
        require_complete(rounds, cluster)
        peak = cluster.counters().peak_stream_unacked_bytes
        assert (4096 <= peak < 4096 + 1200) if rules == "document" else peak == 0


@pytest.mark.parametrize("change", [{"password_file": "wrong"}, {"bucket": "nowhere"}])
def test_refused_password_or_bucket_fails_the_task_with_the_same_words(
    cluster: ProducerCluster, tmp_path: Path, change: dict[str, str]
) -> None:
    fill(cluster, 10)
    good = RoundsInProcess(settings_for(cluster, tmp_path))
    plan = good.plan()
    assert plan is not None
    settings = settings_for(cluster, tmp_path, source=change)
    if "password_file" in change:
        file = tmp_path / "wrong"
        file.write_text("wrong")
        settings = settings_for(cluster, tmp_path, source={"password_file": str(file)})
    refusal = BucketError if "bucket" in change else AuthenticationError
    with pytest.raises(refusal, match=r"127\.0\.0\.1|nowhere"):
        list(RoundsInProcess(settings).receiver(plan, plan.tasks[0]).batches())


@pytest.mark.parametrize("alone", [False, True])
def test_a_node_that_refuses_discards_nothing_that_others_sent(
    cluster: ProducerCluster, tmp_path: Path, alone: bool
) -> None:
    """It restarted after the plan; ``alone``: the task has vbuckets of no other node."""
    fill(cluster, 200)
    rounds = RoundsInProcess(
        settings_for(
            cluster,
            tmp_path,
            source=QUICK_SOURCE,
            round={"node_deadline_seconds": 1.0 if alone else 5.0},
        )
    )
    plan = rounds.plan()
    assert plan is not None
    refusing = {vb for vb in range(8) if cluster.vbucket_owner(vb) == 1}
    task = plan.tasks[0]
    if alone:
        streams = tuple(each for each in task.streams if each.vbucket in refusing)
        task = replace(task, streams=streams)
    port = NodeAddress.parse(cluster.seeds[1]).port
    cluster.kill_node(1)
    with ProducerCluster(ClusterSettings(bucket="another", users=USERS, port=port)):
        batches = list(rounds.receiver(plan, task).batches())
    found = statuses([row for batch in batches for row in batch.to_pylist()])
    outcomes = {vb: told["outcome"] for vb, told in found.items()}
    expected = {vb: "stopped" if vb in refusing else "reached" for vb in range(8)}
    assert outcomes == {vb: expected[vb] for vb in (refusing if alone else range(8))}
    for vb in refusing:
        assert found[vb]["reason"] == "node unavailable"
        assert "SELECT_BUCKET" in found[vb]["detail"]


@pytest.mark.parametrize("fault", ["kill", "hang", "refuse"])
def test_a_node_lost_after_its_streams_opened_is_never_called_caught_up(
    cluster: ProducerCluster, tmp_path: Path, fault: str
) -> None:
    """P6 in mid-round: vbuckets still at position 0 look complete, and their node is silent."""
    fill(cluster, 800)
    rounds = RoundsInProcess(
        settings_for(
            cluster, tmp_path, source=QUICK_SOURCE, round=QUICK_ROUND, flow_control=SMALL_FLOW
        )
    )
    plan = rounds.plan()
    assert plan is not None
    lost = {vb for vb in range(8) if cluster.vbucket_owner(vb) == 1}
    batches = rounds.receiver(plan, plan.tasks[0]).batches()
    received = []
    while not lost <= cluster.counters().streams_opened.keys():
        received.append(next(batches))
    lose_node(cluster, 1, fault)
    received += batches
    rows = rounds.keep(plan, received)
    found = statuses(rows)
    outcomes = {vb: told["outcome"] for vb, told in found.items()}
    assert outcomes == {vb: "stopped" if vb in lost else "reached" for vb in range(8)}
    assert {found[vb]["reason"] for vb in lost} == {"node unavailable"}
    assert all(str(cluster.seeds[1]) in found[vb]["detail"] for vb in lost)
    assert min(len(documents_at(rows, vb, 2**63)) for vb in set(range(8)) - lost) > 50
    require_exact(rounds, cluster)
    cluster.restore_node(1)
    again = rounds.plan()
    assert again is not None
    assert {stream.vbucket for stream in again.streams} == lost
    rounds.run(again)
    require_complete(rounds, cluster)


def lose_node(cluster: ProducerCluster, node: int, fault: str) -> None:
    """Kill a node, let it hang, or let it refuse all connections from now on."""
    getattr(cluster, f"{fault}_node")(node)
    if fault == "refuse":
        cluster.drop_connections(node)


def half_received(
    rounds: RoundsInProcess, plan: RoundPlan
) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """Return the first batch of a round, and the others, which are not received yet."""
    batches = rounds.receiver(plan, plan.tasks[0]).batches()
    return [next(batches)], batches


def test_a_producer_that_is_stopped_in_a_round_is_named_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: its connections stay, the system takes what is sent, and nobody answers."""
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    process = Serving(USER, "--vbuckets", "8", "--port", "0")
    try:
        with closing(KvClient(process.seeds, USER, PASSWORD, "default", 60.0)) as client:
            client.set([(b"key-%d" % n, b'{"n": %d}' % n) for n in range(2_000)])
        changed: dict[str, Any] = {
            "source": QUICK_SOURCE,
            "round": QUICK_ROUND,
            "flow_control": SMALL_FLOW,
        }
        rounds = RoundsInProcess(settings_of(process.seeds, tmp_path, **changed))
        plan = rounds.plan()
        assert plan is not None
        received, others = half_received(rounds, plan)
        os.kill(process.process.pid, signal.SIGSTOP)
        begin = time.monotonic()
        received += others
        assert time.monotonic() - begin < 60, "the deadline of a node is 5 s here"
        found = statuses(rounds.keep(plan, received))
        stopped = {vb: told for vb, told in found.items() if told["outcome"] == "stopped"}
        assert stopped.keys() | {vb for vb in found if found[vb]["outcome"] == "reached"} == set(
            range(8)
        )
        assert stopped
        assert {told["reason"] for told in stopped.values()} == {"node unavailable"}
        assert all(process.seeds[0] in told["detail"] for told in stopped.values())
        with pytest.raises(NodeUnavailableError, match=process.seeds[0]):
            rounds.plan()
        os.kill(process.process.pid, signal.SIGCONT)
        rounds.run()
        assert rounds.plan() is None, "all of it is there"
        counts = Counter((row["vbucket"], row["seqno"]) for row in item_rows(rounds.rows))
        assert (len(counts), max(counts.values())) == (2_000, 1)
    finally:
        os.kill(process.process.pid, signal.SIGCONT)
        process.kill()


def test_a_half_open_connection_is_named_and_delays_no_other_node(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    fill(cluster, 2_000)
    lost = {vb for vb in range(8) if cluster.vbucket_owner(vb) == 1}
    shown: dict[bytes, bytes] = {}
    with (
        SwallowingProxy(cluster.seeds[0], shown) as other,
        SwallowingProxy(cluster.seeds[1], shown) as proxy,
    ):
        changed: dict[str, Any] = {
            "source": QUICK_SOURCE,
            "round": QUICK_ROUND,
            "flow_control": SMALL_FLOW,
        }
        rounds = RoundsInProcess(settings_of([other.seed], tmp_path, **changed))
        plan = rounds.plan()
        assert plan is not None
        assert {str(stream.node) for stream in plan.streams if stream.vbucket in lost} == {
            proxy.seed
        }
        batches = rounds.receiver(plan, plan.tasks[0]).batches()
        received = []
        while not lost <= cluster.counters().streams_opened.keys():
            received.append(next(batches))
        proxy.swallows.set()
        begin = time.monotonic()
        received += batches
        assert time.monotonic() - begin < 60, "the deadline of a node is 5 s here"
        found = statuses(rounds.keep(plan, received))
        assert {vb: told["outcome"] for vb, told in found.items()} == {
            vb: "stopped" if vb in lost else "reached" for vb in range(8)
        }
        assert {found[vb]["reason"] for vb in lost} == {"node unavailable"}
        assert all(proxy.seed in found[vb]["detail"] for vb in lost)
        require_exact(rounds, cluster)
        proxy.swallows.clear()
        rounds.run()
        require_complete(rounds, cluster)


@pytest.mark.parametrize("outcome", [Outcome.STOPPED, Outcome.BUDGET])
def test_a_stream_that_stalls_is_named_while_others_of_its_node_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    """At the deadline, or where the round's budget is used up before."""
    next_batch = ActiveStream.next_batch
    monkeypatch.setattr(
        ActiveStream,
        "next_batch",
        lambda stream, *room: None if stream.vbucket == 1 else next_batch(stream, *room),
    )
    with ProducerCluster(ClusterSettings(vbuckets=2, users=USERS, seed=7)) as cluster:
        fill(cluster, 200)
        watch = {"quiet_seconds": 0.5, "node_deadline_seconds": 2.0}
        settings = settings_for(
            cluster,
            tmp_path,
            flow_control={"batch_seconds": 0.1},
            round=watch | {"target_seconds": 20.0, "target_bytes": 2**20},
        )
        rounds = RoundsInProcess(settings)
        plan = rounds.plan()
        assert plan is not None
        endless, stalled = plan.tasks[0].streams
        endless = replace(endless, target_seqno=2**40)
        task = replace(plan.tasks[0], streams=(endless, stalled))
        key = next(key for n in range(9) if cluster.vbucket_of(key := b"key-%d" % n) == 0)
        receiver = rounds.receiver(plan, task)
        batches = []
        stalled_long = time.monotonic() + 3 * settings.round.quiet_seconds
        for batch in receiver.batches():
            batches.append(batch)
            is_over = time.monotonic() > stalled_long
            if outcome is Outcome.STOPPED:
                is_over = receiver.results[1].outcome is outcome
            cluster.set(key, b"x" * 2**20 if is_over else b"again")
        goes_on, stuck = (
            VbucketReport.parse(vbucket, json.dumps(told))
            for vbucket, told in sorted(statuses(rounds.keep(plan, batches)).items())
        )
        assert (goes_on.outcome, goes_on.reason) == (Outcome.BUDGET, "")
        assert stuck.outcome is outcome
        (named,) = RoundReport(1, 1, 1.0, (goes_on, stuck), ()).all_left_out
        assert (named.vbucket, named.reason) == (1, "waiting for data")
        assert named.detail.startswith(f"{cluster.seeds[0]} sent nothing of it for ")
        if outcome is Outcome.STOPPED:
            held = f"at seqno 0, and says that it holds seqnos up to {cluster.high_seqno(1)}"
            assert named.detail.endswith(held)


def test_vbuckets_that_wait_for_their_turn_are_waited_for(tmp_path: Path) -> None:
    """A first load over a slow line: the last vbucket waits for longer than the deadline.

    One document alone takes as long.
    """
    chosen = ClusterSettings(vbuckets=4, users=USERS, seed=7, checkpoint_items=0)
    shown: dict[bytes, bytes] = {}
    with ProducerCluster(chosen) as cluster, SwallowingProxy(cluster.seeds[0], shown) as proxy:
        with cluster.batch():
            for number in range(240):
                cluster.set(b"key-%d" % number, b"%0400d" % number)
            cluster.set(b"large", b"x" * 100_000)
        # A window is on the way for 0.8 s: on a busy machine for several times as long.
        watch = {"quiet_seconds": 0.2, "node_deadline_seconds": 4.0}
        flow = {"window_bytes": 16_384, "batch_bytes": 4096}
        rounds = RoundsInProcess(
            settings_of([proxy.seed], tmp_path, round=watch, flow_control=flow)
        )
        plan = rounds.plan()
        assert plan is not None
        proxy.pause_seconds = 0.05
        rows = rounds.run(plan)
        assert {told["outcome"] for told in statuses(rows).values()} == {"reached"}
        require_complete(rounds, cluster)


def test_vbuckets_that_move_in_a_round_are_followed_or_named(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    """All of them change places in mid-stream; then all go to a node that hangs at once."""
    fill(cluster, 2_000)
    changed: dict[str, Any] = {
        "source": QUICK_SOURCE,
        "round": QUICK_ROUND,
        "flow_control": SMALL_FLOW,
    }
    rounds = RoundsInProcess(settings_for(cluster, tmp_path, **changed))
    plan = rounds.plan()
    assert plan is not None
    received, others = half_received(rounds, plan)
    for vbucket in range(8):
        cluster.move_vbucket(vbucket, 1 - cluster.vbucket_owner(vbucket))
    rows = rounds.keep(plan, [*received, *others])
    assert {told["outcome"] for told in statuses(rows).values()} == {"reached"}
    require_complete(rounds, cluster)

    fill(cluster, 2_000)
    plan = rounds.plan()
    assert plan is not None
    received, others = half_received(rounds, plan)
    moved = {vb for vb in range(8) if cluster.vbucket_owner(vb) == 0}
    for vbucket in moved:
        cluster.move_vbucket(vbucket, 1)
    cluster.hang_node(1)
    found = statuses(rounds.keep(plan, [*received, *others]))
    named = {vb for vb, told in found.items() if told["outcome"] == "stopped"}
    assert named >= {vb for vb in moved if not rounds.states[vb].position.is_complete}
    assert named
    assert all(cluster.seeds[1] in found[vb]["detail"] for vb in named)
    assert {found[vb]["reason"] for vb in named} <= {"node unavailable", "not my vbucket"}
    require_exact(rounds, cluster)
    cluster.restore_node(1)
    rounds.run()
    require_complete(rounds, cluster)

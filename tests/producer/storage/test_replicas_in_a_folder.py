"""Replicas in a data folder: what a restart and a power loss leave, and which file is whose.

With ``flush_seconds=3600`` nothing goes to disk but what a test writes there.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.errors import ConfigError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.failover import fail_over
from dcp.server.storage.bucket_record import BucketRecord
from dcp.server.storage.data_folder import DataFolder
from dcp.server.vbucket.vbucket_states import Vbucket
from tests.producer.compared_replicas import assert_replicas_are_equal, frames_of, write_everything
from tests.producer.forking_replicas import STEPS, Failing, Step
from tests.producer.full_disk import full_disk
from tests.producer.in_process_wire import InProcessWire

MakeCluster = Callable[..., ProducerCluster]
NEVER = 3600.0


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, Any]:
    """Settings of three nodes with a replica of each of six vbuckets."""
    return {"nodes": 3, "vbuckets": 6, "replicas": 1, "data_folder": tmp_path / "data"}


def _disk_logs(folder: Path) -> list[int]:
    """How many logs there are of vbuckets, and of replicas: those that are named, and no other."""
    record = json.loads((folder / "bucket.json").read_text())
    replicas = [name for row in record["replica_logs"] for _, name in row]
    assert {path.name for path in folder.glob("vb_*")} == {*record["logs"], *replicas}
    return [len(record["logs"]), len(replicas)]


def _all_frames(cluster: ProducerCluster) -> list[list[bytes]]:
    with cluster.bucket.lock:
        return [frames_of(vbucket) for vbucket in cluster.bucket.vbuckets]


def test_memory_that_the_disk_freed_is_free_for_replicas_too(
    make_cluster: MakeCluster, kept: dict[str, Any]
) -> None:
    """What is counted for a replica is what it takes, also when nothing more is received."""
    cluster = make_cluster(**{**kept, "vbuckets": 1, "nodes": 2, "flush_seconds": NEVER})
    for number in range(50):
        cluster.set(b"k%d" % number, b"x" * 1000)
    cluster.wait_until_replicated()
    replica, flusher = cluster.bucket.replicas.at(1, 0), cluster.bucket.writes.flusher
    assert replica is not None
    assert flusher is not None
    with cluster.bucket.lock:
        checkpoints = replica.vbucket.data.checkpoints
        checkpoints.close_open()
        memory = cluster.bucket.replicas.memory_of(replica.vbucket)
        assert memory is not None
        memory.note(checkpoints)
        before = memory.memory_bytes
        replica.vbucket.data.persistence.flush()
        flusher.on_written(replica.vbucket)
        assert replica.vbucket.data.checkpoints.memory_bytes < before
        assert memory.memory_bytes == replica.vbucket.data.checkpoints.memory_bytes


def test_a_restart_needs_no_backfill(make_cluster: MakeCluster, kept: dict[str, Any]) -> None:
    """What replicas held they hold, under the branches that they knew."""
    first = make_cluster(**kept)
    write_everything(first)
    assert_replicas_are_equal(first)
    before = _all_frames(first)
    first.stop()
    assert _disk_logs(kept["data_folder"]) == [6, 6]
    again = make_cluster(**kept)
    assert_replicas_are_equal(again)
    assert _all_frames(again) == before
    assert again.counters().items_sent == {}


def test_a_failover_lasts(make_cluster: MakeCluster, kept: dict[str, Any]) -> None:
    first = make_cluster(**kept)
    write_everything(first)
    first.wait_until_replicated()
    first.failover(0)
    first.set(b"later", b"1")
    before, failover_logs = _all_frames(first), [first.failover_log(v) for v in range(6)]
    assert len(failover_logs[0].entries) == 2
    first.stop()
    assert _disk_logs(kept["data_folder"]) == [6, 2]
    again = make_cluster(**kept)
    assert [again.vbucket_owner(v) for v in range(6)] == [1, 1, 1, 1, 2, 2]
    assert _all_frames(again) == before
    assert [again.failover_log(v) for v in range(6)] == failover_logs
    again.restore_node(0)
    again.rebalance()
    assert_replicas_are_equal(again)


def test_nodes_that_came_stay(make_cluster: MakeCluster, kept: dict[str, Any]) -> None:
    first = make_cluster(**kept)
    write_everything(first)
    first.add_node()
    first.rebalance()
    first.rebalance(remove=0)
    owners, failover_logs = first.bucket.map.owners, [first.failover_log(v) for v in range(6)]
    assert_replicas_are_equal(first)
    before = _all_frames(first)
    first.stop()
    with pytest.raises(ConfigError, match=r"nodes: found 4, expected 3"):
        make_cluster(**kept)
    again = make_cluster(**{**kept, "nodes": 4})
    assert again.bucket.map.owners == owners
    assert [again.bucket.map.is_member(node) for node in range(4)] == [False, True, True, True]
    assert _all_frames(again) == before
    assert [again.failover_log(v) for v in range(6)] == failover_logs
    assert_replicas_are_equal(again)


def test_another_number_of_replicas(make_cluster: MakeCluster, kept: dict[str, Any]) -> None:
    first = make_cluster(**kept)
    write_everything(first)
    assert_replicas_are_equal(first)
    first.stop()
    for replicas in (2, 0, 1):
        other = make_cluster(**{**kept, "replicas": replicas})
        assert_replicas_are_equal(other)
        other.stop()


@pytest.mark.parametrize("moment", ["before the record", "after the record"])
def test_a_power_loss_while_a_replica_takes_the_place(
    make_cluster: MakeCluster,
    kept: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """Whatever the folder says then, each vbucket is one that there was, and goes on."""
    first = make_cluster(**kept)
    write_everything(first)
    assert_replicas_are_equal(first)
    before, lost = _all_frames(first), kept["data_folder"].with_name("lost")
    first.add_node()

    def save_and_lose(folder: DataFolder, record: BucketRecord) -> None:
        if moment == "after the record":
            save(folder, record)
        if not lost.exists():
            shutil.copytree(kept["data_folder"], lost)
        if moment == "before the record":
            save(folder, record)

    save = DataFolder.save
    monkeypatch.setattr(DataFolder, "save", save_and_lose)
    first.rebalance()
    again = make_cluster(**{**kept, "nodes": 4, "data_folder": lost})
    assert _all_frames(again) == before
    again.rebalance()
    assert_replicas_are_equal(again)
    assert sorted(again.bucket.map.owners) == [0, 0, 1, 1, 2, 3]
    again.set(b"k", b"2")


def test_a_failover_that_the_disk_refuses_changes_nothing(
    make_cluster: MakeCluster, kept: dict[str, Any]
) -> None:
    """Whichever write fails; and another try is as the first."""
    cluster = make_cluster(**kept)
    write_everything(cluster)
    assert_replicas_are_equal(cluster)
    with cluster.bucket.lock:
        before = _all_frames(cluster), cluster.bucket.map.owners, cluster.bucket.map.rev
        failover_logs = [cluster.failover_log(v) for v in range(6)]
        refused = 0
        while True:
            try:
                with full_disk(refused):
                    fail_over(cluster.bucket, 0)
            except OSError:
                refused += 1
            else:
                break
            after = _all_frames(cluster), cluster.bucket.map.owners, cluster.bucket.map.rev
            assert after == before
            assert [cluster.failover_log(v) for v in range(6)] == failover_logs
            assert len(cluster.bucket.replicas.all_vbuckets()) == 6
        assert refused >= 3  # two replicas, and the record
    assert cluster.bucket.map.owners == (1, 1, 1, 1, 2, 2)
    assert cluster.set(b"k", b"later").value == b"later"
    cluster.stop()
    again = make_cluster(**kept)
    assert again.get(b"k").value == b"later"
    again.restore_node(0)
    assert_replicas_are_equal(again)


def test_what_ended_writes_nothing_any_more(
    make_cluster: MakeCluster, kept: dict[str, Any]
) -> None:
    """Whoever still has the vbucket that a replica took the place of."""
    cluster = make_cluster(**{**kept, "vbuckets": 1, "flush_seconds": NEVER})
    cluster.set(b"k", b"1")
    cluster.wait_until_replicated()
    ended = cluster.bucket.vbuckets[0]
    cluster.set(b"l", b"2")
    cluster.failover(0)
    ended.data.persistence.flush()
    ended.save()
    assert (ended.data.persistence.begin_flush(), ended.begin_compaction(0.0)) == (None, None)
    before = _all_frames(cluster)
    cluster.stop()
    assert _all_frames(make_cluster(**{**kept, "vbuckets": 1})) == before


# --- against a model


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file, unless it goes in this moment: a log of nobody is removed when there is time."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


class Kept(Failing):
    """The cluster in a folder. Of what was before a restart it has no record of branches."""

    def __init__(self, stack: ExitStack) -> None:
        self._folder = Path(stack.enter_context(TemporaryDirectory()))
        self._losses = 0
        super().__init__(stack, data_folder=self._folder / "0", flush_seconds=NEVER)

    def _held(self, node: int) -> Vbucket | None:
        return self.bucket.table.at(0, node)

    def flush(self, node: int) -> None:
        if (found := self._held(node)) is not None:
            found.data.persistence.flush()

    def compact(self, node: int) -> None:
        found = self._held(node)
        if found is not None and found.may_compact:
            found.data.persistence.purge(0)

    def restart(self) -> None:
        self.hang_up()
        self.cluster.stop()
        self.open()
        self._check_replicas()

    def lose_power(self) -> None:
        self.hang_up()
        parent, cut = self.uuid, self.bucket.vbuckets[0].data.disk.persisted_seqno
        self._losses += 1
        left = self._folder / str(self._losses)
        shutil.copytree(self._chosen["data_folder"], left, copy_function=_copy_if_there)
        self._chosen["data_folder"] = left
        self.open()
        assert self.cluster.high_seqno(0) == cut
        self.model.fork(self.uuid, cut, parent)
        self._check_replicas()

    def _check_replicas(self) -> None:
        """Each is a state that there was."""
        for _, replica in self.bucket.replicas.of(0):
            data, log = replica.vbucket.data, replica.vbucket.failover_log
            assert data.high_seqno == replica.complete_seqno
            if data.high_seqno and replica.has_failover_log:
                uuid = next(e.vb_uuid for e in log.entries if e.seqno <= data.high_seqno)
                held = {v.key: v.cas for v in data.newest.versions if v.is_mutation}
                assert held == self.model.state(uuid, data.high_seqno)

    def do(self, step: Step) -> None:
        match step:
            case ("flush", int(node)):
                self.flush(node)
            case ("compact", int(node)):
                self.compact(node)
            case ("restart",):
                self.restart()
            case ("lose power",):
                self.lose_power()
            case _:
                super().do(step)


KEPT_STEPS = st.one_of(
    STEPS,
    st.tuples(st.just("feed"), st.integers(0, 2), st.integers(1, 40)),
    st.tuples(st.sampled_from(["flush", "compact"]), st.integers(0, 2)),
    st.tuples(st.sampled_from(["restart", "lose power"])),
)


@settings(max_examples=60)
@given(st.lists(KEPT_STEPS, max_size=40))
def test_any_way_through_restarts(steps: list[Step]) -> None:
    """Nothing that was on disk is lost, nothing that was lost comes back, on no replica either."""
    with ExitStack() as stack:
        kept = Kept(stack)
        for step in steps:
            kept.do(step)
        kept.check()


def test_a_part_of_a_snapshot_is_not_taken_up() -> None:
    """Also where a later snapshot was whole: what is before that is no state to go back to."""
    with ExitStack() as stack:
        kept = Kept(stack)
        kept.write([b"a"], deletes=False)
        kept.feed(1, 1 << 20)
        kept.write([b"a", b"b", b"c"], deletes=False)
        wire = InProcessWire(kept.bucket, 0, 1)
        replica = kept.bucket.replicas.at(1, 0)
        assert replica is not None
        while replica.high_seqno != 3:
            wire.pump(1, most_bytes=60)
        wire.close()
        kept.flush(0)
        kept.flush(1)
        state = json.loads(replica.vbucket.data.disk.saved_state)
        assert (replica.vbucket.data.disk.persisted_seqno, state["complete_seqno"]) == (3, 1)
        kept.lose_power()
        replica = kept.bucket.replicas.at(1, 0)
        assert replica is not None
        assert replica.high_seqno == 1
        kept.check()
        assert replica.high_seqno == 4
        kept.restart()
        replica = kept.bucket.replicas.at(1, 0)
        assert replica is not None
        assert replica.vbucket.data.disk.batch_end_at(3) == 0
        assert replica.vbucket.data.disk.batch_end_at(4) == 4

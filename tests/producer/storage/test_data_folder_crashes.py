"""A bucket in a folder after a crash: what is lost, on which branch it goes on.

A crash is a copy of the folder of a cluster that still runs, which another cluster opens.
"""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.refused_error import RefusedError
from dcp.types import FailoverEntry
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.vocabulary import Status, VbucketState
from tests.producer.kept_clusters import NEVER, crash_of, flush_all, write
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
Open = Callable[..., ProducerCluster]


def test_a_crash_loses_what_was_not_written_and_begins_a_branch(
    open_cluster: Open, folder: Path
) -> None:
    first = open_cluster(folder, vbuckets=2)
    first.set_vbucket_state(1, VbucketState.REPLICA)
    replica_log = first.failover_log(1)
    kept, lost = (k for k in (b"k%d" % n for n in range(9)) if first.vbucket_of(k) == 0), b""
    write(first, next(kept), next(kept))
    flush_all(first)
    lost = next(kept)
    write(first, lost)
    uuid = first.failover_log(0).current_uuid
    crashed = crash_of(first, folder, "crashed")

    again = open_cluster(crashed, vbuckets=2)
    new_uuid = again.failover_log(0).current_uuid
    assert again.failover_log(0).entries == (FailoverEntry(new_uuid, 2), FailoverEntry(uuid, 0))
    assert new_uuid != uuid
    assert (again.high_seqno(0), again.persisted_seqno(0)) == (2, 2)
    with pytest.raises(RefusedError, match="no such document"):
        again.get(lost)
    assert again.failover_log(1) == replica_log
    twice = open_cluster(crash_of(again, crashed, "twice"), vbuckets=2)
    assert [entry.seqno for entry in twice.failover_log(0).entries] == [2, 2, 0]


def test_a_crash_while_a_manifest_spreads(open_cluster: Open, folder: Path) -> None:
    """The manifest is on disk before anybody hears of it; vbuckets that lack it follow again."""
    first = open_cluster(folder, vbuckets=2)
    first.create_collection("", "a")
    flush_all(first)
    first.create_collection("", "b")
    with first.bucket.lock:
        first.bucket.vbuckets[0].data.persistence.flush()
    again = open_cluster(crash_of(first, folder, "crashed"), vbuckets=2)
    assert again.manifest == first.manifest
    for vbucket in again.bucket.vbuckets:
        assert vbucket.documents.collections.manifest == first.manifest
        assert vbucket.data.high_seqno == 2
    assert [again.persisted_seqno(v) for v in range(2)] == [2, 1]


def test_a_consumer_that_read_more_is_rolled_back(
    make_cluster: Open, open_cluster: Open, connect: Connect, folder: Path
) -> None:
    first = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=NEVER)
    write(first, b"a", b"b", b"c")
    flush_all(first)
    write(first, b"d", b"e")
    client = connect(first).log_in().open_dcp()
    client.request_stream(0)
    client.messages_to(5)
    uuid = first.failover_log(0).current_uuid
    crashed = crash_of(first, folder, "crashed")

    again = open_cluster(crashed)
    again.start()
    resumed = connect(again).log_in().open_dcp()
    answer = resumed.request_stream(0, 5, vb_uuid=uuid, snapshot=(5, 5))
    assert answer.status == Status.ROLLBACK
    assert decode(answer) == m.RollbackAnswer(3)
    assert resumed.request_stream(0, 3, vb_uuid=uuid, snapshot=(3, 3)).status == Status.SUCCESS
    again.set(b"f", b"1")
    assert [b.key for b in resumed.messages_to(4) if isinstance(b, m.Mutation)] == [b"\0f"]


def test_a_torn_tail_is_a_crash_at_the_batch_before(open_cluster: Open, folder: Path) -> None:
    """Also after a stop in good order: the folder then is not what it was."""
    first = open_cluster(folder)
    ends = {0: folder.parent / "none"}
    disk_log = folder / "vb_0.log"
    for n in range(3):
        write(first, b"a", b"k%d" % n)
        flush_all(first)
        ends[disk_log.stat().st_size] = folder
    first.stop()
    uuid = first.failover_log(0).current_uuid
    for step, size in enumerate(range(150, disk_log.stat().st_size, 37)):
        torn = Path(shutil.copytree(folder, folder.with_name(f"torn{step}")))
        with (torn / "vb_0.log").open("r+b") as file:
            file.truncate(size)
        whole = sum(end <= size for end in ends) - 1
        again = open_cluster(torn)
        held = {v.key: v.seqno for v in again.bucket.vbuckets[0].data.newest.versions}
        high = 2 * whole
        expected = {b"k%d" % n: 2 * n + 2 for n in range(whole)} | (
            {b"a": high - 1} if whole else {}
        )
        assert (again.high_seqno(0), held) == (high, expected)
        is_whole = whole == len(ends) - 1
        assert (again.failover_log(0).current_uuid == uuid) == is_whole
        assert again.failover_log(0).entries[0].seqno == (0 if is_whole else high)


class _Model:
    """What one vbucket holds by seqno, and how far it is on disk."""

    def __init__(self) -> None:
        self.high = self.persisted = 0
        self.held: list[dict[bytes, int]] = [{}]  # at each end of a batch
        self.ends = [0]

    def write(self, keys: Iterable[bytes]) -> None:
        held = dict(self.held[-1])
        for key in keys:
            self.high += 1
            held[key] = self.high
        self.held.append(held)
        self.ends.append(self.high)

    def crash(self) -> None:
        kept = self.ends.index(self.persisted) + 1
        del self.held[kept:], self.ends[kept:]
        self.high = self.persisted


KEYS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(KEYS, st.sampled_from(["flush", "stop", "crash", "compact"])), max_size=12
)


@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_any_way_through_stops_and_crashes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[bytes] | str]
) -> None:
    root = tmp_path_factory.mktemp("way")
    at, model, branches = root / "0", _Model(), [0]

    def make() -> ProducerCluster:
        asked = ClusterSettings(vbuckets=1, seed=1, data_folder=at, flush_seconds=NEVER)
        return ProducerCluster(asked)

    cluster = make()
    for number, step in enumerate(steps):
        match step:
            case "flush":
                flush_all(cluster)
                model.persisted = model.high
            case "stop":
                cluster.stop()
                model.persisted = model.high
                cluster = make()
            case "crash":
                copied = crash_of(cluster, at, f"crash{number}")
                cluster.stop()
                at = copied
                cluster = make()
                model.crash()
                branches.append(model.high)
            case "compact":
                cluster.purge_tombstones(0)
            case keys:
                assert not isinstance(keys, str)
                write(cluster, *keys)
                model.write(keys)
        data = cluster.bucket.vbuckets[0].data
        assert (data.high_seqno, data.disk.persisted_seqno) == (model.high, model.persisted)
        assert {v.key: v.seqno for v in data.newest.versions} == model.held[-1]
        assert [e.seqno for e in reversed(cluster.failover_log(0).entries)] == branches
    cluster.stop()


@pytest.mark.parametrize("is_reopened", [False, True])
def test_what_was_purged_is_still_counted_after_a_crash(
    open_cluster: Open, folder: Path, is_reopened: bool
) -> None:
    """Though something newer of its collection was in memory when the log was compacted."""
    cluster = open_cluster(folder)
    number = cluster.create_collection("", "a")
    cluster.set(b"k", b"1", collection=number)
    cluster.delete(b"k", collection=number)
    write(cluster, b"last")
    flush_all(cluster)
    if is_reopened:
        cluster.stop()
        cluster = open_cluster(folder)
    cluster.set(b"k", b"2", collection=number)
    assert cluster.purge_tombstones(0) == 1
    crashed = open_cluster(crash_of(cluster, folder, "crashed"))
    assert crashed.bucket.vbuckets[0].documents.collections.high_seqnos == {0: 4, number: 3}

"""Orders to a cluster in a data folder whose disk refuses: all happens, or nothing."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.failover import crash, fail_over
from dcp.producer.promotion import take_over
from dcp.server.storage.bucket_record import BucketRecord
from dcp.server.storage.data_folder import DataFolder
from tests.producer.full_disk import full_disk
from tests.producer.kept_clusters import NEVER

MakeCluster = Callable[..., ProducerCluster]


def _filled(make_cluster: MakeCluster, folder: Path) -> ProducerCluster:
    """Two nodes with three vbuckets each of five documents."""
    cluster = make_cluster(nodes=2, vbuckets=6, data_folder=folder, flush_seconds=NEVER)
    for vbucket in range(6):
        found = (k for n in range(10_000) if cluster.vbucket_of(k := b"k%d" % n) == vbucket)
        for _ in range(5):
            cluster.set(next(found), b"1")
    return cluster


@pytest.mark.parametrize("lost_seqnos", [None, 2])
def test_a_crash_of_all_vbuckets_of_a_node(
    make_cluster: MakeCluster, tmp_path: Path, lost_seqnos: int | None
) -> None:
    cluster = _filled(make_cluster, tmp_path)
    before = [cluster.failover_log(vbucket) for vbucket in range(3)]
    with cluster.bucket.lock, full_disk(1):
        crash(cluster.bucket, 0, lost_seqnos)
    after = [cluster.failover_log(vbucket).entries[1:] for vbucket in range(3)]
    assert after == [log.entries for log in before]


def _interrupted(_: DataFolder, __: BucketRecord) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("what", ["failover", "takeover"])
def test_what_is_interrupted_is_undone(
    make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whatever interrupts it, and replicas are replicas again."""
    cluster = make_cluster(nodes=2, vbuckets=2, replicas=1, data_folder=tmp_path)
    cluster.wait_until_replicated()
    with cluster.bucket.lock:
        replica = cluster.bucket.replicas.at(1, 0)
        assert replica is not None
        if what == "takeover":
            replica.is_taking_over = True
        monkeypatch.setattr(DataFolder, "save", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            if what == "failover":
                fail_over(cluster.bucket, 0)
            else:
                take_over(cluster.bucket, [0], 1)
        monkeypatch.undo()
        assert not replica.is_prepared
        assert cluster.bucket.map.owners == (0, 1)


def _is_open(cluster: ProducerCluster, node: int) -> bool:
    host, port = cluster.seeds[node].split(":")
    try:
        socket.create_connection((host, int(port)), 10.0).close()
    except OSError:
        return False
    return True


def test_nodes_and_owners_that_the_disk_refuses(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """The map is what it was, and so are the nodes that listen."""
    cluster = make_cluster(nodes=2, vbuckets=2, replicas=1, data_folder=tmp_path)
    cluster.wait_until_replicated()
    cluster.failover(1)
    before = cluster.bucket.map.rev, cluster.bucket.map.owners, cluster.bucket.map.members
    orders: list[Callable[[], object]] = [
        cluster.add_node,
        lambda: cluster.restore_node(1),
        cluster.rebalance,
    ]
    for order in orders:
        with full_disk(), pytest.raises(OSError, match="disk full"):
            order()
        found = cluster.bucket.map
        assert (found.rev, found.owners, found.members) == before
        assert not _is_open(cluster, 1)
    assert cluster.bucket.map.down_nodes == {1}
    cluster.restore_node(1)
    with full_disk(), pytest.raises(OSError, match="disk full"):
        cluster.move_vbucket(0, 1)
    assert cluster.bucket.map.owners == (0, 0)
    cluster.move_vbucket(0, 1)
    assert cluster.add_node() == 2
    assert _is_open(cluster, 2)

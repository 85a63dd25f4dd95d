"""A replica that is fed from disk never saw tombstones that went: it must go on to know of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.bucket_type import BucketType
from dcp.server.model.manifest import FIRST
from dcp.server.model.versions import Content, Version
from dcp.server.storage.saved_vbucket import SavedVbucket
from dcp.server.vbucket.replica import Replica
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.types import FailoverEntry, FailoverLog, SnapshotRange
from dcp.wire.vocabulary import Status, VbucketState
from tests.producer.kept_clusters import flush_all
from tests.producer.raw_client import RawClient

MakeCluster = Callable[..., ProducerCluster]
Connect = Callable[..., RawClient]
DISK = 0x06
LOG = FailoverLog((FailoverEntry(0xABC, 0),))


def _with_purged(cluster: ProducerCluster) -> None:
    """Seqnos 1 to 20 are documents, 21 to 30 purged deletions of half of them, 31 is another."""
    for key in range(20):
        cluster.set(b"k%d" % key, b"{}")
    for key in range(10):
        cluster.delete(b"k%d" % key)
    cluster.set(b"last", b"{}")
    flush_all(cluster)
    assert (cluster.purge_tombstones(0), cluster.purge_seqno(0)) == (10, 30)


def _answers(cluster: ProducerCluster, connect: Connect) -> dict[int, object]:
    """What resumes are told, by their start."""
    uuid = cluster.failover_log(0).entries[-1].vb_uuid
    client = connect(cluster, cluster.vbucket_owner(0)).log_in().open_dcp()
    return {start: client.request_stream(0, start, vb_uuid=uuid).status for start in (20, 30)}


RIGHT = {20: Status.ROLLBACK, 30: Status.SUCCESS}


def test_the_new_owner_knows_after_a_restart(
    make_cluster: MakeCluster, connect: Connect, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {"vbuckets": 1, "data_folder": tmp_path / "data"}
    first = make_cluster(**kept)
    _with_purged(first)
    first.stop()  # memory has nothing then: the new owner is fed from disk
    giving = make_cluster(**kept)
    giving.add_node()
    giving.rebalance(remove=0)
    assert giving.vbucket_owner(0) == 1
    assert (_answers(giving, connect), giving.purge_seqno(0)) == (RIGHT, 30)
    giving.stop()
    again = make_cluster(**kept, nodes=2)
    assert (_answers(again, connect), again.purge_seqno(0)) == (RIGHT, 30)


def test_a_promoted_replica_knows_after_a_restart(
    make_cluster: MakeCluster, connect: Connect, tmp_path: Path
) -> None:
    """Both after a stop in good order of the replica itself, and of what it became."""
    kept: dict[str, Any] = {"vbuckets": 1, "data_folder": tmp_path / "data"}
    first = make_cluster(**kept, nodes=2)
    _with_purged(first)
    first.stop()
    fed = make_cluster(**kept, nodes=2, replicas=1)
    fed.wait_until_replicated()
    fed.stop()
    promoting = make_cluster(**kept, nodes=2, replicas=1)
    promoting.wait_until_replicated()
    promoting.failover(0)
    assert (_answers(promoting, connect), promoting.purge_seqno(0)) == (RIGHT, 30)
    promoting.stop()
    again = make_cluster(**kept, nodes=2, replicas=1)
    assert (_answers(again, connect), again.purge_seqno(0)) == (RIGHT, 30)


@pytest.mark.parametrize("kind", list(BucketType))
@pytest.mark.parametrize(("back_to", "purge_seqno"), [(0, 0), (40, 30), (44, 30)])
def test_a_replica_that_goes_back_lacks_no_more_than_it_has_seen(
    kind: BucketType, back_to: int, purge_seqno: int
) -> None:
    """What it is fed anew has all tombstones, unless that is from disk again."""
    vbucket = Vbucket(0, lambda: 1, ClusterSettings(vbuckets=1, bucket_type=kind))
    replica = Replica(vbucket, lambda: FIRST)
    for start, end, purged in ((0, 40, 30), (41, 50, None)):
        replica.begin_snapshot(SnapshotRange(start, end), DISK, purged)
        for seqno in {40: (5, 40), 50: (44, 50)}[end]:
            replica.receive(
                Version(0, b"k%d" % seqno, Content(b"v"), seqno=seqno, rev=1, cas=seqno << 16)
            )
        replica.store_received()
    assert replica.roll_back(back_to) == (40 if back_to else 0)
    assert vbucket.data.disk.purge_seqno == purge_seqno


def test_a_saved_state_is_read_as_it_was_written() -> None:
    saved = SavedVbucket(VbucketState.ACTIVE, LOG, manifests=((5, 1),), high_seqnos={8: 2**64 - 1})
    assert SavedVbucket.decode(saved.encode()) == saved

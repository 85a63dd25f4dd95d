"""The manifests that a data folder keeps: those that something in it still names, and no others."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.manifest import FIRST, Manifest
from dcp.server.storage.disk_batch import DiskFormatError
from dcp.wire.vocabulary import VbucketState

NEVER = 3600.0
MOST = 24
"""What compacted logs name, those of the round before, and what came in this one."""
KEYS = (b"a", b"b", b"c", b"d")
Open = Callable[..., ProducerCluster]


def _make(stack: ExitStack, folder: Path, **chosen: Any) -> ProducerCluster:
    asked = {"vbuckets": 2, "seed": 1, "flush_seconds": NEVER, "data_folder": folder, **chosen}
    cluster = ProducerCluster(ClusterSettings(**asked))
    stack.callback(cluster.stop)
    return cluster


@pytest.fixture
def open_cluster(folder: Path) -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda **chosen: _make(stack, folder, **chosen)


def _saved(folder: Path) -> int:
    """How many manifests the folder has."""
    return len(json.loads((folder / "bucket.json").read_text())["manifests"])


def _change(cluster: ProducerCluster, times: int) -> None:
    for number in range(times):
        cluster.create_collection("", f"c{number}")
        cluster.drop_collection("", f"c{number}")


def _compact(cluster: ProducerCluster) -> None:
    """Leave of each log the newest, and no way back to before the last write."""
    for vbucket in cluster.bucket.vbuckets:
        if vbucket.state is VbucketState.ACTIVE:
            cluster.set(next(key for key in KEYS if cluster.vbucket_of(key) == vbucket.id), b"1")
        with cluster.bucket.lock:
            vbucket.data.persistence.flush()
        cluster.purge_tombstones(vbucket.id)


def _manifests(cluster: ProducerCluster) -> list[Manifest]:
    return [each.documents.collections.manifest for each in cluster.bucket.vbuckets]


def test_manifests_that_nobody_names_go(open_cluster: Open, folder: Path) -> None:
    cluster = open_cluster()
    _compact(cluster)
    for _ in range(20):
        _change(cluster, 5)
        _compact(cluster)
    assert _saved(folder) <= MOST
    cluster.create_collection("", "last")
    manifest = cluster.manifest
    cluster.stop()
    assert _saved(folder) <= MOST
    again = open_cluster()
    assert _manifests(again) == [manifest, manifest]
    assert again.create_collection("", "new") not in manifest.given_collection_ids


def test_a_vbucket_that_stands_still_keeps_its_own(open_cluster: Open, folder: Path) -> None:
    """It is no active one: no event tells it of another manifest."""
    cluster = open_cluster()
    _compact(cluster)
    _change(cluster, 1)
    cluster.create_collection("", "known")
    known = cluster.manifest
    cluster.set_vbucket_state(1, VbucketState.REPLICA)
    for _ in range(8):
        _change(cluster, 5)
        _compact(cluster)
    last = cluster.manifest
    for _ in range(2):
        cluster.stop()
        assert _saved(folder) <= MOST
        cluster = open_cluster()
        assert _manifests(cluster) == [last, known]


def test_a_replica_keeps_its_own(open_cluster: Open, folder: Path) -> None:
    chosen = {"nodes": 2, "vbuckets": 1, "replicas": 1}
    cluster = open_cluster(**chosen)
    cluster.start()
    _compact(cluster)
    cluster.create_collection("", "known")
    known = cluster.manifest
    cluster.wait_until_replicated()
    cluster.pause_replication()
    for _ in range(8):
        _change(cluster, 5)
        _compact(cluster)
    cluster.stop()
    assert _saved(folder) <= MOST
    again = open_cluster(**chosen)
    replica = again.bucket.replicas.at(1, 0)
    assert replica is not None
    assert replica.vbucket.documents.collections.manifest == known


def test_a_disk_log_that_names_a_manifest_that_is_not_there(
    open_cluster: Open, folder: Path
) -> None:
    cluster = open_cluster(vbuckets=1)
    _change(cluster, 1)
    cluster.stop()
    record = json.loads((folder / "bucket.json").read_text())
    record["manifests"] = record["manifests"][1:]
    (folder / "bucket.json").write_text(json.dumps(record))
    with pytest.raises(DiskFormatError, match=r"vb_0\.log: names manifest 1, which bucket"):
        open_cluster(vbuckets=1)


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["change", "change", "stop", "crash", "state", "back"]),
        st.tuples(st.sampled_from(["flush", "compact"]), st.integers(0, 1)),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=50)
@given(steps=STEPS)
def test_every_manifest_that_is_named_is_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str | tuple[str, int]]
) -> None:
    """Whenever a power loss comes: a vbucket stands where what it has on disk made it stand."""
    root = tmp_path_factory.mktemp("way")
    with ExitStack() as stack:
        at = root / "0"
        cluster = _make(stack, at)
        for number, step in enumerate(steps):
            match step:
                case "change":
                    _change(cluster, 1)
                case "stop":
                    told = _manifests(cluster)
                    cluster.stop()
                    cluster = _make(stack, at)
                    assert _manifests(cluster) == told
                case "crash":
                    with cluster.bucket.lock:
                        kept = [_at_disk(cluster, vbucket) for vbucket in range(2)]
                        lost = Path(shutil.copytree(at, root / f"lost{number}"))
                    at = lost
                    cluster = _make(stack, at)
                    found = [_at_seqno(cluster, v, seqno) for v, (seqno, _) in enumerate(kept)]
                    assert found == [manifest for _, manifest in kept]
                case "state":
                    is_active = cluster.bucket.vbuckets[1].state is VbucketState.ACTIVE
                    other = VbucketState.REPLICA if is_active else VbucketState.ACTIVE
                    cluster.set_vbucket_state(1, other)
                case "back":
                    cluster.crash_restart(0, lost_seqnos=1)
                case (what, vbucket):
                    with cluster.bucket.lock:
                        data = cluster.bucket.vbuckets[vbucket].data
                        data.persistence.flush()
                        if what == "compact":
                            data.persistence.purge(0)


def _at_disk(cluster: ProducerCluster, vbucket: int) -> tuple[int, Manifest]:
    seqno = cluster.bucket.vbuckets[vbucket].data.disk.persisted_seqno
    return seqno, _at_seqno(cluster, vbucket, seqno)


def _at_seqno(cluster: ProducerCluster, vbucket: int, seqno: int) -> Manifest:
    steps = cluster.bucket.vbuckets[vbucket].documents.collections.steps
    return next((m for at, m in reversed(steps) if at <= seqno), FIRST)

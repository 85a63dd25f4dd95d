"""Bulk documents: the same to clients as documents written one by one."""

import json
from collections.abc import Callable

import pytest

from dcp.producer.server.cluster import ProducerCluster
from dcp.producer.vbucket.preload import PreloadSettings
from dcp.wire import messages as m
from dcp.wire.vocabulary import Datatype, HelloFeature, StreamFlag
from tests.producer.raw_client import FEATURES, PLAIN_FEATURES, RawClient

Connect = Callable[..., RawClient]


@pytest.mark.parametrize("features", [FEATURES, PLAIN_FEATURES])
def test_preloaded_documents_stream_as_any_other(
    make_cluster: Callable[..., ProducerCluster],
    connect: Connect,
    features: tuple[HelloFeature, ...],
) -> None:
    cluster = make_cluster(vbuckets=2, checkpoint_items=10)
    cluster.start_vbucket_at(1, seqno=2**63)
    cluster.preload(100, 128)
    prefix = b"\0" if features is FEATURES else b""
    cluster.set(b"doc:0000000003", b'"new"')
    cluster.delete(b"doc:0000000004")
    dcp = connect(cluster).log_in(features).open_dcp()
    seen: dict[bytes, bytes] = {}
    for vbucket in range(2):
        dcp.request_stream(vbucket, flags=int(StreamFlag.TO_LATEST))
        while not isinstance(body := dcp.message(), m.StreamEnd):
            if isinstance(body, m.Mutation):
                assert body.key.startswith(prefix)
                seen[body.key.removeprefix(prefix)] = body.value
    held = {
        key: document.value
        for vbucket in range(2)
        for key, document in cluster.state_at(vbucket, cluster.high_seqno(vbucket)).items()
    }
    assert seen == held
    assert len(held) == 99
    assert held.pop(b"doc:0000000003") == b'"new"'
    for key, value in held.items():
        assert len(value) == 128
        assert json.loads(value)["id"].encode() == key.removeprefix(b"doc:")
    assert cluster.get(b"doc:0000000003").rev == 2
    assert cluster.get(b"doc:0000000005").datatype == Datatype.JSON


def test_preloaded_cas_and_seqnos_grow(make_cluster: Callable[..., ProducerCluster]) -> None:
    cluster = make_cluster(vbuckets=1)
    cluster.preload(50, 64)
    documents = list(cluster.state_at(0, 50).values())
    assert [d.seqno for d in documents] == list(range(1, 51))
    cas = [d.cas for d in documents]
    assert cas == sorted(set(cas))
    assert cluster.set(b"later", b"{}").cas > cas[-1]


@pytest.mark.parametrize(("count", "size"), [(0, 100), (1, 10), (10**10, 100)])
def test_impossible_preloads(count: int, size: int) -> None:
    with pytest.raises(ValueError, match="preload"):
        PreloadSettings(count, size)


def test_a_preload_must_come_first(make_cluster: Callable[..., ProducerCluster]) -> None:
    cluster = make_cluster(vbuckets=1)
    cluster.set(b"k", b"1")
    with pytest.raises(ValueError, match="before the first write"):
        cluster.preload(10, 64)


@pytest.mark.parametrize("then", ["", "purge", "crash"])
def test_preloaded_documents_are_counted_once(cluster: ProducerCluster, then: str) -> None:
    """Also where what replaced one is a tombstone that was purged, and the key is written again."""
    cluster.preload(5, 40)
    data = cluster.bucket.vbuckets[0].data
    keys = list(cluster.state_at(0, 5))
    cluster.set(keys[0], b"1")
    for key in keys[1:3]:
        cluster.delete(key)
    cluster.set(b"other", b"1")
    assert data.newest.document_counts() == {0: 4}
    if then == "purge":
        assert cluster.purge_tombstones(0) == 2
    elif then == "crash":
        cluster.crash_restart(0, lost_seqnos=1)
    others = int(then != "crash")
    assert data.newest.document_counts() == {0: 3 + others}
    cluster.set(keys[1], b"2")
    assert data.newest.document_counts() == {0: 4 + others}
    cluster.delete(keys[1])
    cluster.crash_restart(0)
    assert data.newest.document_counts() == {0: 3 + others}
    assert set(cluster.state_at(0, cluster.high_seqno(0))) - {b"other"} == {keys[0], *keys[3:]}

"""Buckets with something of everything, and whether replicas are what their actives are."""

from dcp.producer.cluster import ProducerCluster
from dcp.server.storage.stored_items import STORED_FLAVOUR, versions_of
from dcp.server.vbucket.vbucket_states import Vbucket


def frames_of(vbucket: Vbucket) -> list[bytes]:
    """All that a vbucket's disk shows, as it goes on the wire."""
    found: list[bytes] = []
    vbucket.data.persistence.flush(vbucket.data.high_seqno)
    with vbucket.data.disk.scan(0) as scan:
        while (frames := scan.read(1 << 20)) is not None:
            found += [b"".join(each.wire(STORED_FLAVOUR)) for each in versions_of(frames)]
    return found


def assert_replicas_are_equal(cluster: ProducerCluster) -> None:
    """Every replica is, byte for byte, what its active is."""
    cluster.wait_until_replicated()
    with cluster.batch():
        for active in cluster.bucket.vbuckets:
            replicas = list(cluster.bucket.replicas.of(active.id))
            assert len(replicas) == cluster.settings.replicas
            for _, replica in replicas:
                assert frames_of(replica.vbucket) == frames_of(active)
                assert replica.vbucket.failover_log == active.failover_log
                assert replica.vbucket.facts().purge_seqno == active.facts().purge_seqno
                known, mine = active.documents.collections, replica.vbucket.documents.collections
                assert mine.manifest == known.manifest
                assert mine.high_seqnos == known.high_seqnos


def write_everything(cluster: ProducerCluster, times: int = 40) -> None:
    """Documents of all kinds, deleted and expired ones, in several collections."""
    xattrs = b"\0\0\0\x0a\0\0\0\x06_s\0{}\0body"
    cluster.create_scope("s")
    cluster.create_collection("s", "a", max_ttl=1000)
    for number in range(times):
        cluster.set(b"k%d" % (number % 7), b'{"n":%d}' % number, flags=number)
        cluster.set(b"a%d" % number, b"raw", collection="s.a")
        cluster.set(b"x%d" % number, xattrs, datatype=4, expiry=60)
    cluster.delete(b"k1")
    cluster.delete(b"x1")
    cluster.expire_due(cluster.bucket.now() + 100)
    cluster.flush_collection("s", "a")
    cluster.set(b"a1", b"again", collection="s.a")


def assert_replicas_are_there(cluster: ProducerCluster) -> None:
    """As many as there are nodes for (each has a vbucket), and equal."""
    cluster.wait_until_replicated()
    owners = {cluster.vbucket_owner(each.id) for each in cluster.bucket.vbuckets}
    expected = min(cluster.settings.replicas, len(owners) - 1)
    for active in cluster.bucket.vbuckets:
        replicas = list(cluster.bucket.replicas.of(active.id))
        assert len(replicas) == expected
        for _, replica in replicas:
            assert frames_of(replica.vbucket) == frames_of(active)

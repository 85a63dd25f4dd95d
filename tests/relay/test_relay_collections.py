"""Scopes and collections go through a relay: events, documents, filters and the manifest."""

import json
from collections.abc import Callable

from dcp.producer.cluster import ProducerCluster
from dcp.relay.thread import Relay
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.vocabulary import Opcode, Status
from tests.client.drained import wait_for
from tests.producer.raw_client import RawClient
from tests.relay.following import wait_until_level

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]


def _manifest(seed: str) -> object:
    with RawClient(seed) as client:
        told = client.log_in().call(m.Empty(), Opcode.GET_COLLECTIONS_MANIFEST)
        return json.loads(told.value)


def _stream(seed: str, value: bytes) -> RawClient:
    client = RawClient(seed).log_in().open_dcp(b"client of " + value)
    assert client.request_stream(0, value=value).status == Status.SUCCESS
    return client


def _items(client: RawClient, last: int) -> list[m.Body]:
    with client:
        found = client.messages_to(last)
    return [each for each in found if not isinstance(each, m.SnapshotMarker)]


def test_collections(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    cluster = make_cluster(vbuckets=1)
    cluster.create_scope("s")
    first = cluster.create_collection("s", "first", max_ttl=100)
    relay = make_relay(cluster)
    wait_until_level(cluster, relay)
    (direct,), (behind,) = cluster.seeds, relay.seeds
    assert _manifest(behind) == _manifest(direct)
    values = (b"", b'{"collections":["%x"]}' % first, b'{"scope":"8"}')
    pairs = [(_stream(direct, value), _stream(behind, value)) for value in values]
    cluster.create_collection("s", "second")
    cluster.set(b"a", b"1", collection=first)
    cluster.set(b"b", b"2", collection="s.second")
    cluster.set(b"c", b"3")
    cluster.flush_collection("s", "second")
    cluster.set(b"d", b"4", collection=first)
    last = cluster.high_seqno(0)
    for of_cluster, of_relay in pairs:
        assert _items(of_cluster, last) == _items(of_relay, last) != []
    wait_for("the manifest", lambda: _manifest(behind) == _manifest(direct))
    with RawClient(behind) as client:
        answer = client.log_in().call(m.GetId(b"s.first"), Opcode.GET_COLLECTION_ID)
        assert decode(answer) == m.IdAnswer(cluster.manifest.uid, first)


def test_the_manifest_after_a_restart(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    cluster = make_cluster(vbuckets=2)
    cluster.create_scope("s")
    cluster.create_collection("s", "first")
    relay = make_relay(cluster)
    wait_until_level(cluster, relay)
    told = _manifest(relay.seeds[0])
    relay.stop()
    cluster.kill_node(0)
    again = make_relay(cluster)
    assert _manifest(again.seeds[0]) == told

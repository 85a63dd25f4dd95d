"""Collections over real sockets: system events, keys with ids, filters, questions, forks."""

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dcp.errors import LocalProtocolError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.manifest_changes import CreateCollection, CreateScope
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.model.versions import Content, Version
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.leb128 import encode_leb128
from dcp.wire.system_event import (
    CollectionBegun,
    CollectionEnded,
    ManifestEvent,
    ScopeCreated,
    ScopeDropped,
    decode_system_event,
)
from dcp.wire.vocabulary import EndReason, HelloFeature, Opcode, Status, VbucketState
from tests.producer.conftest import Clock
from tests.producer.raw_client import PLAIN_FEATURES, RawClient
from tests.producer.recorded_manifests import LIVE

Connect = Callable[..., RawClient]
Shown = tuple[int, bytes | ManifestEvent | None]
"""An item's seqno, and its key on the wire or the event."""
UNKNOWN = b'{"error":{"context":"Unknown scope or collection in operation"},"manifest_uid":"%x"}'


def _stream(client: RawClient, value: bytes = b"", *, end: int = 2**64 - 1) -> RawClient:
    client.open_dcp(name=b"%d" % client.socket.getsockname()[1])
    assert client.request_stream(0, value=value, end=end).status == Status.SUCCESS
    return client


def _shown(message: m.Body) -> Shown:
    if isinstance(message, m.SystemEvent):
        return message.by_seqno, decode_system_event(message)
    assert isinstance(message, m.Mutation | m.Deletion)
    return message.by_seqno, message.key


def _items_to(client: RawClient, seqno: int) -> list[Shown]:
    """The items up to the one at ``seqno``; markers must hold them."""
    return _items(client.messages_to(seqno))


def _items(messages: list[m.Body]) -> list[Shown]:
    found: list[Shown] = []
    marker = m.SnapshotMarker(0, 0, 0)
    for message in messages:
        if isinstance(message, m.SnapshotMarker):
            marker = message
        elif not isinstance(message, m.SeqnoAdvanced | m.StreamEnd):
            found.append(_shown(message))
            assert marker.start <= found[-1][0] <= marker.end
    return found


def _to_the_end(client: RawClient) -> tuple[list[Shown], EndReason]:
    messages = client.messages_until(lambda message: isinstance(message, m.StreamEnd))
    last = messages[-1]
    assert isinstance(last, m.StreamEnd)
    return _items(messages), EndReason(last.reason)


def test_live_changes_as_recorded(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    """05b-collections-live.jsonl, item by item; its streams are c8, scope8, all and nohello."""
    cluster = make_cluster(vbuckets=1)
    cluster.change_manifest(*LIVE[0])
    cluster.set(b"d0", b"0")
    checkpoints = cluster.bucket.vbuckets[0].data.checkpoints
    checkpoints.expel()  # the recorded streams began on disk
    c8 = _stream(connect(cluster).log_in(), b'{"collections":["8"]}')
    begun = (3, CollectionBegun(1, 0, 8, b"c8"))
    assert _items_to(c8, 3) == [begun]
    assert c8.message() == m.SeqnoAdvanced(4)
    for key in (b"x0", b"x1", b"x2"):
        cluster.set(key, b"1")
    assert c8.is_quiet()
    markers: list[m.Body] = []
    for keys in ([], [b"y0", b"y1"], [b"y2"]):
        with cluster.batch():
            for key in keys:
                cluster.set(key, b"1")
            written = cluster.set(b"e%d" % len(markers), b"1", collection=8)
        markers.append(c8.message())
        assert _shown(c8.message()) == (written.seqno, b"\x08e%d" % (len(markers) - 1))
    assert markers == [
        m.SnapshotMarker(8, 8, 5),
        m.SnapshotMarker(11, 11, 1),
        m.SnapshotMarker(13, 13, 1),
    ]

    checkpoints.expel()
    scope8 = _stream(connect(cluster).log_in(), b'{"scope":"8"}')
    of_scope = [(1, ScopeCreated(0, 8, b"s8")), (2, CollectionBegun(0, 8, 9, b"c9"))]
    assert _items_to(scope8, 2) == of_scope
    assert scope8.message() == m.SeqnoAdvanced(13)
    everything = _stream(connect(cluster).log_in())
    documents = [b"\0d0", b"\0x0", b"\0x1", b"\0x2", b"\x08e0", b"\0y0", b"\0y1", b"\x08e1"]
    documents += [b"\0y2", b"\x08e2"]
    assert _items_to(everything, 13) == [*of_scope, begun, *enumerate(documents, 4)]

    cluster.change_manifest(*LIVE[1])
    new = (14, CollectionBegun(2, 8, 0xA, b"ca"))
    assert _items_to(scope8, 14) == _items_to(everything, 14) == [new]
    cluster.change_manifest(*LIVE[2])
    ended = (15, CollectionEnded(3, 0, 8))
    assert _to_the_end(c8) == ([ended], EndReason.FILTER_EMPTY)
    assert _items_to(everything, 15) == [ended]
    cluster.change_manifest(*LIVE[3])
    gone = [
        (16, CollectionEnded(3, 8, 0xA)),
        (17, CollectionEnded(3, 8, 9)),
        (18, ScopeDropped(4, 8)),
    ]
    assert _to_the_end(scope8) == (gone, EndReason.FILTER_EMPTY)
    assert _items_to(everything, 18) == gone

    plain = _stream(connect(cluster).log_in(PLAIN_FEATURES))
    assert plain.message() == m.SnapshotMarker(0, 12, 6)
    visible = [(4, b"d0"), (5, b"x0"), (6, b"x1"), (7, b"x2"), (9, b"y0"), (10, b"y1"), (12, b"y2")]
    assert [_shown(plain.message()) for _ in visible] == visible
    cluster.change_manifest(*LIVE[4])
    assert plain.message() == m.StreamEnd(EndReason.OK)
    assert _items_to(everything, 20) == [
        (19, CollectionEnded(4, 0, 0)),
        (20, CollectionBegun(5, 0, 0xB, b"cb")),
    ]


def test_a_disk_snapshot_ends_with_seqno_advanced(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    """Where Collections is negotiated; a client without is told of what it sees, or of nothing."""
    cluster = make_cluster(vbuckets=1, checkpoint_items=0)
    cluster.set(b"d", b"1")
    cluster.create_collection("", "c8")
    cluster.set(b"k", b"1", collection=8)
    filtered = _stream(connect(cluster).log_in(), b'{"collections":["0"]}', end=3)
    assert filtered.message() == m.SnapshotMarker(0, 3, 6)
    assert _shown(filtered.message()) == (1, b"\0d")
    assert filtered.message() == m.SeqnoAdvanced(3)
    assert filtered.message() == m.StreamEnd(EndReason.OK)
    nothing = _stream(connect(cluster).log_in(), b'{"collections":[]}')
    assert [nothing.message(), nothing.message()] == [
        m.SnapshotMarker(0, 3, 6),
        m.SeqnoAdvanced(3),
    ]
    plain = _stream(connect(cluster).log_in(PLAIN_FEATURES), end=3)
    assert plain.message() == m.SnapshotMarker(0, 1, 6)
    assert _shown(plain.message()) == (1, b"d")
    assert plain.message() == m.StreamEnd(EndReason.OK)


def test_a_client_without_collections_is_sent_nothing_of_others(
    cluster: ProducerCluster, connect: Connect
) -> None:
    cluster.create_collection("", "c8")
    plain = _stream(connect(cluster).log_in(PLAIN_FEATURES))
    assert plain.is_quiet()
    cluster.set(b"k", b"1", collection=8)
    cluster.set(b"k", b"2")
    assert plain.message() == m.SnapshotMarker(0, 3, 5)
    assert _shown(plain.message()) == (3, b"k")


def test_a_scope_filter_shows_what_comes_later(cluster: ProducerCluster, connect: Connect) -> None:
    cluster.create_scope("s")
    stream = _stream(connect(cluster).log_in(), b'{"scope":"8"}')
    assert _items_to(stream, 1) == [(1, ScopeCreated(1, 8, b"s"))]
    cluster.create_collection("", "b")
    cluster.create_collection("s", "a", max_ttl=60)
    assert _items_to(stream, 3) == [(3, CollectionBegun(3, 8, 9, b"a", 60))]
    cluster.set(b"k", b"1", collection="_default.b")
    cluster.set(b"k", b"1", collection="s.a")
    assert _items_to(stream, 5) == [(5, b"\x09k")]
    cluster.drop_collection("s", "a")
    assert _items_to(stream, 6) == [(6, CollectionEnded(4, 8, 9))]
    cluster.drop_scope("s")
    assert _to_the_end(stream) == ([(7, ScopeDropped(5, 8))], EndReason.FILTER_EMPTY)


@pytest.mark.parametrize(
    ("features", "value", "status", "body"),
    [
        (
            HelloFeature.COLLECTIONS,
            b'{"collections":["9"]}',
            Status.UNKNOWN_COLLECTION,
            UNKNOWN % 1,
        ),
        (HelloFeature.COLLECTIONS, b'{"scope":"9"}', Status.UNKNOWN_SCOPE, UNKNOWN % 1),
        (HelloFeature.COLLECTIONS, b"{}", Status.EINVAL, b""),
        (HelloFeature.COLLECTIONS, b'{"sid":1}', Status.DCP_STREAM_ID_INVALID, b""),
        (
            HelloFeature.XERROR,
            b'{"collections":["8"]}',
            Status.EINVAL,
            b'{"error":{"context":"Request must not include value"}}',
        ),
    ],
)
def test_refused_filters(
    cluster: ProducerCluster,
    connect: Connect,
    features: HelloFeature,
    value: bytes,
    status: Status,
    body: bytes,
) -> None:
    cluster.create_collection("", "c8")
    client = connect(cluster).log_in((features,)).open_dcp()
    answer = client.request_stream(0, value=value)
    assert (answer.status, answer.value) == (status, body)


def test_a_client_without_collections_and_no_default_collection(
    cluster: ProducerCluster, connect: Connect
) -> None:
    cluster.drop_collection("_default", "_default")
    client = connect(cluster).log_in(PLAIN_FEATURES).open_dcp()
    refused = client.request_stream(0)
    assert (refused.status, refused.value) == (Status.EINVAL, UNKNOWN % 1)
    stored = client.call(m.Store(b"k", b"1"), Opcode.SET)
    assert (stored.status, stored.value) == (Status.EINVAL, UNKNOWN % 1)


@pytest.mark.parametrize(
    ("key", "status"),
    [
        (b"\x08k", Status.SUCCESS),
        (b"\xf4\x03k", Status.SUCCESS),
        (b"\0k", Status.SUCCESS),
        (b"\x08" + b"k" * 246, Status.SUCCESS),
        (b"\x08" + b"k" * 247, Status.EINVAL),
        (b"\xf4\x03" + b"k" * 246, Status.SUCCESS),
        (b"\0" + b"k" * 250, Status.SUCCESS),
        (b"\0" + b"k" * 251, Status.EINVAL),
        (b"\x08", Status.EINVAL),
        (b"\x88\x00k", Status.EINVAL),
        (b"\x88\x80\x00k", Status.EINVAL),
        (b"\xff\xff\xff\xff\x1fk", Status.EINVAL),
        (b"\xff", Status.EINVAL),
        (b"\x09k", Status.UNKNOWN_COLLECTION),
        (b"\x01k", Status.UNKNOWN_COLLECTION),
    ],
)
def test_keys_with_a_collection(
    cluster: ProducerCluster, connect: Connect, key: bytes, status: Status
) -> None:
    cluster.change_manifest(CreateCollection("", "c8"), CreateCollection("", "big", id=0x1F4))
    kv = connect(cluster).log_in()
    answer = kv.call(m.Store(key, b"1"), Opcode.SET)
    assert answer.status == status
    if status is Status.UNKNOWN_COLLECTION:
        assert json.loads(answer.value)["manifest_uid"] == "1"
    found = kv.call(m.KeyOnly(key), Opcode.GET)
    assert found.status == status
    if status is Status.SUCCESS:
        assert decode(found) == m.GetAnswer(0, b"1")


def test_collections_hold_their_own_documents(cluster: ProducerCluster, connect: Connect) -> None:
    cluster.create_collection("", "c8")
    kv = connect(cluster).log_in()
    for prefix in (b"\0", b"\x08"):
        assert kv.call(m.Store(prefix + b"k", prefix), Opcode.ADD).status == Status.SUCCESS
    assert [cluster.get(b"k", collection=number).value for number in (0, 8)] == [b"\0", b"\x08"]
    assert kv.call(m.Touch(b"\x08k", 5), Opcode.TOUCH).status == Status.SUCCESS
    assert cluster.get(b"k").expiry == 0
    assert kv.call(m.KeyOnly(b"\x08k"), Opcode.DELETE).status == Status.SUCCESS
    assert set(cluster.state_at(0, 5)) == {b"k"}
    assert cluster.state_at(0, 5, collection=8) == {}
    assert cluster.state_at(0, 4, collection="_default.c8")[b"k"].value == b"\x08"
    with pytest.raises(RefusedError, match="collection: found 'c9'"):
        cluster.get(b"k", collection="_default.c9")


def test_dropped_and_flushed_documents_are_gone(cluster: ProducerCluster) -> None:
    number = cluster.create_collection("", "a")
    cluster.set(b"k", b"1", collection=number)
    first = cluster.set(b"l", b"1", collection=number)
    cluster.set(b"k", b"of the default collection")
    cluster.flush_collection("", "a")
    assert cluster.state_at(0, 5, collection=number) == {}
    with pytest.raises(RefusedError) as refused:
        cluster.get(b"k", collection=number)
    assert refused.value.status is Status.KEY_ENOENT
    again = cluster.set(b"k", b"2", collection=number)
    assert again.cas > first.cas
    cluster.drop_collection("", "a")
    with pytest.raises(RefusedError, match="collection 0x8: found none") as refused:
        cluster.get(b"k", collection=number)
    assert refused.value.status is Status.UNKNOWN_COLLECTION
    held = [set(cluster.state_at(0, at, collection=number)) for at in range(8)]
    assert held == [set(), set(), {b"k"}, {b"k", b"l"}, {b"k", b"l"}, set(), {b"k"}, set()]
    assert set(cluster.state_at(0, 7)) == {b"k"}


def test_max_ttl_bounds_every_expiry(cluster: ProducerCluster, clock: Clock) -> None:
    number = cluster.create_collection("", "a", max_ttl=60)
    latest = int(clock.now) + 60
    for given_, stored in (
        (0, latest),
        (30, latest - 30),
        (61, latest),
        (int(clock.now) + 99, latest),
    ):
        assert cluster.set(b"k", b"1", expiry=given_, collection=number).expiry == stored
    assert cluster.touch(b"k", 0, collection=number).expiry == latest
    free = cluster.create_collection("", "b", max_ttl=0)
    assert cluster.set(b"k", b"1", collection=free).expiry == 0
    clock.now += 61
    assert cluster.expire_due() == 1
    cluster.set(b"k", b"1", collection=number)
    cluster.drop_collection("", "a")
    clock.now += 61
    assert cluster.expire_due() == 0


def test_the_manifest_is_told(cluster: ProducerCluster, connect: Connect) -> None:
    cluster.create_scope("s")
    cluster.create_collection("s", "a", max_ttl=30)
    client = connect(cluster).log_in()
    answer = client.call(m.Empty(), Opcode.GET_COLLECTIONS_MANIFEST)
    assert answer.value == cluster.manifest.as_json()
    assert client.ok(m.GetId(b"s.a"), Opcode.GET_COLLECTION_ID) == m.IdAnswer(2, 8)
    for path in (b"s", b"s."):
        assert client.ok(m.GetId(path), Opcode.GET_SCOPE_ID) == m.IdAnswer(2, 8)
    assert client.ok(m.GetId(b""), Opcode.GET_SCOPE_ID) == m.IdAnswer(2, 0)
    for opcode, path, status in (
        (Opcode.GET_COLLECTION_ID, b"s.b", Status.UNKNOWN_COLLECTION),
        (Opcode.GET_COLLECTION_ID, b"t.a", Status.UNKNOWN_SCOPE),
        (Opcode.GET_COLLECTION_ID, b"a", Status.EINVAL),
        (Opcode.GET_COLLECTION_ID, b"s.a.b", Status.EINVAL),
        (Opcode.GET_SCOPE_ID, b"t", Status.UNKNOWN_SCOPE),
    ):
        refused = client.call(m.GetId(path), opcode)
        assert refused.status == status
        assert status is Status.EINVAL or refused.value == UNKNOWN % 2


def test_high_seqnos_by_collection_as_recorded(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    """07-failover-log-and-seqnos.jsonl: vbuckets 0 and 1 active, 2 replica, c8 made of late."""
    cluster = make_cluster(vbuckets=3)
    keys = [[key for n in range(99) if cluster.vbucket_of(key := b"%d" % n) == v] for v in (0, 1)]
    for key in keys[0][:5]:
        cluster.set(key, b"1")
    cluster.set(keys[1][0], b"1")
    cluster.set_vbucket_state(2, VbucketState.REPLICA)
    cluster.create_collection("", "c8")
    cluster.set(keys[1][0], b"1", collection=8)
    plain, client = connect(cluster).log_in(PLAIN_FEATURES), connect(cluster).log_in()
    seqnos = {
        (client, None, None): ((0, 6), (1, 3), (2, 0)),
        (client, 1, 0): ((0, 5), (1, 1)),
        (client, 1, 8): ((0, 6), (1, 3)),
        (client, 0, 8): ((0, 6), (1, 3)),  # the replica was not told of it
        (plain, None, None): ((0, 5), (1, 1), (2, 0)),
        (plain, 1, 0): ((0, 5), (1, 1)),
        (plain, 1, 8): ((0, 5), (1, 1)),
    }
    for (asking, state, collection), expected in seqnos.items():
        question = m.GetAllVbSeqnos(state, collection)
        assert asking.ok(question, Opcode.GET_ALL_VB_SEQNOS) == m.AllVbSeqnos(expected)
    unknown = client.call(m.GetAllVbSeqnos(1, 9), Opcode.GET_ALL_VB_SEQNOS)
    assert (unknown.status, unknown.value) == (Status.UNKNOWN_COLLECTION, UNKNOWN % 1)


def test_items_of_another_server_bring_their_collections(
    cluster: ProducerCluster, connect: Connect
) -> None:
    """A vbucket that is set up stands where its events say; the bucket learns from the newest."""

    def document(seqno: int, collection: int) -> Version:
        key, content = b"k%d" % seqno, Content(b"1")
        return Version(0, key, content, seqno=seqno, rev=1, cas=seqno, collection=collection)

    log = FailoverLog((FailoverEntry(7, 0),))
    begun = Version.of_event(0, CollectionBegun(1, 0, 8, b"c8"), seqno=1)
    cluster.set_up_vbucket(0, VbucketFacts(log, 2), [begun, document(2, 8)])
    assert cluster.manifest.at(".c8").id == 8
    dropped = Version.of_event(0, CollectionEnded(3, 0, 8), seqno=4)
    new = Version.of_event(0, CollectionBegun(2, 0, 9, b"c9"), seqno=3)
    cluster.take_versions(0, [new, dropped, document(5, 9)])
    assert cluster.high_seqno(0) == 5
    client = connect(cluster).log_in()
    assert client.call(m.Empty(), Opcode.GET_COLLECTIONS_MANIFEST).value == (
        b'{"scopes":[{"collections":[{"name":"_default","uid":"0"},{"name":"c9","uid":"9"}],'
        b'"name":"_default","uid":"0"}],"uid":"3"}'
    )
    shown = _items_to(_stream(client, b'{"collections":["9"]}'), 5)
    assert shown == [(3, CollectionBegun(2, 0, 9, b"c9")), (5, b"\x09k5")]
    cluster.set_up_vbucket(0, VbucketFacts(log, 3))
    assert cluster.high_seqno(0) == 3  # nothing but what is given, though it lacks the events


def test_seqnos_of_another_server_may_be_left_out(
    cluster: ProducerCluster, connect: Connect
) -> None:
    """What was there is nobody's to see: it costs nothing, however much it was."""
    log = FailoverLog((FailoverEntry(7, 0),))
    first, second, third = (
        Version(0, b"k%d" % seqno, Content(b"1"), seqno=seqno, rev=1, cas=seqno)
        for seqno in (10**12, 2 * 10**12, 3 * 10**12)
    )
    cluster.set_up_vbucket(0, VbucketFacts(log, second.seqno), [first, second])
    client = _stream(connect(cluster).log_in(), b"")
    cluster.take_versions(0, [third])
    shown = _items_to(client, third.seqno)
    assert [seqno for seqno, _ in shown] == [first.seqno, second.seqno, third.seqno]
    with pytest.raises(LocalProtocolError, match=f"found seqno {second.seqno}, expected"):
        cluster.take_versions(0, [second])
    with pytest.raises(LocalProtocolError, match="expected it at the high seqno 5"):
        cluster.set_up_vbucket(0, VbucketFacts(log, 5), [first])


def test_a_vbucket_that_becomes_active_is_told(cluster: ProducerCluster) -> None:
    cluster.set_vbucket_state(0, VbucketState.REPLICA)
    cluster.create_collection("", "a")
    assert cluster.high_seqno(0) == 0
    cluster.set_vbucket_state(0, VbucketState.ACTIVE)
    assert cluster.high_seqno(0) == 1
    assert cluster.set(b"k", b"1", collection=8).seqno == 2


@pytest.mark.parametrize("lost", range(8))
def test_a_crash_loses_events_and_they_are_told_again(
    make_cluster: Callable[..., ProducerCluster], connect: Connect, lost: int
) -> None:
    """At whichever seqno it cuts: then all is as the manifest says, and the record is exact."""
    cluster = make_cluster(vbuckets=1)
    old = cluster.failover_log(0).current_uuid
    cluster.change_manifest(CreateScope("s"), CreateCollection("s", "a"))
    cluster.set(b"k", b"1", collection="s.a")
    cluster.set(b"k", b"1")
    cluster.flush_collection("s", "a")
    cluster.set(b"k", b"2", collection="s.a")
    cluster.create_collection("", "b")
    before = [cluster.state_at(0, at, collection=8) for at in range(8)]
    cluster.crash_restart(0, lost)
    left = 7 - lost
    told_again = {7: 0, 6: 1, 5: 1, 4: 2, 3: 2, 2: 2, 1: 2, 0: 3}[left]
    assert cluster.high_seqno(0) == left + told_again
    kept = before[left] if left >= 5 else {}
    assert cluster.state_at(0, cluster.high_seqno(0), collection=8) == kept
    assert [cluster.state_at(0, at, old, collection=8) for at in range(8)] == before
    stream = _stream(connect(cluster).log_in())
    events = {shown for _, shown in _items_to(stream, cluster.high_seqno(0))}
    assert {type(event) for event in events} >= {ScopeCreated, CollectionBegun}
    highs = cluster.bucket.vbuckets[0].documents.collections
    assert highs.manifest == cluster.manifest
    assert cluster.set(b"l", b"1", collection="_default.b").seqno == left + told_again + 1


steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from([0, 8, 9]), st.sampled_from([b"k", b"l"])),
        st.tuples(st.just("delete"), st.sampled_from([0, 8, 9]), st.sampled_from([b"k", b"l"])),
        st.tuples(st.just("flush"), st.sampled_from([0, 8, 9]), st.just(b"")),
        st.tuples(st.just("drop"), st.sampled_from([8, 9]), st.just(b"")),
        st.tuples(st.just("crash"), st.integers(0, 4), st.just(b"")),
    ),
    max_size=25,
)


@example(
    [("crash", 2, b""), ("drop", 8, b""), ("drop", 9, b""), ("set", 0, b"k"), ("crash", 4, b"")]
)
@settings(max_examples=40)
@given(steps)
def test_what_collections_hold_follows_a_naive_model(writes: list[tuple[str, int, bytes]]) -> None:
    """The record and the history, at every seqno, over flushes, drops and forks."""
    cluster = ProducerCluster(ClusterSettings(vbuckets=1, seed=1))
    for name in ("a", "b"):  # each a disk snapshot of its own
        cluster.create_collection("", name)
    names = {0: "_default", 8: "a", 9: "b"}
    held: list[dict[int, dict[bytes, int]]] = [{0: {}, 8: {}, 9: {}} for _ in range(3)]
    ends = [0, 1, 2]  # of the disk snapshots, which a crash keeps or loses whole
    for what, number, key in writes:
        now = {each: dict(documents) for each, documents in held[-1].items()}
        dropped = what != "crash" and number not in cluster.manifest.collections
        if what == "crash":
            cluster.crash_restart(0, number)
            ends = [end for end in ends if end <= max(0, len(held) - 1 - number)]
            held = held[: ends[-1] + 1]
            base = held[-1]
            for _ in range(cluster.high_seqno(0) + 1 - len(held)):
                held.append(base)
            if len(held) - 1 > ends[-1]:  # what was told again is one disk snapshot
                ends.append(len(held) - 1)
            _forget_told_again(cluster, held)
            continue
        if dropped or (what == "delete" and key not in now[number]):
            continue
        if what == "set":
            now[number][key] = cluster.set(key, b"1", collection=number).seqno
        elif what == "delete":
            cluster.delete(key, collection=number)
            del now[number][key]
        else:
            act = cluster.flush_collection if what == "flush" else cluster.drop_collection
            act("", names[number])
            now[number] = {}
        ends.append(len(held))
        held.append(now)
    assert cluster.high_seqno(0) == len(held) - 1
    for at, expected in enumerate(held):
        for number, documents in expected.items():
            found = cluster.state_at(0, at, collection=number)
            assert {key: document.seqno for key, document in found.items()} == documents
    newest = cluster.bucket.vbuckets[0].data.newest.versions
    existing = {(v.collection, v.key): v.seqno for v in newest if v.is_mutation}
    assert existing == {(n, key): s for n, keys in held[-1].items() for key, s in keys.items()}


def _forget_told_again(cluster: ProducerCluster, held: list[dict[int, dict[bytes, int]]]) -> None:
    """What an event that was told again empties, in the order of the events of the new branch."""
    newest = cluster.bucket.vbuckets[0].data.newest.versions
    for version in sorted(newest, key=lambda each: each.seqno):
        emptied = version.emptied_collection
        if emptied is None:
            continue
        for at in range(version.seqno, len(held)):
            kept = {key: s for key, s in held[at][emptied].items() if s > version.seqno}
            held[at] = {**held[at], emptied: kept}


def test_wire_keys_are_the_canonical_ones(cluster: ProducerCluster, connect: Connect) -> None:
    """The collection ids and encodings of kv_engine's ``docs/Collections.md``."""
    ids = [0x7F, 0x80, 0x555, 0x7FFF, 0xBFFF, 0xFFFF, 0x8000, 0x5555, 0xCAFEF00, 0xCAFEF00D]
    cluster.change_manifest(*(CreateCollection("", f"c{n}", id=n) for n in ids))
    for number in ids:
        cluster.set(b"k", b"1", collection=number)
    stream = _stream(connect(cluster).log_in())
    shown = _items_to(stream, 2 * len(ids))[len(ids) :]
    assert [key for _, key in shown] == [encode_leb128(number) + b"k" for number in ids]


def test_a_refused_change_changes_nothing(cluster: ProducerCluster) -> None:
    with pytest.raises(RefusedError, match="scope: found 't'"):
        cluster.change_manifest(CreateScope("s"), CreateCollection("t", "a"))
    assert (cluster.manifest.uid, cluster.high_seqno(0)) == (0, 0)

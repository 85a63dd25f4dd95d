"""KV writes with a durability level: over real sockets, and their life against a naive model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.document_writer import DocumentWriter, checked
from dcp.producer.writes.sync_writes import (
    NEXT,
    NodeProgress,
    SyncWrites,
    WriteEvent,
    WriteState,
    is_possible,
)
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.server.vbucket import request_framing
from dcp.server.vbucket.request_framing import (
    DurabilityLevel,
    DurabilityRequirement,
    requirement_of,
)
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.frame_info import FrameInfo, decode_frame_infos
from dcp.wire.vocabulary import HelloFeature, Magic, Opcode, Status, VbucketState
from tests.producer.compared_replicas import assert_replicas_are_equal
from tests.producer.conftest import Clock
from tests.producer.durable_requests import FEATURES, MAJORITY, durability
from tests.producer.raw_client import PLAIN_FEATURES, RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
LEVELS = tuple(DurabilityLevel)
MEMORY, FIRST_MEMORY = 1, 5


SHORTLY = durability(1, 100)


def _send(client: RawClient, opaque: int, body: m.Body, opcode: Opcode, infos: bytes) -> None:
    magic = Magic.ALT_REQUEST if infos else Magic.REQUEST
    client.send(encode(body, opcode, magic=magic, opaque=opaque, framing_extras=infos))


def _set(client: RawClient, key: bytes, value: bytes, infos: bytes = b"") -> Frame:
    return client.call(m.Store(key, value), Opcode.SET, framing_extras=infos)


def _is_commit(body: m.Body) -> bool:
    return isinstance(body, m.Commit)


def _items(told: list[m.Body]) -> list[m.Body]:
    return [each for each in told if not isinstance(each, m.SnapshotMarker)]


def _wait_for(cluster: ProducerCluster, seqno: int, client: RawClient) -> None:
    """Ask something again and again until the vbucket has an item at ``seqno``."""
    while cluster.high_seqno(0) < seqno:
        client.ok(m.Empty(), Opcode.NOOP)


@pytest.fixture
def pair(make_cluster: MakeCluster) -> ProducerCluster:
    """Two nodes: the one vbucket is on the first, its replica on the other."""
    return make_cluster(vbuckets=1, nodes=2, replicas=1)


@pytest.fixture
def kv(pair: ProducerCluster, connect: Connect) -> RawClient:
    return connect(pair).log_in(FEATURES)


# --- what is asked for


@pytest.mark.parametrize(
    ("opcode", "infos", "expected"),
    [
        (Opcode.SET, b"", None),
        (Opcode.GET, b"", None),
        (Opcode.SET, durability(1), DurabilityRequirement(DurabilityLevel.MAJORITY)),
        (Opcode.DELETE, durability(3), DurabilityRequirement(DurabilityLevel.PERSIST_TO_MAJORITY)),
        (
            Opcode.TOUCH,
            durability(2, 1),
            DurabilityRequirement(DurabilityLevel.MAJORITY_AND_PERSIST_ON_ACTIVE, 0.001),
        ),
        (Opcode.ADD, durability(1, 65534), DurabilityRequirement(DurabilityLevel.MAJORITY, 65.534)),
        (Opcode.REPLACE, b"\x00" + MAJORITY, DurabilityRequirement(DurabilityLevel.MAJORITY)),
        (Opcode.DCP_CLOSE_STREAM, b"\x22\x00\x01", None),
        (Opcode.SET, durability(0), Status.EINVAL),
        (Opcode.SET, durability(4), Status.DURABILITY_INVALID_LEVEL),
        (Opcode.SET, durability(1, 0), Status.DURABILITY_INVALID_LEVEL),
        (Opcode.SET, durability(1, 65535), Status.DURABILITY_INVALID_LEVEL),
        (Opcode.SET, b"\x12\x01\x01", Status.EINVAL),
        (Opcode.SET, b"\x10", Status.EINVAL),
        (Opcode.SET, b"\x13\x01", Status.EINVAL),
        (Opcode.GET, MAJORITY, Status.EINVAL),
        (Opcode.SET, b"\x50", Status.NOT_SUPPORTED),
        (Opcode.SET, b"\x41a", Status.EACCESS),
        (Opcode.SET, b"\x61R", Status.EACCESS),
        (Opcode.SET, b"\x72\x00\x01", Status.EACCESS),
        (Opcode.SET, b"\x80", Status.UNKNOWN_FRAME_INFO),
    ],
)
def test_framing_extras(
    opcode: Opcode, infos: bytes, expected: DurabilityRequirement | Status | None
) -> None:
    found: DurabilityRequirement | Status | None
    try:
        found = requirement_of(opcode, infos)
    except RefusedError as error:
        found = error.status
    assert found == expected


def test_refusals_leave_nothing_behind(pair: ProducerCluster, kv: RawClient) -> None:
    assert _set(kv, b"k", b"1", durability(4)).status == Status.DURABILITY_INVALID_LEVEL
    assert _set(kv, b"k", b"1", b"\x80").status == Status.UNKNOWN_FRAME_INFO
    get = kv.call(m.KeyOnly(b"k"), Opcode.GET, framing_extras=MAJORITY)
    assert get.status == Status.EINVAL
    missing = kv.call(m.KeyOnly(b"k"), Opcode.DELETE, framing_extras=MAJORITY)
    assert missing.status == Status.KEY_ENOENT
    assert pair.high_seqno(0) == 0


def test_framing_extras_are_read_once(
    pair: ProducerCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they ask for is handed to the command; it does not read them again."""
    read: list[bytes] = []

    def noted(data: bytes) -> Sequence[FrameInfo]:
        read.append(data)
        return decode_frame_infos(data)

    kv = connect(pair).log_in(features=FEATURES)
    monkeypatch.setattr(request_framing, "decode_frame_infos", noted)
    for infos in (MAJORITY, b""):
        assert _set(kv, b"k", b"1", infos).status == Status.SUCCESS
    assert [each for each in read if each] == [MAJORITY]


def test_framing_extras_must_have_been_granted(pair: ProducerCluster, connect: Connect) -> None:
    client = connect(pair).log_in(PLAIN_FEATURES)
    _send(client, 1, m.Store(b"k", b"1"), Opcode.SET, MAJORITY)
    assert client.is_closed()


# --- a write that is committed


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("level", LEVELS)
def test_streams_show_a_prepare_and_its_commit(
    make_cluster: MakeCluster, connect: Connect, level: DurabilityLevel, nodes: int
) -> None:
    """Where all replicas keep up each write is answered at once; other clients see documents."""
    cluster = make_cluster(vbuckets=1, nodes=nodes, replicas=nodes - 1)
    sync = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(enable_sync_writes="true")
    plain = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(b"plain")
    kv = connect(cluster).log_in((*FEATURES, HelloFeature.MUTATION_SEQNO))
    assert sync.request_stream(0).status == Status.SUCCESS
    stored = _set(kv, b"k", b"1", durability(level))
    uuid = cluster.failover_log(0).current_uuid
    assert (stored.status, decode(stored)) == (Status.SUCCESS, m.MutationAnswer(uuid, 1))
    held = kv.call(m.KeyOnly(b"k"), Opcode.GET)
    assert (held.cas, decode(held)) == (stored.cas, m.GetAnswer(0, b"1"))
    touched = kv.call(m.Touch(b"k", 60), Opcode.TOUCH, framing_extras=durability(level))
    assert touched.status == Status.SUCCESS
    gone = kv.call(m.KeyOnly(b"k"), Opcode.DELETE, framing_extras=durability(level))
    assert gone.status == Status.SUCCESS
    assert plain.request_stream(0).status == Status.SUCCESS
    until = 1_700_000_060
    told = [each for _ in range(3) for each in sync.messages_until(_is_commit)]
    assert _items(told) == [
        m.Prepare(b"k", b"1", 1, 1, 0, 0, 0, 0, 0, level),
        m.Commit(b"k", 1, 2),
        m.Prepare(b"k", b"1", 3, 2, 0, until, 0, 0, 0, level),
        m.Commit(b"k", 3, 4),
        m.Prepare(b"k", b"", 5, 3, 0, until - 60, 0, 0, 1, level),
        m.Commit(b"k", 5, 6),
    ]
    assert plain.messages_to(6)[1:] == [m.Deletion(b"k", 6, 3, b"", 0)]
    again = kv.call(m.Store(b"k", b"2", 7, 60), Opcode.ADD, framing_extras=durability(level))
    assert again.status == Status.SUCCESS
    assert _items(sync.messages_until(_is_commit)) == [
        m.Prepare(b"k", b"2", 7, 4, 7, until, 0, 0, 0, level),
        m.Commit(b"k", 7, 8),
    ]
    assert plain.messages_to(8)[-1:] == [m.Mutation(b"k", b"2", 8, 4, 7, until, cache_hint=2)]


def test_no_part_of_a_sync_write_is_replaced(
    pair: ProducerCluster, kv: RawClient, connect: Connect, clock: Clock
) -> None:
    """However often a key is written while a client does not read: its cursor is in memory."""
    dcp = connect(pair).log_in(PLAIN_FEATURES).open_dcp(enable_sync_writes="true")
    dcp.ok(m.DcpControl(b"connection_buffer_size", b"1"), Opcode.DCP_CONTROL)
    assert dcp.request_stream(0).status == Status.SUCCESS
    pair.set(b"fills the window", b"")
    assert isinstance(dcp.message(), m.SnapshotMarker)
    for value in (b"1", b"2"):
        assert _set(kv, b"k", value, MAJORITY).status == Status.SUCCESS
    assert _set(kv, b"k", b"3").status == Status.SUCCESS
    assert _set(kv, b"k", b"4").status == Status.SUCCESS
    pair.pause_replication()
    _send(kv, 9, m.Store(b"k", b"5"), Opcode.SET, SHORTLY)
    _wait_for(pair, 8, connect(pair).log_in())
    clock.now += 1
    assert kv.answer().status == Status.SYNC_WRITE_AMBIGUOUS
    dcp.ok(m.DcpControl(b"connection_buffer_size", b"0"), Opcode.DCP_CONTROL)
    assert _items(dcp.messages_until(lambda body: isinstance(body, m.Abort)))[1:] == [
        m.Prepare(b"k", b"1", 2, 1, 0, 0, 0, 0, 0, 1),
        m.Commit(b"k", 2, 3),
        m.Prepare(b"k", b"2", 4, 2, 0, 0, 0, 0, 0, 1),
        m.Commit(b"k", 4, 5),
        m.Mutation(b"k", b"4", 7, 4, cache_hint=2),
        m.Prepare(b"k", b"5", 8, 5, 0, 0, 0, 0, 0, 1),
        m.Abort(b"k", 8, 9),
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_replicas_on_other_nodes_acknowledge(
    make_cluster: MakeCluster, connect: Connect, level: DurabilityLevel
) -> None:
    """They hold what was prepared and committed byte for byte; a majority of three is two."""
    cluster = make_cluster(vbuckets=1, nodes=3, replicas=2)
    kv = connect(cluster).log_in(FEATURES)
    assert _set(kv, b"k", b"1", durability(level)).status == Status.SUCCESS
    assert _set(kv, b"j", b"1", durability(level)).status == Status.SUCCESS
    gone = kv.call(m.KeyOnly(b"k"), Opcode.DELETE, framing_extras=durability(level))
    assert gone.status == Status.SUCCESS
    assert_replicas_are_equal(cluster)
    cluster.kill_node(2)
    assert _set(kv, b"k", b"2", durability(level)).status == Status.SUCCESS
    cluster.pause_replication()
    _send(kv, 7, m.Store(b"l", b"1"), Opcode.SET, durability(level))
    other = connect(cluster).log_in(FEATURES)
    _wait_for(cluster, 9, other)
    held = other.call(m.KeyOnly(b"l"), Opcode.GET)
    assert held.status == Status.KEY_ENOENT
    cluster.resume_replication()
    assert kv.answer().status == Status.SUCCESS


def test_a_replica_commits_what_it_was_told_of(make_cluster: MakeCluster, connect: Connect) -> None:
    """The active is lost between a prepare and its commit; another replica must be there first."""
    cluster = make_cluster(vbuckets=1, nodes=3, replicas=1)
    prepare = Content(b"1", opcode=Opcode.DCP_PREPARE, sync=SyncWrite(level=1))
    cluster.take_versions(0, [Version(0, b"k", prepare, seqno=1, rev=1, cas=1)])
    cluster.wait_until_replicated()
    cluster.failover(0)
    kv = connect(cluster, cluster.vbucket_owner(0)).log_in(FEATURES)
    held = kv.call(m.KeyOnly(b"k"), Opcode.GET)
    assert held.status == Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS
    cluster.rebalance()
    _wait_for(cluster, 2, kv)
    held = kv.call(m.KeyOnly(b"k"), Opcode.GET)
    assert (held.cas, decode(held)) == (1, m.GetAnswer(0, b"1"))
    assert_replicas_are_equal(cluster)


def test_a_write_waits_for_its_replica(
    pair: ProducerCluster, kv: RawClient, connect: Connect
) -> None:
    """Until then all read what was there before, and nobody else writes to that key."""
    before = _set(kv, b"k", b"old")
    pair.pause_replication()
    _send(kv, 7, m.Store(b"k", b"new"), Opcode.SET, MAJORITY)
    other = connect(pair).log_in(FEATURES)
    _wait_for(pair, 2, other)
    held = other.call(m.KeyOnly(b"k"), Opcode.GET)
    assert (held.cas, decode(held)) == (before.cas, m.GetAnswer(0, b"old"))
    tried: list[tuple[m.Body, Opcode, Status]] = [
        (m.Store(b"k", b"x"), Opcode.SET, Status.SYNC_WRITE_IN_PROGRESS),
        (m.Store(b"k", b"x"), Opcode.ADD, Status.SYNC_WRITE_IN_PROGRESS),
        (m.Store(b"k", b"x"), Opcode.REPLACE, Status.SYNC_WRITE_IN_PROGRESS),
        (m.KeyOnly(b"k"), Opcode.DELETE, Status.SYNC_WRITE_IN_PROGRESS),
        (m.Touch(b"k", 9), Opcode.TOUCH, Status.SYNC_WRITE_IN_PROGRESS),
        (m.Store(b"other", b"x"), Opcode.REPLACE, Status.KEY_ENOENT),
        (m.Store(b"other", b"x"), Opcode.SET, Status.SUCCESS),
    ]
    for body, opcode, status in tried:
        assert other.call(body, opcode).status == status
    assert _set(other, b"k", b"x", MAJORITY).status == Status.SYNC_WRITE_IN_PROGRESS
    assert (
        other.call(m.Store(b"k", b"x"), Opcode.SET, cas=5).status == Status.SYNC_WRITE_IN_PROGRESS
    )
    pair.resume_replication()
    answer = kv.answer()
    assert (answer.opaque, answer.status) == (7, Status.SUCCESS)
    assert decode(other.call(m.KeyOnly(b"k"), Opcode.GET)) == m.GetAnswer(0, b"new")
    assert pair.high_seqno(0) == 4  # old, prepare, other, commit


def test_what_a_client_asks_meanwhile_is_answered_after_it(
    pair: ProducerCluster, kv: RawClient, connect: Connect
) -> None:
    pair.pause_replication()
    _send(kv, 1, m.Store(b"k", b"1"), Opcode.SET, MAJORITY)
    _send(kv, 2, m.KeyOnly(b"k"), Opcode.GET, b"")
    _send(kv, 3, m.Store(b"j", b"1"), Opcode.SET, MAJORITY)
    _send(kv, 4, m.Store(b"j", b"2"), Opcode.REPLACE, MAJORITY)
    _send(kv, 5, m.Empty(), Opcode.NOOP, b"")
    other = connect(pair).log_in(FEATURES)
    _wait_for(pair, 1, other)
    pair.resume_replication()
    answers = [kv.answer() for _ in range(5)]
    assert [(each.opaque, each.status) for each in answers] == [(n, 0) for n in range(1, 6)]
    assert decode(answers[1]) == m.GetAnswer(0, b"1")
    assert pair.high_seqno(0) == 6


# --- a write that is given up


def test_a_write_that_takes_too_long_is_aborted(
    pair: ProducerCluster, kv: RawClient, connect: Connect, clock: Clock
) -> None:
    dcp = connect(pair).log_in(PLAIN_FEATURES).open_dcp(enable_sync_writes="true")
    assert dcp.request_stream(0).status == Status.SUCCESS
    pair.pause_replication()
    _send(kv, 7, m.Store(b"k", b"1"), Opcode.SET, SHORTLY)
    prepare = m.Prepare(b"k", b"1", 1, 1, 0, 0, 0, 0, 0, 1)
    assert [dcp.message(), dcp.message()] == [m.SnapshotMarker(0, 1, FIRST_MEMORY), prepare]
    clock.now += 0.1
    answer = kv.answer()
    assert (answer.opaque, answer.status) == (7, Status.SYNC_WRITE_AMBIGUOUS)
    assert [dcp.message(), dcp.message()] == [
        m.SnapshotMarker(2, 2, FIRST_MEMORY),
        m.Abort(b"k", 1, 2),
    ]
    assert kv.call(m.KeyOnly(b"k"), Opcode.GET).status == Status.KEY_ENOENT
    pair.resume_replication()
    assert _set(kv, b"k", b"2", MAJORITY).status == Status.SUCCESS


def test_too_few_nodes(pair: ProducerCluster, connect: Connect) -> None:
    """Of two replicas one is gone for good: no write can be durable, a plain one can."""
    pair.failover(1)
    kv = connect(pair).log_in(FEATURES)
    assert _set(kv, b"k", b"1", MAJORITY).status == Status.DURABILITY_IMPOSSIBLE
    assert pair.high_seqno(0) == 0
    assert _set(kv, b"k", b"1").status == Status.SUCCESS


def test_a_write_that_becomes_impossible_is_aborted(
    pair: ProducerCluster, kv: RawClient, connect: Connect
) -> None:
    pair.pause_replication()
    _send(kv, 7, m.Store(b"k", b"1"), Opcode.SET, MAJORITY)
    _wait_for(pair, 1, connect(pair).log_in(FEATURES))
    pair.failover(1)
    assert kv.answer().status == Status.SYNC_WRITE_AMBIGUOUS
    assert kv.call(m.KeyOnly(b"k"), Opcode.GET).status == Status.KEY_ENOENT


@pytest.mark.parametrize("level", LEVELS)
def test_what_must_be_on_disk_waits_for_it(
    make_cluster: MakeCluster, connect: Connect, clock: Clock, level: DurabilityLevel
) -> None:
    cluster = make_cluster(vbuckets=1, unpersisted_seqnos=2)
    kv = connect(cluster).log_in(FEATURES)
    if level is DurabilityLevel.MAJORITY:
        assert _set(kv, b"k", b"1", durability(level)).status == Status.SUCCESS
        return
    _send(kv, 7, m.Store(b"k", b"1"), Opcode.SET, durability(level))
    other = connect(cluster).log_in(FEATURES)
    _wait_for(cluster, 1, other)
    for key in (b"a", b"b"):
        assert _set(other, key, b"1").status == Status.SUCCESS
    assert kv.answer().status == Status.SUCCESS
    assert cluster.high_seqno(0) == 4


def test_a_collection_that_goes_takes_its_writes_along(
    pair: ProducerCluster, connect: Connect
) -> None:
    pair.create_collection("_default", "c")
    kv = connect(pair).log_in((*FEATURES, HelloFeature.COLLECTIONS))
    pair.pause_replication()
    _send(kv, 7, m.Store(b"\x08k", b"1"), Opcode.SET, MAJORITY)
    other = connect(pair).log_in(FEATURES)
    _wait_for(pair, 2, other)
    pair.drop_collection("_default", "c")
    assert kv.answer().status == Status.SYNC_WRITE_AMBIGUOUS
    assert pair.high_seqno(0) == 3


def test_what_is_under_way_does_not_expire(
    pair: ProducerCluster, kv: RawClient, clock: Clock, connect: Connect
) -> None:
    pair.set(b"k", b"1", expiry=10)
    pair.pause_replication()
    _send(kv, 7, m.Store(b"k", b"2"), Opcode.SET, durability(1, 20_000))
    other = connect(pair).log_in(FEATURES)
    _wait_for(pair, 2, other)
    clock.now += 11
    assert other.call(m.KeyOnly(b"k"), Opcode.GET).status == Status.KEY_ENOENT
    assert pair.expire_due() == 0
    clock.now += 10
    assert kv.answer().status == Status.SYNC_WRITE_AMBIGUOUS
    assert (pair.high_seqno(0), pair.expire_due(), pair.high_seqno(0)) == (3, 1, 4)


# --- forks


def test_after_a_crash_what_may_be_visible_is_committed_again(
    pair: ProducerCluster, kv: RawClient, connect: Connect
) -> None:
    """Whoever waited cannot know; until it is committed the key is neither read nor written."""
    assert _set(kv, b"k", b"old").status == Status.SUCCESS
    pair.pause_replication()
    _send(kv, 7, m.Store(b"k", b"new"), Opcode.SET, SHORTLY)
    other = connect(pair).log_in(FEATURES)
    _wait_for(pair, 2, other)
    pair.crash_restart(0)
    again = connect(pair).log_in(FEATURES)
    held = again.call(m.KeyOnly(b"k"), Opcode.GET)
    assert held.status == Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS
    assert _set(again, b"k", b"x").status == Status.SYNC_WRITE_IN_PROGRESS
    dcp = connect(pair).log_in(PLAIN_FEATURES).open_dcp()
    assert dcp.request_stream(0, flags=0).status == Status.SUCCESS
    pair.resume_replication()
    assert dcp.messages_to(3)[-1] == m.Mutation(b"k", b"new", 3, 2, cache_hint=2)
    assert decode(again.call(m.KeyOnly(b"k"), Opcode.GET)) == m.GetAnswer(0, b"new")


def test_a_lost_prepare_is_as_if_it_never_was(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1, nodes=2, replicas=1, unpersisted_seqnos=1)
    cluster.pause_replication()
    kv, other = connect(cluster).log_in(FEATURES), connect(cluster).log_in(FEATURES)
    _send(kv, 7, m.Store(b"k", b"1"), Opcode.SET, MAJORITY)
    _wait_for(cluster, 1, other)
    cluster.crash_restart(0)
    again = connect(cluster).log_in(FEATURES)
    assert again.call(m.KeyOnly(b"k"), Opcode.GET).status == Status.KEY_ENOENT
    cluster.resume_replication()
    assert _set(again, b"k", b"2", MAJORITY).status == Status.SUCCESS


@pytest.mark.parametrize("change", ["state", "move", "set up"])
def test_who_waits_is_told_that_the_vbucket_went(
    pair: ProducerCluster, kv: RawClient, connect: Connect, change: str
) -> None:
    pair.pause_replication()
    _send(kv, 7, m.Store(b"k", b"1"), Opcode.SET, MAJORITY)
    other = connect(pair).log_in(FEATURES)
    _wait_for(pair, 1, other)
    if change == "state":
        pair.set_vbucket_state(0, VbucketState.DEAD)
    elif change == "move":
        pair.move_vbucket(0, 1)
    else:
        pair.set_up_vbucket(0, pair.bucket.vbuckets[0].facts())
    assert kv.answer().status == Status.SYNC_WRITE_AMBIGUOUS


def test_a_restart_commits_what_was_prepared(
    make_cluster: MakeCluster, connect: Connect, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    first = make_cluster(vbuckets=1, nodes=2, replicas=1, data_folder=folder)
    first.pause_replication()
    kv, other = connect(first).log_in(FEATURES), connect(first).log_in(FEATURES)
    _send(kv, 7, m.Store(b"k", b"1"), Opcode.SET, MAJORITY)
    _wait_for(first, 1, other)
    first.stop()
    again = make_cluster(vbuckets=1, nodes=2, replicas=1, data_folder=folder)
    dcp = connect(again).log_in(PLAIN_FEATURES).open_dcp()
    assert dcp.request_stream(0).status == Status.SUCCESS
    assert dcp.messages_to(2)[-1] == m.Mutation(b"k", b"1", 2, 1, cache_hint=2)


def test_a_majority_has_it_on_disk(
    make_cluster: MakeCluster, connect: Connect, tmp_path: Path
) -> None:
    """A replica in a folder acknowledges such a prepare when it is written, a little later."""
    cluster = make_cluster(nodes=2, vbuckets=1, replicas=1, data_folder=tmp_path / "data")
    kv = connect(cluster).log_in(FEATURES)
    _send(kv, 7, m.Store(b"k", b"1"), Opcode.SET, durability(3))
    assert kv.answer().status == Status.SUCCESS
    replica = cluster.bucket.replicas.at(1, 0)
    assert replica is not None
    assert replica.vbucket.data.disk.persisted_seqno >= 1


# --- the life of a write


def test_every_state_has_its_events() -> None:
    """What ended goes no further, and what may be visible is never aborted."""
    ended = {WriteState.COMMITTED, WriteState.ABORTED, WriteState.FORGOTTEN}
    assert {state for state, _ in NEXT} == set(WriteState) - ended
    assert {event for state, event in NEXT if state is WriteState.PENDING} == set(WriteEvent)
    left = {then for (state, _), then in NEXT.items() if state is WriteState.MAYBE_VISIBLE}
    assert left == {WriteState.COMMITTED, WriteState.FORGOTTEN}


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [("a", True), ("ar", True), ("a-", False), ("arr", True), ("ar-", True), ("a--", False)],
)
def test_a_majority_of_the_replicas_must_exist(replicas: str, expected: bool) -> None:
    assert (
        is_possible([None if each == "-" else NodeProgress(0, 0) for each in replicas]) is expected
    )


@dataclass
class _Model:
    """Sync writes the naive way: for each, every replica is asked whether it has all it must."""

    pending: dict[int, tuple[bytes, int, float]] = field(default_factory=dict)
    ended: dict[int, Status] = field(default_factory=dict)

    def step(self, replicas: Sequence[NodeProgress | None], now: float) -> None:
        before = dict(self.pending)
        for seqno, (_, _, deadline) in before.items():
            has_it = [
                replica is not None and _has(replica, seqno, before, least=3 if place else 2)
                for place, replica in enumerate(replicas)
            ]
            exist = sum(replica is not None for replica in replicas)
            if has_it[0] and 2 * sum(has_it) > len(replicas):
                self._end(seqno, Status.SUCCESS)
            elif 2 * exist <= len(replicas) or now >= deadline:
                self._end(seqno, Status.SYNC_WRITE_AMBIGUOUS)

    def _end(self, seqno: int, status: Status) -> None:
        self.ended[seqno] = status
        del self.pending[seqno]


def _has(
    replica: NodeProgress, seqno: int, writes: dict[int, tuple[bytes, int, float]], *, least: int
) -> bool:
    """Whether a replica has a prepare and, of it and all before it, what it must persist."""
    needed = [s for s, (_, level, _) in writes.items() if s <= seqno and level >= least]
    return seqno <= replica.memory_seqno and all(s <= replica.persisted_seqno for s in needed)


NODES = st.one_of(st.none(), st.tuples(st.integers(0, 30), st.integers(0, 30)))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from([b"a", b"b", b"c"]), st.integers(1, 3)),
        st.tuples(st.just("step"), st.lists(NODES, max_size=2), st.integers(0, 30)),
    ),
    max_size=15,
)


@given(STEPS)
def test_sync_writes_follow_a_naive_model(
    steps: list[tuple[str, bytes | list[tuple[int, int] | None], int]],
) -> None:
    """Committed, aborted and refused are the same ones, and each prepare is completed once."""
    vbucket = Vbucket(0, lambda: 1, ClusterSettings(vbuckets=1))
    documents = DocumentWriter(vbucket.documents)
    writes = SyncWrites(documents)
    model, told, now = _Model(), dict[int, Status](), 0.0
    appended: list[Version] = []
    vbucket.data.on_append.add(appended.append)
    for _, what, number in steps:
        if isinstance(what, bytes):
            key, level = what, number
            is_free = all(pending != key for pending, _, _ in model.pending.values())
            try:
                prepare = documents.store(key, checked(b"1"), now, level=level)
            except RefusedError as error:
                assert (error.status, is_free) == (Status.SYNC_WRITE_IN_PROGRESS, False)
                continue
            assert is_free
            writes.track(prepare, now + 2.0, partial(told.__setitem__, prepare.seqno))
            model.pending[prepare.seqno] = key, level, now + 2.0
        else:
            now += 1.0
            high = vbucket.data.high_seqno
            active = NodeProgress(high, number)
            replicas = [None if c is None else NodeProgress(*sorted(c, reverse=True)) for c in what]
            chain = [active, *replicas]
            for answer, status in writes.step(chain, now):
                answer(status)
            model.step(chain, now)
            vbucket.data.flush_batch()
    assert told == model.ended
    completed = [
        (v.sync.prepared_seqno, Status.SUCCESS if v.is_document else Status.SYNC_WRITE_AMBIGUOUS)
        for v in appended
        if v.sync is not None and v.sync.prepared_seqno
    ]
    assert dict(completed) == model.ended
    assert len(completed) == len(model.ended)
    assert writes.is_pending is bool(model.pending)


def test_what_may_be_visible_has_no_deadline() -> None:
    vbucket = Vbucket(0, lambda: 1, ClusterSettings(vbuckets=1))
    writer = DocumentWriter(vbucket.documents)
    writer.store(b"k", checked(b"1"), 0.0, level=1)
    writes = SyncWrites(writer)
    writes.recover(writer, commits_prepares=True)
    missing: tuple[NodeProgress | None, ...] = (NodeProgress(1, 1), None)
    assert writes.step(missing, inf) == []
    assert vbucket.data.high_seqno == 1
    assert writes.step((NodeProgress(1, 1),), 0.0) == []
    assert vbucket.documents.get(b"k", 0.0).seqno == 2

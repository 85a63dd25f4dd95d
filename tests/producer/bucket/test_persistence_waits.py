"""SEQNO_PERSISTENCE over real sockets: clients wait until a seqno is on disk, each for a while."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import Opcode, Status
from tests.producer.conftest import Clock
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
WAIT_SECONDS = 30.0


@pytest.fixture
def lagging(make_cluster: MakeCluster) -> ProducerCluster:
    """Two nodes, the one vbucket on the first: the newest of its seqnos is never on disk."""
    return make_cluster(
        vbuckets=1, nodes=2, unpersisted_seqnos=1, persistence_wait_seconds=WAIT_SECONDS
    )


def _ask(client: RawClient, cluster: ProducerCluster, seqno: int) -> None:
    """Send the question, and return when the client waits for its answer."""
    waiting = _waiting(cluster)
    client.send(encode(m.SeqnoPersistence(seqno), Opcode.SEQNO_PERSISTENCE, opaque=seqno))
    with RawClient(cluster.seeds[0]) as other:
        other.log_in()
        while _waiting(cluster) == waiting:
            other.ok(m.Empty(), Opcode.NOOP)


def _waiting(cluster: ProducerCluster) -> int:
    with cluster.bucket.lock:
        return len(cluster.bucket.persistence_waits._waits)


def test_a_client_waits_until_the_seqno_is_on_disk(
    lagging: ProducerCluster, connect: Connect
) -> None:
    """What it asks meanwhile is answered afterwards; who asks for less is answered at once."""
    first, second = connect(lagging).log_in(), connect(lagging).log_in()
    lagging.set(b"a", b"1")
    lagging.set(b"b", b"1")
    assert first.call(m.SeqnoPersistence(1), Opcode.SEQNO_PERSISTENCE).status == Status.SUCCESS
    _ask(first, lagging, 2)
    first.send(encode(m.Empty(), Opcode.NOOP, opaque=99))
    _ask(second, lagging, 3)
    lagging.set(b"c", b"1")
    told = [first.answer(), first.answer()]
    assert [(each.opaque, each.status) for each in told] == [(2, 0), (99, 0)]
    lagging.set(b"d", b"1")
    answer = second.answer()
    assert (answer.opaque, answer.status, _waiting(lagging)) == (3, Status.SUCCESS, 0)


def test_the_flusher_ends_a_wait(
    make_cluster: MakeCluster, connect: Connect, tmp_path: Path
) -> None:
    cluster = make_cluster(
        vbuckets=1,
        data_folder=tmp_path / "data",
        flush_seconds=0.001,
        persistence_wait_seconds=WAIT_SECONDS,
    )
    client = connect(cluster).log_in()
    _ask(client, cluster, 1)
    cluster.set(b"a", b"1")
    assert client.answer().status == Status.SUCCESS
    assert cluster.persisted_seqno(0) == 1


def test_nobody_waits_for_ever(lagging: ProducerCluster, connect: Connect, clock: Clock) -> None:
    first, second = connect(lagging).log_in(), connect(lagging).log_in()
    _ask(first, lagging, 1)
    clock.now += 1
    _ask(second, lagging, 1)
    clock.now += WAIT_SECONDS - 1
    assert first.answer().status == Status.ETMPFAIL
    assert _waiting(lagging) == 1
    clock.now += 1
    assert second.answer().status == Status.ETMPFAIL


def test_a_vbucket_that_leaves_ends_the_wait(lagging: ProducerCluster, connect: Connect) -> None:
    client = connect(lagging).log_in()
    _ask(client, lagging, 1)
    lagging.move_vbucket(0, 1)
    assert client.answer().status == Status.ETMPFAIL
    gone = client.call(m.SeqnoPersistence(1), Opcode.SEQNO_PERSISTENCE)
    assert gone.status == Status.NOT_MY_VBUCKET


def test_a_wait_ends_with_its_connection(lagging: ProducerCluster, connect: Connect) -> None:
    client = connect(lagging).log_in()
    _ask(client, lagging, 1)
    lagging.drop_connections()
    assert client.is_closed()
    with RawClient(lagging.seeds[0]) as other:
        other.log_in()
        while _waiting(lagging):
            other.ok(m.Empty(), Opcode.NOOP)

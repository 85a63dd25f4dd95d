"""A cluster that stops: clients get what they were sent, and nobody can hold it up."""

import socket
from collections.abc import Callable
from itertools import repeat
from threading import Thread

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import Opcode, Status
from tests.producer.raw_client import RawClient
from tests.producer.tls import TLS_FILES, client_context

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]

LARGE = 1_000_000
STREAM = encode(m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0), Opcode.DCP_STREAM_REQ)


@pytest.mark.parametrize("tls", [False, True])
def test_what_was_sent_arrives_whole(make_cluster: MakeCluster, tls: bool) -> None:
    """Also where the client has said more, unheard, which would else reset the connection."""
    cluster = make_cluster(vbuckets=1, tls=TLS_FILES, last_words_seconds=10.0)
    for number in range(30):
        cluster.set(b"k%d" % number, b"x" * LARGE)
    seed = (cluster.tls_seeds if tls else cluster.seeds)[0]
    with RawClient(seed, tls=client_context() if tls else None) as client:
        client.log_in().open_dcp()
        client.send(STREAM)
        client.stream_frame()  # it is under way
        client.send(*repeat(encode(m.BufferAck(1), Opcode.DCP_BUFFER_ACK), 1000))
        stopping = Thread(target=cluster.stop)
        stopping.start()
        received = len(client.frames_to_the_end())
        stopping.join()
    assert 0 < received < 30


def test_answers_that_are_owed_arrive(make_cluster: MakeCluster, connect: Connect) -> None:
    """Whatever was done is answered, what was not read is not done."""
    cluster = make_cluster(vbuckets=1)
    client = connect(cluster).log_in()
    sets = (encode(m.Store(b"\0k%d" % n, b"1"), Opcode.SET, opaque=n) for n in range(101))
    client.send(*sets)
    assert client.answer().opaque == 0
    cluster.stop()
    opaques = [frame.opaque for frame in client.frames_to_the_end()]
    assert opaques == list(range(1, cluster.high_seqno(0)))


def test_clients_that_are_stuck_do_not_hold_it_up(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    """Stuck in a stream, in answers, in a handshake of TLS, in silence; and one that reads."""
    cluster = make_cluster(vbuckets=1, tls=TLS_FILES, last_words_seconds=0.2)
    for number in range(20):
        cluster.set(b"k%d" % number, b"x" * LARGE)
    streaming = connect(cluster).log_in().open_dcp(name=b"streaming")
    streaming.send(STREAM)
    greedy = connect(cluster).log_in()
    greedy.send(*repeat(encode(m.KeyOnly(b"\0k1"), Opcode.GET), 100))
    host, port = cluster.tls_seeds[0].split(":")
    connect(cluster)
    good = connect(cluster).log_in().open_dcp(name=b"good")
    good.request_stream(0)
    good.messages_to(20)
    with socket.create_connection((host, int(port)), 10.0):
        cluster.stop()
    assert good.is_closed()
    assert cluster.counters().connections == {}


def test_a_stopped_cluster_goes_on_where_it_was(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=1)
    cluster.set(b"a", b"1")
    client = connect(cluster).log_in().open_dcp()
    client.request_stream(0)
    client.messages_to(1)
    cluster.stop()
    assert client.is_closed()
    cluster.start()
    cluster.set(b"b", b"1")
    uuid = cluster.failover_log(0).current_uuid
    again = connect(cluster).log_in().open_dcp()
    assert again.request_stream(0, 1, vb_uuid=uuid).status == Status.SUCCESS
    again.messages_to(2)


@pytest.mark.parametrize("was_stopped", [False, True])
def test_what_was_written_while_it_did_not_run_wakes_streams(was_stopped: bool) -> None:
    """And so does what comes after it: nobody waits for changes that were told before the start."""
    cluster = ProducerCluster(ClusterSettings(vbuckets=1))
    if was_stopped:
        with cluster:
            pass
    cluster.set(b"before", b"1")
    with cluster, RawClient(cluster.seeds[0]) as client:
        client.log_in().open_dcp().request_stream(0)
        client.messages_to(1)
        cluster.set(b"after", b"1")
        client.messages_to(2)

"""Consumers of a relay that break the protocol, flood, or never read: they harm only themselves.

A relay's server is the producer's, and so are its tests (``test_hostile_clients.py``); here is what
comes to what a relay does itself: requests of streams, controls, acknowledgements. While each goes
on, another consumer streams everything, in order; and what the relay keeps for the hostile one
stays bounded.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from threading import Event, Thread

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.relay.thread import Relay
from dcp.server.bucket.client_load import LARGEST_BATCH_BYTES
from dcp.server.model.server_settings import OUTBOX_BYTES
from dcp.types import U32_MAX
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.producer.hostile_clients import (
    CLOSING,
    EVERYTHING,
    GARBAGE,
    MANY,
    another_reads_on,
    requests,
    send_garbage,
    send_until_stuck,
)
from tests.producer.raw_client import RawClient
from tests.relay.following import wait_until_level

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]
Connect = Callable[[], RawClient]
MEGABYTE = 1_000_000


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(vbuckets=1)


@pytest.fixture
def relay(cluster: ProducerCluster, make_relay: MakeRelay) -> Relay:
    return make_relay(cluster)


@pytest.fixture
def connect(relay: Relay) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(RawClient(relay.seeds[0]))


@pytest.fixture
def good(cluster: ProducerCluster, relay: Relay) -> Iterator[None]:
    with another_reads_on(cluster, relay.seeds[0]):
        yield


@pytest.mark.parametrize("garbage", GARBAGE[::2])
def test_garbage(
    relay: Relay,
    connect: Connect,
    good: None,
    caplog: pytest.LogCaptureFixture,
    garbage: Callable[[Random], bytes],
) -> None:
    send_garbage(connect, garbage, "streaming")
    counters = relay.bucket.counters
    if garbage in CLOSING["streaming"]:
        assert counters.connections_closed_for_errors == 20
    assert counters.peak_outbox_bytes <= OUTBOX_BYTES
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("window", [0, 1, 100_000, 2**31])
def test_a_stream_that_nobody_reads(
    cluster: ProducerCluster, relay: Relay, connect: Connect, good: None, window: int
) -> None:
    greedy = connect().log_in().open_dcp(name=b"bad", window=window)
    send_until_stuck(greedy, iter(requests(EVERYTHING, Opcode.DCP_STREAM_REQ, 1, 1)))
    for number in range(20):
        cluster.set(b"large-%d" % number, b"x" * MEGABYTE)
    wait_until_level(cluster, relay)
    both = 2  # consumers: the good one may be about to get a large document too
    assert relay.bucket.clients.unsent_bytes <= both * (LARGEST_BATCH_BYTES + MEGABYTE + 100)


def test_a_flood_of_stream_requests_also_for_vbuckets_that_are_none(
    relay: Relay, connect: Connect, good: None
) -> None:
    dcp = connect().log_in().open_dcp(name=b"bad")
    numbers = [0, 1, 65_535]
    sent = [encode(EVERYTHING, 0x53, opaque=n, vbucket=numbers[n % 3]) for n in range(MANY)]
    dcp.send(*sent)
    answers = [dcp.answer() for _ in range(MANY)]
    assert [answer.opaque for answer in answers] == list(range(MANY))
    assert {answer.status for answer in answers[1::3]} == {Status.NOT_MY_VBUCKET}
    assert {answer.status for answer in answers[2::3]} == {Status.NOT_MY_VBUCKET}
    assert answers[0].status == Status.SUCCESS
    assert {answer.status for answer in answers[3::3]} == {Status.KEY_EEXISTS}


@pytest.mark.parametrize(("acked", "opaque"), [(0, 0), (U32_MAX, 0x0BAD)])
def test_an_endless_stream_of_acks(
    relay: Relay, connect: Connect, good: None, acked: int, opaque: int
) -> None:
    """More than was sent, and for streams that are none: the window is what it was."""
    dcp = connect().log_in().open_dcp(name=b"bad", window=10_000)
    dcp.request_stream(0)
    ack = Frame(
        Magic.REQUEST, Opcode.DCP_BUFFER_ACK, extras=acked.to_bytes(4), opaque=opaque
    ).to_bytes()
    enough = Event()

    def flood() -> None:
        while not enough.is_set():
            send_until_stuck(dcp, iter([ack * 10_000]))

    thread = Thread(target=flood)
    thread.start()
    try:
        other = connect().log_in()
        while relay.bucket.counters.buffer_acks < 30_000:
            other.ok(m.Empty(), Opcode.NOOP)
    finally:
        enough.set()
        thread.join()
    assert relay.bucket.counters.peak_outbox_bytes <= OUTBOX_BYTES + 100

"""Bytes held for clients that do not read: per connection, over all, and after they are gone."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.bucket import ProducerBucket
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.commands import COMMANDS
from dcp.producer.writes.document_writer import DocumentWriter, checked
from dcp.server.bucket.client_load import FIRST_BATCH_BYTES, LARGEST_BATCH_BYTES, ClientLoad
from dcp.server.commands.session import Session
from dcp.server.model.versions import Version
from dcp.server.node.accepted_connection import AcceptedConnection
from dcp.server.node.turns import Turns
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import Opcode
from tests.producer.raw_client import RawClient
from tests.producer.scripted_channel import ScriptedChannel, always_awake

Connect = Callable[..., RawClient]

SYSTEM_BYTES = 1_000_000
"""What the system takes for a client that reads nothing."""
DOCUMENTS = 5_000
VALUE = b"x" * 1_000
MESSAGE_BYTES = len(VALUE) + 100


def stream_everything(name: bytes) -> bytes:
    """What a client says to get all that there is, without a window."""
    request = m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0)
    frames = (
        encode(m.Sasl(b"PLAIN", b"\0Administrator\0password"), Opcode.SASL_AUTH),
        encode(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET),
        encode(m.DcpOpen(name, 1), Opcode.DCP_OPEN),
        encode(request, Opcode.DCP_STREAM_REQ),
    )
    return b"".join(frame.to_bytes() for frame in frames)


class SlowChannel(ScriptedChannel):
    """A client that reads so many bytes and no more; what it does not read fills the system."""

    def __init__(self, said: bytes, reads_bytes: int) -> None:
        super().__init__(said)
        self._reads_bytes = reads_bytes
        self._sent_bytes = 0
        self.batches: list[int] = []
        self.is_stuck = asyncio.Event()

    @property
    def drained_bytes(self) -> int:
        return min(self._sent_bytes, self._reads_bytes)

    async def send(self, data: bytes | bytearray) -> None:
        self.batches.append(len(data))
        if self._sent_bytes + len(data) > self._reads_bytes + SYSTEM_BYTES:
            self.is_stuck.set()
            await asyncio.Event().wait()
        self._sent_bytes += len(data)
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Silent:
    """What was found when all clients were stuck, and when they were gone."""

    batches: list[list[int]]
    total_bytes: int
    left_bytes: int


def _set(key: bytes, documents: DocumentWriter) -> Version:
    return documents.store(key, checked(VALUE), 0.0)


@pytest.fixture(scope="module")
def bucket() -> ProducerBucket:
    """One that no test writes to."""
    bucket = ProducerBucket(ClusterSettings(vbuckets=1))
    for number in range(DOCUMENTS):
        bucket.write(b"%d" % number, partial(_set, b"%d" % number))
    return bucket


def silent_clients(bucket: ProducerBucket, count: int, reads_bytes: int) -> Silent:
    async def serve() -> Silent:
        channels = [SlowChannel(stream_everything(b"%d" % n), reads_bytes) for n in range(count)]
        awake, turns = always_awake(), Turns()
        clients = [
            AcceptedConnection(bucket, Session(bucket, 0, COMMANDS, 0.0), channel, awake, turns)
            for channel in channels
        ]
        served = [asyncio.ensure_future(client.run()) for client in clients]
        async with asyncio.timeout(60.0):
            for channel in channels:
                await channel.is_stuck.wait()
        total_bytes = bucket.clients.unsent_bytes
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)
        for client in clients:
            client.close()
        batches = [channel.batches for channel in channels]
        return Silent(batches, total_bytes, bucket.clients.unsent_bytes)

    return asyncio.run(serve())


@pytest.mark.parametrize("reads_bytes", [0, 100_000, 1_000_000, 3_000_000])
def test_a_batch_is_as_large_as_a_part_of_what_the_client_took(
    bucket: ProducerBucket, reads_bytes: int
) -> None:
    found = silent_clients(bucket, 1, reads_bytes)
    (batches,) = found.batches
    most_bytes = min(LARGEST_BATCH_BYTES, max(FIRST_BATCH_BYTES, reads_bytes // 4))
    assert most_bytes - MESSAGE_BYTES < max(batches) <= most_bytes + MESSAGE_BYTES
    assert found.total_bytes == batches[-1]
    assert found.left_bytes == 0


def test_all_silent_clients_share_a_quota(
    bucket: ProducerBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it each has its first batch: it goes on, and no client waits for another."""
    quota_bytes = 300_000
    monkeypatch.setattr(bucket, "clients", ClientLoad(10.0, quota_bytes))
    found = silent_clients(bucket, 12, 1_000_000)
    shares = 12 * (FIRST_BATCH_BYTES + MESSAGE_BYTES)
    assert quota_bytes / 2 < found.total_bytes <= quota_bytes + shares
    assert found.left_bytes == 0


@given(
    st.integers(1, 10**6),
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 10**7), st.booleans()), max_size=60),
)
def test_what_is_unsent_is_bounded(quota_bytes: int, steps: list[tuple[int, int, bool]]) -> None:
    """Whatever clients took, and however long they then keep their batches."""
    load, held, sending = ClientLoad(10.0, quota_bytes), dict[int, int](), dict[int, ExitStack]()
    for client, drained_bytes, is_taken in steps:
        if client in held:
            if is_taken:
                del held[client]
                sending.pop(client).close()
            continue
        held[client] = load.batch_bytes(drained_bytes)
        assert FIRST_BATCH_BYTES <= held[client] <= LARGEST_BATCH_BYTES
        assert held[client] <= max(FIRST_BATCH_BYTES, drained_bytes)
        sending[client] = ExitStack()
        sending[client].enter_context(load.sending(held[client]))
        assert load.unsent_bytes == sum(held.values())
        assert load.unsent_bytes <= quota_bytes + len(held) * FIRST_BATCH_BYTES


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only what nobody refers to any more is let go of."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def open_connections() -> int:
    return sum(isinstance(each, AcceptedConnection) for each in gc.get_objects())


@pytest.mark.parametrize("is_polite", [True, False])
def test_memory_comes_back_when_silent_clients_close(
    cluster: ProducerCluster, connect: Connect, no_collector: None, is_polite: bool
) -> None:
    """At once: frames that a failed socket call leaves in a cycle would keep their batches."""
    for number in range(10):
        cluster.set(b"large-%d" % number, b"x" * 1_000_000)
    watch = connect(cluster).log_in()
    before = open_connections()
    silent = [connect(cluster).log_in().open_dcp(b"silent-%d" % n) for n in range(5)]
    for client in silent:
        assert client.request_stream(0).status == 0
    while cluster.bucket.clients.unsent_bytes < 5 * 1_000_000:
        watch.ok(m.Empty(), Opcode.NOOP)
    for client in silent:
        if is_polite:
            client.socket.shutdown(1)
        else:
            client.socket.close()
    while cluster.bucket.dcp_connections:
        watch.ok(m.Empty(), Opcode.NOOP)
    watch.ok(m.Empty(), Opcode.NOOP)
    assert cluster.bucket.clients.unsent_bytes < 1_000  # the answer to the NOOP, perhaps
    assert open_connections() == before

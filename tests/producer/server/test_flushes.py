"""How often a disk in memory is written while a client says many things at once."""

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from dcp.producer.bucket import ProducerBucket
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.commands import COMMANDS
from dcp.server.commands.session import Session
from dcp.server.node import accepted_connection
from dcp.server.node.accepted_connection import AcceptedConnection
from dcp.server.node.turns import ITERATION_FRAMES, Turns
from dcp.server.storage.disk_file import Data, MemoryFile
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import HelloFeature, Magic, Opcode
from tests.producer.durable_requests import durability
from tests.producer.scripted_channel import ScriptedChannel, always_awake

VBUCKETS = 4
WRITES = 8 * ITERATION_FRAMES
PATIENCE_SECONDS = 20.0


class AnsweredChannel(ScriptedChannel):
    """A client that waits for so many answers; ``persisted`` is what was on disk with each."""

    def __init__(self, bucket: ProducerBucket, answers: int, *said: bytes) -> None:
        super().__init__(*said)
        self._bucket, self._left = bucket, answers
        self._splitter = FrameSplitter()
        self.persisted: list[int] = []
        self.is_answered = asyncio.Event()

    async def send(self, data: bytes | bytearray) -> None:
        persisted = sum(each.data.disk.persisted_seqno for each in self._bucket.vbuckets)
        self.persisted += [persisted] * len(self._splitter.feed(bytes(data)))
        if len(self.persisted) >= self._left:
            self.is_answered.set()
        await asyncio.sleep(0)


def _set(number: int, *, framing_extras: bytes = b"") -> bytes:
    magic = Magic.ALT_REQUEST if framing_extras else Magic.REQUEST
    body = m.Store(b"key%d" % number, b"{}")
    vbucket = number % VBUCKETS
    return encode(
        body, Opcode.SET, magic=magic, vbucket=vbucket, framing_extras=framing_extras
    ).to_bytes()


def _sets(numbers: Iterable[int]) -> bytes:
    return b"".join(map(_set, numbers))


def _serve(bucket: ProducerBucket, *blocks: bytes, answers: int) -> Sequence[int]:
    """Serve a client that says blocks of requests; return the items on disk with each answer."""
    session = Session(bucket, 0, COMMANDS, 0.0)
    session.login.authenticated("Administrator")
    session.login.select_bucket(is_there=True)
    session.login.grant(frozenset({HelloFeature.ALT_REQUEST, HelloFeature.SYNC_REPLICATION}))

    async def serve() -> Sequence[int]:
        channel = AnsweredChannel(bucket, answers, *blocks)
        client = AcceptedConnection(bucket, session, channel, always_awake(), Turns())
        served = asyncio.ensure_future(client.run())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait(
                (served, asyncio.ensure_future(channel.is_answered.wait())),
                return_when=asyncio.FIRST_COMPLETED,
            )
        served.cancel()
        await asyncio.wait((served,))
        client.close()
        return channel.persisted

    return asyncio.run(serve())


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every write to a disk in memory, by its length."""
    writes: list[int] = []
    append = MemoryFile.append

    def counted(self: MemoryFile, offset: int, parts: Iterable[Data]) -> None:
        append(self, offset, parts)
        writes.append(self.size_bytes - offset)

    monkeypatch.setattr(MemoryFile, "append", counted)
    return writes


def test_writes_that_came_together_are_flushed_together(written: list[int]) -> None:
    bucket = ProducerBucket(ClusterSettings(vbuckets=VBUCKETS))
    persisted = _serve(bucket, _sets(range(WRITES)), answers=WRITES)

    assert len(written) == 2 * VBUCKETS  # each log's file is made, and written once
    assert persisted[-1] == WRITES  # whoever has the last answer finds all on disk


@pytest.mark.parametrize(("most_requests", "flushes"), [(WRITES // 4, 4), (2 * WRITES, 1)])
def test_a_client_that_goes_on_sending_is_flushed_now_and_then(
    most_requests: int, flushes: int, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepted_connection, "FLUSH_REQUESTS", most_requests)
    bucket = ProducerBucket(ClusterSettings(vbuckets=VBUCKETS))
    blocks = [
        _sets(range(first, first + ITERATION_FRAMES))
        for first in range(0, WRITES, ITERATION_FRAMES)
    ]
    persisted = _serve(bucket, *blocks, answers=WRITES)

    assert len(written) == (1 + flushes) * VBUCKETS  # each log's file is made once
    assert persisted[-1] == WRITES


def test_half_a_request_keeps_nothing_before_it_from_the_disk() -> None:
    bucket = ProducerBucket(ClusterSettings(vbuckets=VBUCKETS))
    half = _set(WRITES)[:30]
    _serve(bucket, _sets([0]), _sets(range(1, WRITES)), half, answers=WRITES)

    assert sum(each.data.disk.persisted_seqno for each in bucket.vbuckets) == WRITES


def test_each_write_of_a_flush_can_be_gone_back_to() -> None:
    bucket = ProducerBucket(ClusterSettings(vbuckets=VBUCKETS))
    numbers = [*range(WRITES), *range(WRITES)]  # every key twice
    _serve(bucket, _sets(numbers), answers=len(numbers))

    for vbucket in bucket.vbuckets:
        high = vbucket.data.high_seqno
        assert high == len(numbers) // VBUCKETS
        assert [vbucket.data.disk.batch_end_at(s) for s in range(high + 1)] == [*range(high + 1)]
        vbucket.crash(high // 4)  # a crash that loses the end of the second round
        assert vbucket.data.high_seqno == high - high // 4


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_durable_write_behind_others_has_them_flushed(level: int) -> None:
    bucket = ProducerBucket(ClusterSettings(vbuckets=VBUCKETS))
    said = _sets(range(10)) + _set(10, framing_extras=durability(level)) + _sets(range(11, 20))

    persisted = _serve(bucket, said, answers=20)

    assert persisted[-1] == 20 + 1  # a prepare, and its commit


def test_a_connection_that_ends_amid_a_block_leaves_nothing_unflushed() -> None:
    bucket = ProducerBucket(ClusterSettings(vbuckets=VBUCKETS))
    foul = encode(m.Empty(), Opcode.DCP_NOOP).to_bytes()  # a server asks that, no client

    _serve(bucket, _sets(range(10)) + foul + _sets(range(10, WRITES)), answers=WRITES)

    assert [each.data.disk.persisted_seqno for each in bucket.vbuckets] == [3, 3, 2, 2]

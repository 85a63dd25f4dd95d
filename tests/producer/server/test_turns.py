"""Turns of connections: bounded work in a round, and who comes with little waits for little.

Counted in requests, never in seconds: a machine that is slow makes rounds shorter, not longer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from dcp.producer.bucket import ProducerBucket
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.commands import COMMANDS
from dcp.server.bucket.dcp_connection import TURN_STREAMS, DcpConnection
from dcp.server.commands.session import Session
from dcp.server.node import accepted_connection
from dcp.server.node.accepted_connection import AcceptedConnection
from dcp.server.node.turns import ITERATION_FRAMES, Turns
from dcp.server.streams.active_stream import ActiveStream
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import HelloFeature, Opcode
from tests.producer.scripted_channel import ScriptedChannel, always_awake

FLOODERS = 8
FLOOD_FRAMES = 2_000
MOST_ROUNDS = 4
"""From what an honest client said to its answer: it is read, acted on, encoded and sent."""

EVERYTHING = m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0)
LOGIN = (
    encode(m.Sasl(b"PLAIN", b"\0Administrator\0password"), Opcode.SASL_AUTH),
    encode(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET),
)
NOOP = encode(m.Empty(), Opcode.NOOP).to_bytes()


def said(*frames: Frame) -> bytes:
    return b"".join(frame.to_bytes() for frame in (*LOGIN, *frames))


def flood(name: bytes) -> bytes:
    """Everything in one write."""
    requests = (encode(EVERYTHING, Opcode.DCP_STREAM_REQ, opaque=n) for n in range(FLOOD_FRAMES))
    return said(encode(m.DcpOpen(name, 1), Opcode.DCP_OPEN), *requests)


@dataclass
class Work:
    """How many requests of all floods were acted on so far."""

    done: int = 0
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class CountedSession(Session):
    def __init__(self, bucket: ProducerBucket, work: Work) -> None:
        super().__init__(bucket, 0, COMMANDS, 0.0)
        self._work = work

    def feed(self, frame: Frame, now: float) -> None:
        super().feed(frame, now)
        self._work.done += frame.opcode == Opcode.DCP_STREAM_REQ
        if self._work.done == FLOODERS * FLOOD_FRAMES:
            self._work.is_over.set()


class HonestChannel(ScriptedChannel):
    """A client that asks something as soon as it has the last answer, while floods go on."""

    def __init__(self, work: Work) -> None:
        super().__init__(said())
        self._work, self._splitter = work, FrameSplitter()
        self._left_answers = len(LOGIN)
        self._may_ask = asyncio.Event()
        self._asked_at = 0
        self.waits: list[int] = []
        """How many requests of others were acted on before each answer."""

    async def receive(self) -> bytes:
        if self._said:
            return await super().receive()
        await self._may_ask.wait()
        self._may_ask.clear()
        self._asked_at, self._left_answers = self._work.done, 1
        return NOOP

    async def send(self, data: bytes | bytearray) -> None:
        self._left_answers -= len(self._splitter.feed(bytes(data)))
        if not self._left_answers:
            self.waits.append(self._work.done - self._asked_at)
            self._may_ask.set()
        await asyncio.sleep(0)


def test_who_asks_little_is_answered_while_others_flood() -> None:
    bucket = ProducerBucket(ClusterSettings(vbuckets=1))

    async def serve() -> list[int]:
        work, awake, turns = Work(), always_awake(), Turns()
        honest = HonestChannel(work)
        channels = [ScriptedChannel(flood(b"%d" % n)) for n in range(FLOODERS)]
        clients = [
            AcceptedConnection(bucket, CountedSession(bucket, work), channel, awake, turns)
            for channel in (*channels, honest)
        ]
        served = [asyncio.ensure_future(client.run()) for client in clients]
        async with asyncio.timeout(60.0):
            await work.is_over.wait()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)
        for client in clients:
            client.close()
        return honest.waits[1:]

    waits = asyncio.run(serve())
    assert len(waits) > FLOODERS * FLOOD_FRAMES // (MOST_ROUNDS * ITERATION_FRAMES) - MOST_ROUNDS
    assert max(waits) <= MOST_ROUNDS * ITERATION_FRAMES


def turns_in_order(*asked: tuple[str, int, bool]) -> list[str]:
    """The order in which clients act: each with a name, so many requests, and if they are new."""
    order: list[str] = []

    def act(name: str, left: int, most_frames: int, _: float) -> int:
        done = min(left, most_frames, 10)
        order.append(name)
        return done

    async def client(turns: Turns, name: str, left: int, *, is_new: bool) -> None:
        while left:
            left -= await turns.take(partial(act, name, left), is_new=is_new)
            is_new = False

    async def run() -> None:
        turns = Turns()
        await asyncio.gather(*(client(turns, n, count, is_new=new) for n, count, new in asked))

    asyncio.run(run())
    return order


@pytest.mark.parametrize(
    ("asked", "order"),
    [
        ([("a", 30, True)], "aaa"),
        ([("a", 30, True), ("b", 30, True)], "ababab"),
        ([("a", 30, False), ("b", 20, False), ("c", 5, True)], "cababa"),
        ([("a", 20, False), ("b", 5, True), ("c", 5, True), ("d", 5, True)], "bacda"),
    ],
)
def test_what_is_new_comes_first_and_keeps_nobody_out(
    asked: list[tuple[str, int, bool]], order: str
) -> None:
    assert "".join(turns_in_order(*asked)) == order


def test_a_turn_that_fails_is_its_clients_only() -> None:
    def fail(_: int, __: float) -> int:
        raise ValueError("broken")

    async def run() -> list[int | BaseException]:
        turns = Turns()
        cancelled = asyncio.ensure_future(turns.take(fail, is_new=True))
        await asyncio.sleep(0)
        cancelled.cancel()
        works: list[Callable[[int, float], int]] = [fail, lambda most, _: most]
        return await asyncio.gather(
            *(turns.take(work, is_new=True) for work in works), return_exceptions=True
        )

    failed, done = asyncio.run(run())
    assert (str(failed), done) == ("broken", ITERATION_FRAMES)


def test_a_batch_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream looked at costs a whole turn here: others have theirs after each of them."""
    streams = 100
    monkeypatch.setattr(accepted_connection, "ITERATION_SECONDS", 0.0)
    bucket = ProducerBucket(ClusterSettings(vbuckets=streams))
    asked_in: list[int] = []
    next_frames, next_batch = DcpConnection.next_frames, ActiveStream.next_batch

    def frames(self: DcpConnection, *limits: Any) -> object:
        asked_in.append(0)
        return next_frames(self, *limits)

    def batch(self: ActiveStream, *limits: int) -> object:
        asked_in[-1] += 1
        return next_batch(self, *limits)

    monkeypatch.setattr(DcpConnection, "next_frames", frames)
    monkeypatch.setattr(ActiveStream, "next_batch", batch)
    requests = (
        encode(EVERYTHING, Opcode.DCP_STREAM_REQ, vbucket=number) for number in range(streams)
    )

    async def run() -> None:
        channel = ScriptedChannel(said(encode(m.DcpOpen(b"many", 1), Opcode.DCP_OPEN), *requests))
        client = AcceptedConnection(
            bucket, Session(bucket, 0, COMMANDS, 0.0), channel, always_awake(), Turns()
        )
        served = asyncio.ensure_future(client.run())
        async with asyncio.timeout(20.0):
            while sum(asked_in) < streams:
                await asyncio.sleep(0)
        served.cancel()
        await asyncio.gather(served, return_exceptions=True)
        client.close()

    asyncio.run(run())
    assert max(asked_in) == 1


@pytest.mark.parametrize("most_streams", [TURN_STREAMS, 3, 1])
def test_many_streams_with_nothing_to_send_are_asked_in_turns(
    monkeypatch: pytest.MonkeyPatch, most_streams: int
) -> None:
    """Of so many, or of fewer where these took the time of a turn; of one however long it takes."""
    streams = 10 * TURN_STREAMS
    bucket = ProducerBucket(ClusterSettings(vbuckets=1))
    session = Session(bucket, 0, COMMANDS, 0.0)
    asked: list[ActiveStream] = []
    next_batch = ActiveStream.next_batch

    def counted(stream: ActiveStream, *limits: int) -> object:
        asked.append(stream)
        return next_batch(stream, *limits)

    monkeypatch.setattr(ActiveStream, "next_batch", counted)
    values = [b'{"sid":%d}' % number for number in range(1, streams + 1)]
    frames = (
        *LOGIN,
        encode(m.Hello(b"x", (HelloFeature.COLLECTIONS,)), Opcode.HELLO),
        encode(m.DcpOpen(b"bad", 1), Opcode.DCP_OPEN),
        encode(m.DcpControl(b"enable_noop", b"true"), Opcode.DCP_CONTROL),
        encode(m.DcpControl(b"enable_stream_id", b"true"), Opcode.DCP_CONTROL),
        *(encode(replace(EVERYTHING, value=value), Opcode.DCP_STREAM_REQ) for value in values),
    )
    for frame in frames:
        session.feed(frame, 0.0)
    turns = []
    while session.output(1_000_000, 0.0, None, lambda: len(asked) >= most_streams):
        turns.append(len(asked))
        asked.clear()
    turns.append(len(asked))
    assert session.dcp is not None
    assert len(session.dcp.streams) == streams
    assert sum(turns) >= streams
    assert max(turns) <= most_streams

"""Long values are looked at in steps: others have their turns between, and nothing else changes.

Counted in turns that others get, never in seconds.
"""

import asyncio

import pytest

from dcp.producer.bucket import ProducerBucket
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.commands import COMMANDS
from dcp.server.commands.session import Session
from dcp.server.node import turns
from dcp.server.node.accepted_connection import AcceptedConnection
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Datatype, HelloFeature, Opcode, Status
from tests.producer.scripted_channel import ScriptedChannel, always_awake

LOGIN = (
    encode(m.Hello(b"x", (int(HelloFeature.XATTR),)), Opcode.HELLO),
    encode(m.Sasl(b"PLAIN", b"\0Administrator\0password"), Opcode.SASL_AUTH),
    encode(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET),
)
LONG = b"[" + b"[[[[[]]]]]," * 12_000 + b"0]"
LONG_XATTR = b"a\0" + LONG + b"\0"
XATTRS = (len(LONG_XATTR) + 4).to_bytes(4) + len(LONG_XATTR).to_bytes(4) + LONG_XATTR
STEPS = 100


class Writer(ScriptedChannel):
    """Writes documents and hears how that was answered; meanwhile somebody else counts turns."""

    def __init__(self, *frames: Frame) -> None:
        login = b"".join(frame.to_bytes() for frame in LOGIN)
        super().__init__(login, *(frame.to_bytes() for frame in frames))
        self._splitter = FrameSplitter()
        self._wanted = len(LOGIN) + len(frames)
        self.answers: list[Frame] = []
        self.has_all = asyncio.Event()

    async def send(self, data: bytes | bytearray) -> None:
        block = self._splitter.feed(bytes(data))
        self.answers += [block.frame(index) for index in range(len(block))]
        if len(self.answers) == self._wanted:
            self.has_all.set()


async def _others(taken: list[int]) -> None:
    while True:
        taken[0] += 1
        await asyncio.sleep(0)


def _written(bucket: ProducerBucket, *frames: Frame) -> tuple[list[Frame], int]:
    """The answers to some writes, and how many turns others had meanwhile."""

    async def write() -> tuple[list[Frame], int]:
        channel, taken = Writer(*frames), [0]
        client = AcceptedConnection(
            bucket, Session(bucket, 0, COMMANDS, 0.0), channel, always_awake(), turns.Turns()
        )
        others = asyncio.ensure_future(_others(taken))
        served = asyncio.ensure_future(client.run())
        async with asyncio.timeout(20.0):
            await channel.has_all.wait()
        for task in (served, others):
            task.cancel()
        await asyncio.gather(served, others, return_exceptions=True)
        client.close()
        return channel.answers[len(LOGIN) :], taken[0]

    return asyncio.run(write())


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ProducerBucket:
    """A bucket; a round of the loop has time for one step only."""
    monkeypatch.setattr(turns, "ITERATION_SECONDS", 0.0)
    return ProducerBucket(ClusterSettings(vbuckets=1))


def _store(key: bytes, value: bytes, datatype: int = 0, opcode: int = Opcode.SET) -> Frame:
    return encode(m.Store(key, value), opcode, datatype=datatype)


@pytest.mark.parametrize(
    ("value", "given", "stored"),
    [
        (LONG, 0, Datatype.JSON),
        (LONG[:-1], 0, 0),
        (XATTRS + b"1", Datatype.XATTR, Datatype.XATTR | Datatype.JSON),
    ],
)
def test_a_long_value_is_looked_at_between_the_turns_of_others(
    bucket: ProducerBucket, value: bytes, given: int, stored: int
) -> None:
    answers, taken = _written(bucket, _store(b"k", value, int(given)), _store(b"l", b"1"))
    assert [answer.status for answer in answers] == [Status.SUCCESS] * 2
    assert bucket.vbuckets[0].documents.get(b"k", 1.0).datatype == stored
    assert taken > STEPS


def test_what_is_wrong_with_a_long_value_is_said_as_of_a_short_one(bucket: ProducerBucket) -> None:
    short = _store(b"k", b"1")
    again = _store(b"k", LONG, opcode=Opcode.ADD)
    malformed = _store(b"k", XATTRS.replace(b",0]", b",,]"), int(Datatype.XATTR))
    answers, _ = _written(bucket, short, again, malformed)
    assert [answer.status for answer in answers] == [
        Status.SUCCESS,
        Status.KEY_EEXISTS,
        Status.XATTR_EINVAL,
    ]

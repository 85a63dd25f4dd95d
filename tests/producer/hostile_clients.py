"""Hostile clients: the same list for every server, a producer's node and a relay.

They send garbage, flood, or never read. `another_reads_on` is the client beside them that must get
everything, in order.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from dcp.producer.cluster import ProducerCluster
from dcp.server.commands.outbox import LONG_ANSWER_BYTES
from dcp.types import END_OF_TIME, U32_MAX
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.producer.raw_client import PATIENCE_SECONDS, RawClient
from tests.seeds import seeds

EVERYTHING: Final = m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0)
MANY: Final = 10_000
DOCUMENTS: Final = 200
STUCK_SECONDS: Final = 0.2
"""A socket that takes nothing for so long is taken for one that nobody reads at the other end."""


@contextmanager
def another_reads_on(cluster: ProducerCluster, seed: str) -> Iterator[None]:
    """A client of the server at ``seed`` that reads what is written to ``cluster``, in order."""
    with RawClient(seed) as client:
        reader = client.log_in().open_dcp(name=b"good", window=4096)
        assert reader.request_stream(0).status == Status.SUCCESS
        write(cluster, b"before")
        yield
        write(cluster, b"after")
        numbered = ((when, n) for when in (b"before", b"after") for n in range(DOCUMENTS))
        documents = {b"%b-%d" % each for each in numbered}
        seqnos: list[int] = []
        while not seqnos or seqnos[-1] < cluster.high_seqno(0):
            frame = reader.stream_frame()
            reader.ack(24 + frame.body_bytes)
            if frame.opcode == Opcode.DCP_MUTATION:
                seqnos.append(int.from_bytes(frame.extras[:8]))
                documents.discard(frame.key[1:])
        assert seqnos == sorted(set(seqnos))
        assert not documents


def write(cluster: ProducerCluster, prefix: bytes) -> None:
    for number in range(DOCUMENTS):
        cluster.set(b"%b-%d" % (prefix, number), b'{"n":%d}' % number)


def send_until_stuck(client: RawClient, data: Iterator[bytes]) -> int:
    """Send without ever reading, until the producer stops reading too; return how many bytes."""
    sent = 0
    client.socket.settimeout(STUCK_SECONDS)
    try:
        for part in data:
            view = memoryview(part)
            while view:
                taken = client.socket.send(view)
                view, sent = view[taken:], sent + taken
    except (TimeoutError, ConnectionError):
        pass
    finally:
        client.socket.settimeout(PATIENCE_SECONDS)
    return sent


def requests(body: m.Body, opcode: int, vbuckets: int, count: int = MANY) -> list[bytes]:
    """So many requests, each with its opaque, going around the vbuckets."""
    return [
        encode(body, opcode, opaque=number, vbucket=number % vbuckets).to_bytes()
        for number in range(count)
    ]


def in_blocks(parts: list[bytes]) -> Iterator[bytes]:
    """The same bytes in larger pieces."""
    return (b"".join(parts[first : first + 1000]) for first in range(0, len(parts), 1000))


def random_bytes(random: Random) -> bytes:
    return random.randbytes(random.randrange(1, 4000))


def random_frame(random: Random) -> bytes:
    """A header that splits well, and nonsense behind it."""
    extras = random.randbytes(random.choice((0, 0, 4, 8, 24, 48)))
    key, value = random.randbytes(random.randrange(20)), random.randbytes(random.randrange(60))
    opcode, vbucket = random.randrange(256), random.choice((0, 0, 1, 65535))
    return Frame(Magic.REQUEST, opcode, 0, vbucket, 7, 0, b"", extras, key, value).to_bytes()


def damaged_request(random: Random) -> bytes:
    """A stream request with some bits turned over."""
    body = EVERYTHING
    data = bytearray(encode(body, Opcode.DCP_STREAM_REQ).to_bytes())
    for _ in range(random.randrange(1, 5)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def truncated_frame(random: Random) -> bytes:
    data = encode(m.KeyOnly(b"k" * 100), Opcode.GET).to_bytes()
    return data[: random.randrange(1, len(data))]


def huge_length(random: Random) -> bytes:
    """A header that announces up to 4 GiB."""
    length = random.choice((30 * 1024 * 1024 + 1, U32_MAX))
    return b"\x80\x01" + bytes(6) + length.to_bytes(4) + bytes(12) + b"x" * 1000


def no_protocol(random: Random) -> bytes:
    """No frame at all, or one that is too large for anybody."""
    unread = (bytes(range(1, 256)) * 100, b"GET / HTTP/1.1\r\n", b"\x80" + b"\xff" * 23)
    return random.choice(unread)


def large_before_login(random: Random) -> bytes:
    """A frame that only a user may send."""
    return Frame(Magic.REQUEST, Opcode.HELLO, value=b"\0" * 16 * 1024).to_bytes()


def long_number(random: Random) -> bytes:
    """More digits than Python makes an int of."""
    value = b"9" * random.randrange(4301, 9000)
    return encode(m.DcpControl(b"connection_buffer_size", value), Opcode.DCP_CONTROL).to_bytes()


def deep_json(random: Random) -> bytes:
    value = b'{"collections":' + b"[" * random.randrange(50_000, 90_000)
    body = m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0, value)
    return encode(body, Opcode.DCP_STREAM_REQ).to_bytes()


GARBAGE: Final[list[Callable[[Random], bytes]]] = [
    random_bytes,
    random_frame,
    damaged_request,
    truncated_frame,
    huge_length,
    no_protocol,
    large_before_login,
    long_number,
    deep_json,
]
CLOSING: Final = {
    "silent": (huge_length, no_protocol, large_before_login),
    "logged in": (huge_length, no_protocol),
    "streaming": (huge_length, no_protocol),
}
"""What ends the connection of who says it, at each stage."""


def send_garbage(
    connect: Callable[[], RawClient], garbage: Callable[[Random], bytes], stage: str
) -> None:
    """Send it on 20 connections that have come to ``stage``; those that it ends must be closed."""
    random = Random(f"{seeds(1)[0]} {garbage.__name__} {stage}")
    for number in range(20):
        bad = connect()
        if stage != "silent":
            bad.log_in()
        if stage == "streaming":
            bad.open_dcp(name=b"bad-%d" % number)
            bad.request_stream(0)
        send_until_stuck(bad, iter([garbage(random)]))
        if garbage in CLOSING[stage]:
            assert bad.is_closed()


UNREAD_ANSWERS: Final = [
    (EVERYTHING, Opcode.DCP_STREAM_REQ, 1, 100),
    (EVERYTHING, Opcode.DCP_STREAM_REQ, 65_536, 20_000),
    (m.DcpControl(b"enable_noop", b"true"), Opcode.DCP_CONTROL, 1, 24),
    (m.Empty(), Opcode.DCP_GET_FAILOVER_LOG, 1024, 40),
    (m.Empty(), Opcode.GET_FAILOVER_LOG, 65_536, 20_000),
    (m.Stat(b"vbucket-seqno"), Opcode.STAT, 1, LONG_ANSWER_BYTES),
    (m.Stat(b"nosuch"), Opcode.STAT, 1, 24),
    (m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG, 1, 20_000),
    (m.GetAllVbSeqnos(), Opcode.GET_ALL_VB_SEQNOS, 1, 24 + 10 * 1024),
    (m.KeyOnly(b"\0large"), Opcode.GET, 1024, 1_000_100),
    (m.Store(b"\0k", b"x" * 1000), Opcode.SET, 1024, 100),
    (m.Empty(), Opcode.NOOP, 1, 24),
]
"""Requests that have an answer; how many vbuckets they go around, and the longest answer."""

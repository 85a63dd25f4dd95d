"""A cluster, a relay and many consumers, each apart from the others: for the tests of bounds.

``Feed`` writes documents to a ``dcplake serve`` and knows them all: the oracle. ``RawConsumers``
are any number of DCP clients in this process, each no more than a socket; those that are stopped
read nothing.
"""

import os
import selectors
import socket
from collections.abc import Callable, Iterable
from random import Random
from time import monotonic
from typing import Final, Self

from dcp.client.kv.kv_client import KvClient
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.client.drained import USERS
from tests.producer.raw_client import PLAIN_FEATURES, RawClient

SCALE: Final = float(os.environ.get("DCPLAKE_TEST_SCALE", "0.05"))
"""Part of the stated load; at 1 a sink is stopped for a minute."""
STOPPED_SECONDS: Final = 60 * min(1.0, SCALE)
SEED: Final = int(os.environ.get("DCPLAKE_TEST_SEED", "6"))
((USER, PASSWORD),) = USERS.items()
_READ_BYTES: Final = 1024 * 1024
_STOPPED_SOCKET_BYTES: Final = 64 * 1024
"""What the system takes for a client that does not read: little, so that the server must wait."""


class Feed:
    """Writes documents, and knows what each holds at last; values are told by their hashes."""

    def __init__(self, seeds: list[str]) -> None:
        self.hashes: dict[bytes, int] = {}
        self.written_bytes = 0
        self._client = KvClient(seeds, USER, PASSWORD, "default", 60.0)
        self._random = Random(SEED)

    def write(self, count: int, value_bytes: int, prefix: str = "key") -> None:
        for number in range(count):
            key, value = f"{prefix}-{number}".encode(), self._value(value_bytes)
            self._client.set([(key, value)])
            self.hashes[key] = hash(value)
            self.written_bytes += value_bytes

    def _value(self, value_bytes: int) -> bytes:
        """A value that no other is like, made quickly: eight random bytes again and again."""
        return (self._random.randbytes(8) * (value_bytes // 8 + 1))[:value_bytes]

    def close(self) -> None:
        self._client.close()


class RawConsumer:
    """One DCP connection with a stream of each vbucket from the beginning."""

    def __init__(
        self, seed: str, name: str, vbuckets: int, window_bytes: int, *, stopped: bool
    ) -> None:
        self.name = name
        self.is_stopped = stopped
        self.hashes: dict[bytes, int] = {}
        self.is_closed = False
        self.opened: set[int] = set()
        self._high: dict[int, int] = {}
        self._window_bytes, self._unacked_bytes = window_bytes, 0
        self._splitter = FrameSplitter()
        client = RawClient(seed, 60.0).log_in(PLAIN_FEATURES, USER, PASSWORD)
        client.open_dcp(name.encode(), window=window_bytes)
        self.socket = client.socket
        if stopped:
            option = socket.SO_RCVBUF
            self.socket.setsockopt(socket.SOL_SOCKET, option, _STOPPED_SOCKET_BYTES)
        for vbucket in range(vbuckets):
            body = m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0)
            self._send(encode(body, Opcode.DCP_STREAM_REQ, vbucket=vbucket, opaque=vbucket + 1))
        self.socket.setblocking(False)

    def _send(self, frame: Frame) -> None:
        self.socket.setblocking(True)
        self.socket.sendall(frame.to_bytes())
        self.socket.setblocking(False)

    def read(self) -> None:
        """Take what there is; the kernel has something, or the server closed."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        self.is_closed |= not data
        block = self._splitter.feed(data)
        for index in range(len(block)):
            self._take(block.frame(index))

    def _take(self, frame: Frame) -> None:
        if frame.opcode == Opcode.DCP_NOOP:
            answer = encode(m.Empty(), frame.opcode, magic=Magic.RESPONSE, opaque=frame.opaque)
            self._send(answer)
        elif frame.magic is Magic.RESPONSE:
            assert frame.status == Status.SUCCESS, hex(frame.status)
            if frame.opcode == Opcode.DCP_STREAM_REQ:
                self.opened.add(frame.opaque - 1)
        else:
            if frame.opcode == Opcode.DCP_MUTATION:
                self._take_item(frame)
            self._unacked_bytes += len(frame.to_bytes())
            if self._window_bytes and self._unacked_bytes * 2 >= self._window_bytes:
                self._send(encode(m.BufferAck(self._unacked_bytes), Opcode.DCP_BUFFER_ACK))
                self._unacked_bytes = 0

    def _take_item(self, frame: Frame) -> None:
        seqno = int.from_bytes(frame.extras[:8])
        assert seqno > self._high.get(frame.vbucket, 0), f"{self.name}: seqno {seqno} came twice"
        self._high[frame.vbucket] = seqno
        self.hashes[frame.key] = hash(frame.value)


class RawConsumers:
    """All of them, and what their sockets have."""

    def __init__(self) -> None:
        self.all: list[RawConsumer] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self.all:
            each.socket.close()
        self._selector.close()

    def add(
        self, seed: str, name: str, vbuckets: int, window_bytes: int, *, stopped: bool = False
    ) -> RawConsumer:
        consumer = RawConsumer(seed, name, vbuckets, window_bytes, stopped=stopped)
        self.all.append(consumer)
        if not stopped:
            self._selector.register(consumer.socket, selectors.EVENT_READ, consumer)
        return consumer

    def go_on(self, consumers: Iterable[RawConsumer]) -> None:
        """Let some read again that were stopped."""
        for each in consumers:
            each.is_stopped = False
            self._selector.register(each.socket, selectors.EVENT_READ, each)

    def stop(self, consumer: RawConsumer) -> None:
        """Let one read nothing more."""
        consumer.is_stopped = True
        self._selector.unregister(consumer.socket)

    @property
    def running(self) -> list[RawConsumer]:
        return [each for each in self.all if not each.is_stopped]

    def run(self, until: Callable[[], bool], timeout_seconds: float = 150.0) -> None:
        """Read until ``until`` holds; fail when that takes too long, or one is cut off."""
        deadline = monotonic() + timeout_seconds
        while not until():
            held = sorted(len(each.hashes) for each in self.running)
            assert monotonic() < deadline, f"not in {timeout_seconds} s; documents: {held}"
            for key, _ in self._selector.select(0.2):
                key.data.read()
                assert not key.data.is_closed, f"{key.data.name} was cut off"

    def run_to(self, feed: Feed, timeout_seconds: float = 150.0) -> None:
        """Let all that read have all that was written, and compare."""
        count = len(feed.hashes)
        self.run(lambda: all(len(each.hashes) == count for each in self.running), timeout_seconds)
        self.run(lambda: all(each.hashes == feed.hashes for each in self.running), timeout_seconds)

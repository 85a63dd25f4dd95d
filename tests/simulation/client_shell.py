"""The client without its threads: what stands for the reader thread, its socket, and what waits.

``SteppedReader`` is the product's ``Reader``; only the thread under it is not there: each of its
turns is an event of the loop. Whoever waits for a reader (a queue's condition, a future) lets the
loop go on meanwhile.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, TypeVar, cast

from dcp.client.addresses import NodeAddress
from dcp.client.reader import Reader
from dcp.client.transport import LostConnectionError, Transport
from dcp.errors import DcplakeError, NodeUnavailableError
from tests.simulation.network import Link, Network

T = TypeVar("T")
_SOON_SECONDS: Final = 1e-6


class LinkTransport:
    """Stands for ``dcp.client.transport.Transport``: never waits, but notes what is waited for."""

    def __init__(self, address: NodeAddress, link: Link, on_event: Callable[[], None]) -> None:
        self._address = address
        self._link = link
        self._in, self._out = link.down, link.up
        self._outgoing = bytearray()
        self._on_event = on_event
        self._closed = False
        self.waits_seconds = 0.0
        self.is_reading = True
        self._in.on_bytes = self._out.on_room = on_event

    def wait(self, timeout_seconds: float, *, reading: bool) -> bool:
        """Return whether there is something to read; note how long it could be waited for."""
        self.waits_seconds, self.is_reading = timeout_seconds, reading
        return reading and self._in.is_readable

    def read(self, buffer: memoryview) -> int:
        """Put the bytes that are there into ``buffer``."""
        try:
            found = self._in.read(len(buffer))
        except ConnectionError as error:
            raise NodeUnavailableError(f"connection to {self._address} broke: {error}") from error
        if found is None:
            return 0
        if not found:
            raise LostConnectionError(self._address)
        buffer[: len(found)] = found
        return len(found)

    def write(self, data: bytes) -> None:
        """Send ``data`` as far as there is room and keep the rest; nothing, if it is broken."""
        self._outgoing += data
        try:
            while self._outgoing and (sent := self._out.send(bytes(self._outgoing))):
                del self._outgoing[:sent]
        except ConnectionError:
            self._outgoing.clear()

    def wake(self) -> None:
        """Let the reader have its turn."""
        self._on_event()

    def close(self) -> None:
        """Close; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._link.close_side(self._out, self._in)

    @property
    def has_input(self) -> bool:
        """Whether a turn would find what it waits for."""
        return self.is_reading and self._in.is_readable


class SteppedReader(Reader):
    """The product's reader; its turns are events of the loop."""

    network: Network
    on_turn: Callable[["SteppedReader"], None] = staticmethod(lambda _: None)

    def start(self, on_step: object = None) -> None:
        """Begin to connect; nobody asks for the steps."""
        assert on_step is None
        self._is_scheduled = False
        self._timer: Any = None
        self._is_over = False
        self.network.loop.call_later(self.network.connect_seconds(), self._connected)

    def stop(self) -> None:
        """Ask the reader to close the connection."""
        self._closing = True
        self._schedule(0.0)

    def join(self) -> None:
        """Let the reader end, as far as that takes no time."""
        if not self.network.loop.is_inside:
            self.network.loop.wait(lambda: self._is_over, 2.0)

    @property
    def protocol(self) -> Any:
        """The protocol's state, for who checks it."""
        return self._protocol

    def _connected(self) -> None:
        loop = self.network.loop
        if self._closing:
            self._over(None)
            return
        link = self.network.connect((self.address.host, self.address.port), self._name)
        if link is None:
            self._over(
                NodeUnavailableError(f"TCP connection with {self.address}: Connection refused")
            )
            return
        transport = LinkTransport(self.address, link, lambda: self._schedule(0.0))
        self._transport = cast(Transport, transport)
        self._sim_transport = transport
        self._protocol.start(loop.time())
        self._schedule(0.0)

    def _schedule(self, seconds: float) -> None:
        loop = self.network.loop
        at = loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= at and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._step)

    def _step(self) -> None:
        self._timer = None
        if self._is_over or self._transport is None:
            return
        transport = self._sim_transport
        if not self._goes_on(self.network.loop.time()):
            self._over(None)
            return
        try:
            self._turn(self._transport)
            transport.write(self._protocol.bytes_to_send())  # as the next turn would at once
        except DcplakeError as caught:
            self._over(self._in_context(caught))
            return
        self.on_turn(self)
        soon = transport.has_input or bool(self._commands)
        self._schedule(_SOON_SECONDS if soon else max(_SOON_SECONDS, transport.waits_seconds))

    def _over(self, error: DcplakeError | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        self._end(error)


class Waits:
    """Makes what the product's callers wait by, over one loop."""

    def __init__(self, network: Network) -> None:
        self._loop = loop = network.loop

        class SteppedFuture(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                if not loop.wait(self.done, timeout):
                    raise FutureTimeoutError
                return super().result(0)

        class SteppedCondition:
            def __init__(self, lock: Any = None) -> None:
                self._notified = 0

            def __enter__(self) -> bool:
                return True

            def __exit__(self, *_: object) -> None:
                pass

            def notify(self, n: int = 1) -> None:
                self._notified += 1

            def notify_all(self) -> None:
                self._notified += 1

            def wait(self, timeout: float | None = None) -> bool:
                before = self._notified
                return loop.wait(lambda: self._notified != before, timeout)

            def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
                loop.wait(predicate, timeout)
                return predicate()

        self.Future = SteppedFuture
        self.Condition = SteppedCondition
        self.Lock = threading.Lock
        self.RLock = threading.RLock


class OneAfterAnother:
    """Stands for a pool of threads: each piece of work is done when it is asked for."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> "OneAfterAnother":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, work: Callable[[Any], T], items: Iterable[Any]) -> Iterator[T]:
        """Do the work of each."""
        return map(work, items)

    def submit(self, work: Callable[..., T], *arguments: Any) -> None:
        """Do it now; nobody asks for its result."""
        work(*arguments)

    def shutdown(self) -> None:
        """Have nothing left to do."""

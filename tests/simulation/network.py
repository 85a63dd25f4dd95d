"""TCP in memory: ports, and connections whose bytes arrive later, in pieces, or not at all.

Within one connection nothing is lost or overtaken without its end, as TCP has it; between
connections anything is. What may happen is in ``NetworkFaults``, and is drawn from the seed.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from tests.simulation.faults import Counts, NetworkFaults
from tests.simulation.virtual_loop import VirtualLoop

BUFFER_BYTES: Final = 64 * 1024
"""What one direction of a connection holds: in flight, and not yet read."""
_CONNECT_SECONDS: Final = 0.002
Address = tuple[str, int]


class Pipe:
    """One direction of a connection."""

    def __init__(self, link: "Link", name: str) -> None:
        self._link = link
        self.name = name
        self._flying: deque[tuple[float, bytes]] = deque()
        self._flying_bytes = 0
        self._arrived = bytearray()
        self._last_at = 0.0
        self.sent_bytes = 0
        self.drained_bytes = 0
        self.is_ended = False
        """Whether the sender sends no more."""
        self.has_end = False
        """Whether the receiver may know that."""
        self.error: OSError | None = None
        self.vanishes = False
        self.on_bytes: Callable[[], None] = _nobody
        self.on_room: Callable[[], None] = _nobody

    @property
    def room(self) -> int:
        """How many bytes may be sent now."""
        return BUFFER_BYTES - self._flying_bytes - len(self._arrived)

    def send(self, data: bytes) -> int:
        """Send as much as there is room for; return how many bytes that are."""
        if self.error is not None:
            raise ConnectionResetError(*self.error.args)
        data = bytes(data[: max(0, self.room)])
        if data:
            self.sent_bytes += len(data)
            self._flying_bytes += len(data)
            for piece in self._link.network.pieces(data):
                self._launch(piece)
        return len(data)

    def _launch(self, piece: bytes) -> None:
        network = self._link.network
        self._last_at = at = max(self._last_at, network.loop.time() + network.delay())
        network.note_overtaking(self, at)
        self._flying.append((at, piece))
        network.loop.call_at(at, self._land)

    def _land(self) -> None:
        if self.error is not None or not self._flying:
            return
        _, piece = self._flying.popleft()
        self._flying_bytes -= len(piece)
        if self.vanishes:
            self._link.network.counts.add("half-open connection", bytes_lost=len(piece))
            self._flying_bytes += len(piece)  # nobody takes them
            return
        self._arrived += piece
        self._link.network.trace(self.name, piece)
        self._end_arrives()
        self.on_bytes()

    def end(self) -> None:
        """Send no more."""
        if not self.is_ended:
            self.is_ended = True
            network = self._link.network
            self._last_at = at = max(self._last_at, network.loop.time() + network.delay())
            network.loop.call_at(at, self._end_arrives)

    def _end_arrives(self) -> None:
        if self.is_ended and not self._flying and not self.vanishes and not self.has_end:
            now = self._link.network.loop.time()
            if now + 1e-9 >= self._last_at:
                self.has_end = True
                self.on_bytes()

    @property
    def is_readable(self) -> bool:
        """Whether there is something to read: bytes, the end, or what went wrong."""
        return bool(self._arrived) or self.has_end or self.error is not None

    def read(self, most: int) -> bytes | None:
        """Return what is there; empty at the end, None where there is nothing yet."""
        if self._arrived:
            found = bytes(self._arrived[:most])
            del self._arrived[:most]
            self.drained_bytes += len(found)
            self._link.network.loop.call_soon(self.on_room)
            return found
        if self.error is not None:
            raise ConnectionResetError(*self.error.args)
        return b"" if self.has_end else None

    def fail(self, delivered: int) -> None:
        """Be cut: of what is in flight so many bytes still arrive."""
        flying = b"".join(piece for _, piece in self._flying)
        self._flying.clear()
        self._flying_bytes = 0
        if not self.vanishes:
            self._arrived += flying[:delivered]
        self.error = ConnectionResetError("the connection was cut")
        self.on_bytes()
        self.on_room()

    @property
    def flying_bytes(self) -> int:
        """What is on its way."""
        return self._flying_bytes


class Link:
    """One connection: from who connected (``up``) and back (``down``)."""

    def __init__(self, network: "Network", number: int, address: Address, owner: str) -> None:
        self.network = network
        self.number = number
        self.address = address
        self.owner = owner
        self.up = Pipe(self, f"{number}>")
        self.down = Pipe(self, f"{number}<")
        self.closed_sides = 0

    def close_side(self, mine: Pipe, theirs: Pipe) -> None:
        """Let one side go; what it did not read is lost, and the other side is reset or ended."""
        mine.end()
        theirs.on_bytes = mine.on_room = _nobody
        if theirs.error is None:
            theirs.error = BrokenPipeError("the other side closed")
            self.network.loop.call_soon(theirs.on_room)
        self.closed_sides += 1
        if self.closed_sides == 2:
            self.network.forget(self)

    def cut(self) -> None:
        """Break it in the middle of whatever is on its way."""
        choice = self.network.random
        delivered = [choice.randint(0, pipe.flying_bytes) for pipe in (self.up, self.down)]
        in_frame = any(
            0 < n < pipe.flying_bytes
            for n, pipe in zip(delivered, (self.up, self.down), strict=True)
        )
        self.network.counts.add("cut")
        if in_frame:
            self.network.counts.add("cut with bytes in flight")
        for count, pipe in zip(delivered, (self.up, self.down), strict=True):
            pipe.fail(count)


class Network:
    """All ports and connections of a simulation."""

    def __init__(
        self, loop: VirtualLoop, random: Random, faults: NetworkFaults, counts: Counts
    ) -> None:
        self.loop, self.random, self.faults, self.counts = loop, random, faults, counts
        self.trace: Callable[[str, bytes], None] = lambda _, __: None
        self.listeners: dict[Address, Callable[[Link], None]] = {}
        self.links: dict[int, Link] = {}
        self._next_number = 1
        self._next_port = 10_001
        self._in_flight: dict[str, float] = {}
        self.is_calm = False

    def free_port(self) -> int:
        """Return a port that was never used."""
        self._next_port += 1
        return self._next_port

    def connect(self, address: Address, owner: str) -> Link | None:
        """Return a connection to whoever listens there; None where nobody does."""
        serve = self.listeners.get(address)
        if serve is None:
            return None
        link = Link(self, self._next_number, address, owner)
        self._next_number += 1
        self.links[link.number] = link
        self.trace(f"{link.number}+", f"{address[1]}".encode())
        self.loop.call_soon(serve, link)
        return link

    def connect_seconds(self) -> float:
        """Return how long connecting takes."""
        return _CONNECT_SECONDS + self.delay()

    def forget(self, link: Link) -> None:
        """Have a connection no more that both sides closed."""
        self.links.pop(link.number, None)

    def pieces(self, data: bytes) -> list[bytes]:
        """Return what is sent as it will arrive: mostly at once, sometimes in odd pieces."""
        if self.is_calm or len(data) < 2 or self.random.random() >= self.faults.split:
            return [data]
        at = self.random.randint(1, len(data) - 1)
        self.counts.add("split segment")
        return [data[:at], data[at:]]

    def delay(self) -> float:
        """Return how long the next bytes take."""
        if self.is_calm:
            return self.faults.least_seconds
        if self.random.random() < self.faults.slow:
            self.counts.add("long delay")
            return self.random.uniform(0.0, self.faults.slow_seconds)
        return self.random.uniform(self.faults.least_seconds, self.faults.usual_seconds)

    def note_overtaking(self, pipe: Pipe, at: float) -> None:
        """Count where bytes of this connection arrive before earlier ones of another."""
        now = self.loop.time()
        latest = max((t for name, t in self._in_flight.items() if name != pipe.name), default=0.0)
        if latest > max(at, now):
            self.counts.add("reordering between connections")
        self._in_flight[pipe.name] = at
        if len(self._in_flight) > 24:
            self._in_flight = {name: t for name, t in self._in_flight.items() if t > now}

    # --- faults

    def cut_one(self) -> None:
        """Cut a connection, one with bytes on their way where there is any."""
        links = [link for link in self.links.values() if link.up.error is None]
        busy = [link for link in links if link.up.flying_bytes + link.down.flying_bytes]
        if links:
            self.random.choice(busy or links).cut()

    def half_open_one(self) -> None:
        """Let a connection swallow all that is sent on it, without a word."""
        links = [link for link in self.links.values() if link.up.error is None]
        if links:
            link = self.random.choice(links)
            link.down.vanishes = True
            link.up.vanishes = link.up.vanishes or self.random.random() < 0.5

    def calm(self) -> None:
        """Let nothing happen any more; what is half open is found dead at once."""
        self.is_calm = True
        for link in list(self.links.values()):
            if link.up.vanishes or link.down.vanishes:
                link.cut()


def _nobody() -> None:
    """Be told of bytes or of room that nobody waits for."""

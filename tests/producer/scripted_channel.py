"""A client's channel without a socket: what it says is given, what becomes of answers tests say."""

import asyncio


class ScriptedChannel:
    """A client that says some things, then nothing more."""

    def __init__(self, *said: bytes) -> None:
        self._said = list(reversed(said))
        self.is_closed = False
        self.certificate_name = ""

    @property
    def drained_bytes(self) -> int:
        return 0

    @property
    def has_more(self) -> bool:
        return bool(self._said)

    async def open(self) -> None:
        """Nothing comes first."""

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        if self._said:
            return self._said.pop()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that event")

    async def send(self, data: bytes | bytearray) -> None:
        await asyncio.sleep(0)

    async def end(self) -> None:
        """Nobody waits for it."""

    def close(self) -> None:
        self.is_closed = True


def always_awake() -> asyncio.Event:
    """The event of a node that does not hang."""
    awake = asyncio.Event()
    awake.set()
    return awake

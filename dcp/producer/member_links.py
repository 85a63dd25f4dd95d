"""The asyncio edge of the first process towards the others: who lives, and what they were told.

For each node of another process there is a connection over which the state of the cluster goes,
again whenever it changes, and every second as a sign of life. A process that is gone, or does not
answer in time, is dead until it does; the connection is made again for ever, with waits of a second
at most. Orders to take vbuckets over go the same way.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dcp.errors import DcplakeError, SourceError
from dcp.producer.background import (
    FIRST_WAIT_SECONDS,
    LONGEST_WAIT_SECONDS,
    ended,
    keep_running,
)
from dcp.producer.bucket import Bucket
from dcp.producer.cluster_state import ClusterState
from dcp.producer.member_commands import STATE
from dcp.producer.order_connection import OrderConnection
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode

_LOG = logging.getLogger(__name__)
_SIGN_OF_LIFE_SECONDS: Final = 1.0


class MemberLink:
    """The connection to one node. Methods run in the loop's thread."""

    def __init__(self, links: "MemberLinks", node: int) -> None:
        self.node = node
        self.known_number = 0
        """The number of the last state that the process answered."""
        self.is_alive = False
        self.is_new = True
        """Whether it is still to be found out whether the process answers."""
        self._said = ""
        self._links = links
        self._connection: OrderConnection | None = None
        self._turn = asyncio.Lock()
        self.news = asyncio.Event()

    async def run(self) -> None:
        """Tell the process what there is, until cancelled."""
        wait_seconds = FIRST_WAIT_SECONDS
        while True:
            try:
                await self._converse()
            except (OSError, DcplakeError) as error:
                if self.is_alive:
                    wait_seconds = FIRST_WAIT_SECONDS
                self._say(error)
            finally:
                self.known_number = 0
                self._links.is_heard(self, alive=False)
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)

    def _say(self, error: Exception) -> None:
        """Log why the process is dead: once, not with each attempt that ends in the same way."""
        text = str(error) or type(error).__name__
        if self.is_alive or text != self._said:
            _LOG.warning("%s: %s; it is asked again", self._links.name_of(self.node), text)
        self._said = text

    async def _converse(self) -> None:
        self._connection = connection = await self._links.connect(self.node)
        try:
            while not connection.lost.is_set():
                self.news.clear()
                state = self._links.state()
                await self.order(STATE, state.encode())
                self.known_number = state.number
                self._links.is_heard(self, alive=True)
                await self._until_there_is_news(connection)
        finally:
            self._connection = None
            await connection.close()

    async def _until_there_is_news(self, connection: OrderConnection) -> None:
        waits = [asyncio.ensure_future(e.wait()) for e in (self.news, connection.lost)]
        try:
            await asyncio.wait(
                waits, timeout=_SIGN_OF_LIFE_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in waits:
                each.cancel()

    async def order(self, name: bytes, value: bytes = b"") -> None:
        """Have an order carried out; raises OSError or SourceError where that cannot be."""
        await self._ask(m.IoctlSet(name, value), Opcode.IOCTL_SET)

    async def question(self, name: bytes) -> bytes:
        """Return the answer to a question; raises OSError or SourceError without one."""
        return await self._ask(m.IoctlGet(name), Opcode.IOCTL_GET)

    async def _ask(self, body: m.Body, opcode: Opcode) -> bytes:
        async with self._turn:
            if self._connection is None:
                raise SourceError(f"{self._links.name_of(self.node)}: it does not answer")
            return await self._connection.ask(body, opcode)


class MemberLinks:
    """All connections of the first process. Methods run in the loop's thread."""

    def __init__(self, bucket: Bucket, on_life: Callable[[], None]) -> None:
        """``on_life`` is called when a node came to life, or died."""
        self._bucket = bucket
        self._on_life = on_life
        self._links: dict[int, tuple[MemberLink, asyncio.Task[None]]] = {}
        self._last: ClusterState | None = None
        self._progress = asyncio.Event()

    def name_of(self, node: int) -> str:
        """Return what messages call a node."""
        return self._bucket.map.name_of(node)

    def of(self, node: int) -> MemberLink:
        """Return the connection to a node of another process."""
        return self._links[node][0]

    def is_alive(self, node: int) -> bool:
        """Whether a node of another process answers."""
        return node in self._links and self.of(node).is_alive

    def add(self, node: int) -> None:
        """Have a new connection to a node, that joined just now."""
        old = self._links.pop(node, None)
        if old is not None:
            old[1].cancel()
        link = MemberLink(self, node)
        name = f"connection to {self.name_of(node)}"
        self._links[node] = link, asyncio.ensure_future(keep_running(name, link.run))

    def state(self) -> ClusterState:
        """Return the cluster as it is now, with a number that no other state has."""
        with self._bucket.lock:
            last = self._last
            state = ClusterState.of(self._bucket, 1 if last is None else last.number)
            if last is not None and state != last:
                state = replace(state, number=last.number + 1)
            self._last = state
        return state

    def wake(self) -> None:
        """Let all be told what is new."""
        if self._links:
            for link, _ in self._links.values():
                link.news.set()

    async def told(self) -> None:
        """Return when all that live know the cluster as it is now."""
        number = self.state().number
        self.wake()
        while any(
            (each.is_alive or each.is_new) and each.known_number < number
            for each, _ in self._links.values()
        ):
            self._progress.clear()
            await self._progress.wait()

    async def connect(self, node: int) -> OrderConnection:
        """Connect to a node; raises OSError or SourceError where that cannot be."""
        bucket = self._bucket
        timeout_seconds = bucket.settings.member_timeout_seconds
        address = bucket.map.addresses[node]
        return await OrderConnection.open(address, bucket.node_credentials, timeout_seconds)

    def is_heard(self, link: MemberLink, *, alive: bool) -> None:
        """Note whether a node answers."""
        was_alive, link.is_alive, link.is_new = link.is_alive, alive, False
        self._progress.set()
        if was_alive is alive or self._links.get(link.node, (None,))[0] is not link:
            return
        with self._bucket.lock:
            if not alive:
                self._bucket.dead_nodes.add(link.node)
            elif self._bucket.map.is_member(link.node):
                self._bucket.dead_nodes.discard(link.node)
        self._on_life()

    async def stop(self) -> None:
        """End all connections; the processes go on with what they know."""
        tasks = [task for _, task in self._links.values()]
        self._links = {}
        self._progress = asyncio.Event()  # another loop may want it next
        for task in tasks:
            task.cancel()
        await ended("connections to other processes", *tasks)

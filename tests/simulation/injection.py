"""Replaces parts of the product while a seed runs: threads, sockets, clocks, random numbers.

Everything else runs as it is: both sides' protocol machines, streams,
checkpoints, disk stores, replication, gates, plans, tasks, fences, the rules of applies.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from datetime import datetime, tzinfo
from functools import lru_cache, partial
from itertools import count
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch
from uuid import UUID

import scramp.core
from scramp import ScramMechanism

import dcp.client.awaited
import dcp.client.connection
import dcp.client.connection_names
import dcp.client.consumer
import dcp.client.delivery
import dcp.client.probe
import dcp.client.reader
import dcp.lake.apply.applier
import dcp.lake.change_log.changes
import dcp.lake.change_log.control
import dcp.lake.run.driver
import dcp.lake.run.persistence_gate
import dcp.protocol.credentials
import dcp.relay.settings
import dcp.relay.thread
import dcp.relay.upstream
import dcp.server.bucket.auth
import dcp.server.bucket.bucket_storage
import dcp.server.bucket.vbucket_table
import dcp.server.node.cluster_nodes
import dcp.server.node.server
from dcp.protocol.credentials import SCRAM_MECHANISMS, Credentials, Secret
from dcp.relay.regulator import Regulator
from dcp.server.bucket.auth import REPLICATION_USER
from dcp.server.node.loop_thread import Work
from dcp.setting_keys import section_of
from tests.simulation.client_shell import OneAfterAnother, SteppedReader, Waits
from tests.simulation.network import Network
from tests.simulation.sockets import Port, ServedChannel
from tests.simulation.virtual_loop import EPOCH_SECONDS, VirtualEvent, VirtualLoop

T = TypeVar("T")


def _virtual_datetime(loop: VirtualLoop) -> type[datetime]:
    class VirtualDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "VirtualDatetime":
            return cls.fromtimestamp(EPOCH_SECONDS + loop.time(), tz)

    return VirtualDatetime


def _done_at_once(call: Callable[[], T]) -> Future[T]:
    """Stand for a thread."""
    done: Future[T] = Future()
    try:
        done.set_result(call())
    except Exception as failure:
        done.set_exception(failure)
    return done


class SteppedLoop:
    """Stands for ``loop_thread.LoopThread``: all nodes and relays share one loop."""

    loop: VirtualLoop

    def __init__(self, name: str) -> None:
        self._name = name
        self.is_running = False

    @property
    def is_inside(self) -> bool:
        """Whether our caller is called by the loop."""
        return self.loop.is_inside

    def start(self, begin: Callable[[], Work[None]]) -> None:
        """Run ``begin``, and go on."""
        self.is_running = True
        try:
            self._done(begin())
        except BaseException:
            self.is_running = False
            raise

    def stop(self, end: Callable[[], Work[None]]) -> None:
        """Do ``end``."""
        if self.is_running:
            self._done(end())
            self.is_running = False

    def call_soon(self, function: Callable[[], object]) -> None:
        """Have a function called in the loop."""
        if self.is_running:
            self.loop.call_soon(function)

    def begin(self, work: Work[T]) -> Any:
        """Begin something in the loop."""
        return SimpleNamespace(result=partial(self._done, work), done=lambda: True)

    def call(self, work: Work[None]) -> None:
        """Have something done."""
        if self.is_inside:
            self.loop.create_task(work)
        else:
            self._done(work)

    def _done(self, work: Work[T], timeout: float | None = 120.0) -> T:
        task = self.loop.create_task(work)
        if not self.loop.wait(task.done, timeout):
            task.cancel()
            raise TimeoutError(f"{self._name}: not done in {timeout} seconds")
        return task.result()

    async def drained(self) -> None:
        """Wait for nothing."""


def _seeded_secrets(random: Random) -> Any:
    return SimpleNamespace(
        token_hex=lambda count=16: random.randbytes(count).hex(),
        token_urlsafe=lambda count=16: random.randbytes(count).hex(),
        token_bytes=lambda count=32: random.randbytes(count),
    )


def _salted() -> Callable[[str, str], tuple[bytes, bytes, bytes, int]]:
    """Return what salts passwords, always with the same salt, so that each is hashed once."""
    known: dict[tuple[str, str], Any] = {}

    def salted(mechanism: str, password: str) -> Any:
        if (mechanism, password) not in known:
            known[mechanism, password] = ScramMechanism(mechanism).make_auth_info(
                password, iteration_count=4096, salt=b"0123456789abcdef"
            )
        return known[mechanism, password]

    return salted


SALTED = _salted()


def _node_credentials() -> Credentials:
    """Return always the same password of nodes, so that it is hashed once."""
    return Credentials(REPLICATION_USER, Secret("5" * 32), SCRAM_MECHANISMS[:1])


@lru_cache(maxsize=64)
def _derived(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)


def _modules() -> list[ModuleType]:
    names = sorted(name for name in sys.modules if name.startswith("dcp."))
    return [sys.modules[name] for name in names]


@contextmanager
def injected(network: Network, random: Random) -> Iterator[None]:
    """Let the product run over the network's loop while this lasts."""
    loop = network.loop
    waits = Waits(network)
    secrets = _seeded_secrets(random)
    threads = SimpleNamespace(Condition=waits.Condition, Lock=waits.Lock, RLock=waits.RLock)

    def clock() -> float:
        return EPOCH_SECONDS + loop.time()

    names = dcp.client.connection_names
    named: list[tuple[Any, str, Any]] = [
        (names, "gethostname", lambda: "host"),
        (names, "getpid", lambda: 1),
        (names, "_numbers", count(1)),
        (
            dcp.server.node.cluster_nodes,
            "LoopThread",
            type("Loop", (SteppedLoop,), {"loop": loop}),
        ),
        (dcp.server.node.server, "Listener", type("Port", (Port,), {"network": network})),
        (dcp.server.node.server, "PlainChannel", ServedChannel),
        (dcp.server.bucket.vbucket_table, "Condition", waits.Condition),
        (dcp.server.bucket.auth, "_salted", SALTED),
        (dcp.server.bucket.auth, "_node_credentials", _node_credentials),
        (dcp.server.bucket.bucket_storage, "ThreadPoolExecutor", OneAfterAnother),
        (dcp.protocol.credentials, "pbkdf2_hmac", _derived),
        (dcp.client.connection, "Reader", type("Reader", (SteppedReader,), {"network": network})),
        (dcp.client.reader, "Future", waits.Future),
        (dcp.client.awaited, "Future", waits.Future),
        (dcp.client.delivery, "threading", threads),
        (dcp.client.probe, "ThreadPoolExecutor", OneAfterAnother),
        (dcp.client.consumer, "Random", lambda: Random(random.getrandbits(64))),
        (
            dcp.relay.upstream,
            "Regulator",
            partial(Regulator, now_ns=lambda: int(loop.time() * 1e9)),
        ),
        (dcp.relay.settings, "section_of", partial(section_of, clock=clock)),
        (scramp.core, "token_hex", secrets.token_hex),
        (dcp.lake.apply.applier, "in_thread", _done_at_once),
        (dcp.lake.run.persistence_gate, "Event", partial(VirtualEvent, loop)),
        (dcp.lake.run.driver, "round_progress", lambda **_: nullcontext()),
        (dcp.lake.change_log.changes, "_committed_writers", set()),
        (dcp.lake.change_log.control, "uuid4", lambda: UUID(int=random.getrandbits(128))),
        (dcp.lake.change_log.control, "_user", lambda: "operator@host"),
    ]
    found = {"monotonic": loop.time, "secrets": secrets, "sleep": loop.sleep}
    found |= {
        name: getattr(secrets, name) for name in ("token_hex", "token_bytes", "token_urlsafe")
    }
    virtual_datetime = _virtual_datetime(loop)
    for module in _modules():
        if vars(module).get("datetime") is datetime and module.__name__.startswith("dcp.lake."):
            named.append((module, "datetime", virtual_datetime))
        for name, stand_in in found.items():
            if name in vars(module):
                named.append((module, name, stand_in))
    patches = [patch.object(module, name, stand_in) for module, name, stand_in in named]
    begun = []
    try:
        for each in patches:
            each.start()
            begun.append(each)
        loop.connect = connector_of(network)
        yield
    finally:
        for each in reversed(begun):
            each.stop()


def connector_of(network: Network) -> Callable[..., Any]:
    """Return what connects for ``asyncio.open_connection``."""
    from tests.simulation.sockets import connector

    return connector(network)

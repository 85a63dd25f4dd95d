"""Bounded memory of relay and producer: large documents, many consumers, stopped ones, streams.

Both are processes of their own (``dcplake serve``, ``dcplake relay``); their resident memory (PSS)
is sampled and compared with the formulas of docs/reference/memory.md, as
``dcp/producer/memory.py`` and ``dcp/relay/memory.py`` compute them. With
DCPLAKE_TEST_SCALE=1 every stopped sink is so for a minute; the one that all wait for always is.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

import pytest

from dcp.producer.memory import producer_bytes
from dcp.relay.memory import relay_bytes
from dcp.relay.settings import RelaySettings
from dcp.server.commands.memory_formula import DOCUMENT_BYTES, Load
from tests.cli.serving import Serving
from tests.client.drained import CREDENTIALS
from tests.lake.process_memory import MemorySampler
from tests.producer.hostile_clients import (
    GARBAGE,
    UNREAD_ANSWERS,
    in_blocks,
    requests,
    send_until_stuck,
)
from tests.producer.raw_client import RawClient
from tests.relay.loaded import PASSWORD, SEED, STOPPED_SECONDS, USER, Feed, RawConsumers
from tests.relay.relaying import Relaying, relaying

pytestmark = pytest.mark.slow

MIB: Final = 1024 * 1024
LARGE_BYTES: Final = DOCUMENT_BYTES - 1024  # header, extras and key are part of the limit
CHECKPOINT_BYTES: Final = 32 * MIB
PRODUCER_CHECKPOINT_BYTES: Final = 256 * MIB
LATER_BYTES: Final = 256 * 1024
"""Documents written while somebody is stopped: together more than the relay's bound leaves free, so
that whoever keeps them in memory is found."""


class World:
    """A producer, a relay behind it, and the samplers of both."""

    def __init__(self, folder: Path, stack: ExitStack, vbuckets: int) -> None:
        self.folder, self.vbuckets = folder, vbuckets
        self._stack = stack
        words = ["--vbuckets", str(vbuckets), "--port", "0", "--data", str(folder / "producer")]
        self.producer = Serving(USER, *words)
        stack.callback(self.producer.kill)
        self.feed = stack.enter_context(closing(Feed(self.producer.seeds)))
        self.consumers = stack.enter_context(RawConsumers())
        self.samplers: dict[str, MemorySampler] = {}
        self.sample("producer", self.producer.process.pid)

    def sample(self, name: str, pid: int) -> None:
        self.samplers[name] = self._stack.enter_context(MemorySampler(pid))

    def relay(self, *words: str, window_bytes: int = 10 * MIB) -> Relaying:
        more = ["--memory-quota", str(CHECKPOINT_BYTES), "--window-bytes", str(window_bytes)]
        relay = relaying(self.producer, self.folder / "relay", *more, *words)
        found = self._stack.enter_context(relay)
        self._window_bytes = window_bytes
        self.sample("relay", found.process.pid)
        return found

    def assert_bounded(self, load: Load) -> None:
        """Neither took more than its formula says."""
        settings = RelaySettings(
            upstream=("localhost:1",),
            bucket="default",
            credentials=CREDENTIALS,
            data_folder=self.folder,
            window_bytes=self._window_bytes,
            checkpoint_quota_bytes=CHECKPOINT_BYTES,
        )
        upstream = Load(load.documents, connections=3, largest_bytes=load.largest_bytes)
        bounds = {
            "relay": relay_bytes(settings, load),
            "producer": producer_bytes(
                upstream,
                checkpoint_quota_bytes=PRODUCER_CHECKPOINT_BYTES,
                values_bytes=self.feed.written_bytes,
            ),
        }
        for name, sampler in self.samplers.items():
            peak, bound = sampler.peak_bytes, bounds[name]
            print(f"{name}: peak {peak // MIB} MiB, bound {bound // MIB} MiB")
            assert 0 < peak <= bound, name


MakeWorld = Callable[[int], World]


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorld]:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    with ExitStack() as stack:
        yield lambda vbuckets: World(tmp_path, stack, vbuckets)


def test_20_mib_documents_through_windows_of_1_mib(make_world: MakeWorld) -> None:
    world = make_world(4)
    seed = world.relay(window_bytes=MIB).seed
    world.feed.write(200, 1_000, "small")
    for number in range(2):
        world.consumers.add(seed, f"lake-{number}", 4, MIB)
    stopped = world.consumers.add(seed, "stopped", 4, MIB, stopped=True)
    for number in range(4):
        world.feed.write(1, LARGE_BYTES, f"large-{number}")
    world.consumers.run_to(world.feed)
    world.consumers.go_on([stopped])
    world.consumers.run_to(world.feed)
    world.assert_bounded(Load(len(world.feed.hashes), connections=3, streams=12))


@pytest.mark.parametrize("fc", ["max", "min,t:1s", "tagged,g:7,t:1s"])
def test_100_of_200_consumers_are_stopped(make_world: MakeWorld, fc: str) -> None:
    """Whoever goes on gets everything, and half of the stopped ones do later."""
    world, document_bytes = make_world(2), 64 * 1024
    seed = world.relay("--fc", fc, window_bytes=MIB).seed
    stopped = []
    for number in range(100):
        world.consumers.add(seed, f"running-{number}#gtag=7", 2, MIB)
        # One of two has no window: only TCP stops what is sent.
        window_bytes = MIB * (number % 2)
        name = f"stopped-{number}#gtag={7 + number % 2}"
        stopped.append(world.consumers.add(seed, name, 2, window_bytes, stopped=True))
    for turn in range(2):
        world.feed.write(25, document_bytes, f"turn{turn}")
        world.consumers.run_to(world.feed)
    world.consumers.go_on(stopped[:50])
    world.consumers.run_to(world.feed)
    load = Load(len(world.feed.hashes), connections=200, streams=400, largest_bytes=document_bytes)
    world.assert_bounded(load)


def test_1024_streams_on_each_of_three_connections(make_world: MakeWorld) -> None:
    world = make_world(1024)
    seed = world.relay().seed
    world.feed.write(1_100, 1_000)
    for number in range(3):
        world.consumers.add(seed, f"lake-{number}", 1024, MIB, stopped=number == 2)
    world.consumers.run_to(world.feed)
    assert all(len(each.opened) == 1024 for each in world.consumers.running)
    world.feed.write(500, LATER_BYTES, "more")
    world.consumers.run_to(world.feed)
    world.consumers.go_on([world.consumers.all[2]])
    world.consumers.run_to(world.feed)
    load = Load(len(world.feed.hashes), connections=3, streams=3072, largest_bytes=LATER_BYTES)
    world.assert_bounded(load)


@pytest.mark.parametrize(
    ("fc", "stopped_seconds"), [("max", STOPPED_SECONDS), ("min,t:600s", 60.0)]
)
def test_a_sink_that_stops(make_world: MakeWorld, fc: str, stopped_seconds: float) -> None:
    """Under ``min`` the cluster waits a minute for it, the relay holds a window; nothing grows."""
    world = make_world(2)
    seed = world.relay("--fc", fc, window_bytes=MIB).seed
    world.consumers.add(seed, "lake", 2, MIB)
    sink = world.consumers.add(seed, "sink", 2, MIB)
    world.feed.write(10, LATER_BYTES)
    world.consumers.run_to(world.feed)
    world.consumers.stop(sink)
    world.feed.write(600, LATER_BYTES, "later")
    running, is_max = world.consumers.running[0], fc == "max"
    until = monotonic() + stopped_seconds
    world.consumers.run(lambda: monotonic() >= until, stopped_seconds + 30)
    if is_max:
        world.consumers.run_to(world.feed)
    else:
        # Two windows, what the system's buffers hold, and a message.
        assert len(running.hashes) < 60
    world.consumers.go_on([sink])
    world.consumers.run_to(world.feed)
    load = Load(len(world.feed.hashes), connections=2, streams=4, largest_bytes=LATER_BYTES)
    world.assert_bounded(load)


def test_hostile_consumers_cost_what_the_formula_says(make_world: MakeWorld) -> None:
    """Each sends one kind of garbage or requests, and reads nothing; another gets everything."""
    world = make_world(4)
    seed = world.relay(window_bytes=MIB).seed
    world.feed.write(200, 16 * 1024)
    world.consumers.add(seed, "lake", 4, MIB)
    world.consumers.run_to(world.feed)
    random = Random(SEED)
    with ExitStack() as stack:
        for body, opcode, vbuckets, _ in UNREAD_ANSWERS:
            for number in range(2):
                bad = stack.enter_context(RawClient(seed)).log_in(user=USER, password=PASSWORD)
                bad.open_dcp(b"bad-%d-%d" % (opcode, number))
                send_until_stuck(bad, in_blocks(requests(body, opcode, vbuckets)))
        for garbage in GARBAGE * 4:
            bad = stack.enter_context(RawClient(seed)).log_in(user=USER, password=PASSWORD)
            send_until_stuck(bad, iter([garbage(random)]))
        world.feed.write(100, 16 * 1024, "later")
        world.consumers.run_to(world.feed)
        clients = 1 + 2 * len(UNREAD_ANSWERS) + 4 * len(GARBAGE)
    load = Load(len(world.feed.hashes), connections=clients, streams=4 * clients)
    world.assert_bounded(load)

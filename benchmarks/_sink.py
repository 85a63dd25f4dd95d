"""A sink in a process of its own: our client, which takes what comes at a given speed.

It holds its speed by sleeping before it releases a delivery. The clock begins with the first row.
Its window is a task's: that of one of ``connections`` which share one executor's quota.
"""

import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, Self

from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.settings import ConnectionSettings, ConsumerSettings
from dcp.client.vbucket_track import StreamStart
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.events import Items
from dcp.protocol.position import Position
from dcp.setting_keys import section_of

_START_SECONDS: Final = 180.0
"""Long, as the machine may be busy."""
_LONGEST_RUN_SECONDS: Final = 300.0
_WAIT_SECONDS: Final = 0.05
_SAMPLE_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """What a sink reads, and how fast: ``bytes_per_second`` 0 is as fast as it can.

    It ends after ``documents``, after ``seconds``, or when it is told to.
    """

    name: str
    seeds: tuple[str, ...]
    user: str
    password: str
    vbuckets: int
    flow: FlowControlSettings
    connections: int
    bytes_per_second: float
    seconds: float
    documents: int


@dataclass(frozen=True, slots=True)
class SinkResult:
    """What a sink got, between its first row and its last; its memory over that at the start."""

    frame_bytes: int
    seconds: float
    grown_bytes: int

    @property
    def bytes_per_second(self) -> float:
        return self.frame_bytes / self.seconds if self.seconds else 0.0


class Sink:
    """A running sink. It connects with ``go``, and stays connected until ``close``."""

    def __init__(self, spec: SinkSpec) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pipe, theirs = context.Pipe()
        self._name = spec.name
        self._process: BaseProcess = context.Process(target=_run, args=(theirs, spec), daemon=True)
        self._process.start()
        theirs.close()
        self._expect("ready", _START_SECONDS)

    def go(self) -> Self:
        """Let it connect."""
        self._pipe.send("go")
        return self

    def wait_until_streaming(self) -> None:
        """Return when it has all of its streams."""
        self._expect("streaming", _START_SECONDS)

    def stop(self) -> None:
        """End its measurement."""
        self._pipe.send("stop")

    def result(self) -> SinkResult:
        """Return what it measured; wait for the end of that."""
        while not isinstance(found := self._receive(_LONGEST_RUN_SECONDS), SinkResult):
            pass
        return found

    def close(self) -> None:
        """Let it disconnect, and end it."""
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _expect(self, word: str, seconds: float) -> None:
        found = self._receive(seconds)
        if found != word:
            raise SystemExit(f"sink {self._name}: found {found!r}, expected {word!r}")

    def _receive(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise SystemExit(f"sink {self._name}: nothing for {seconds:g} s")
        try:
            return self._pipe.recv()
        except EOFError:
            raise SystemExit(f"sink {self._name} has ended") from None


def _run(pipe: "Connection[Any, Any]", spec: SinkSpec) -> None:
    pipe.send("ready")
    pipe.recv()
    memory = _Memory()
    address = NodeAddress.parse(spec.seeds[0])
    streams = [StreamStart(v, address, Position.beginning()) for v in range(spec.vbuckets)]
    credentials = Credentials(spec.user, Secret(spec.password))
    settings = ConsumerSettings(_connection(spec.flow, spec.connections))
    with Consumer(streams, spec.seeds, settings, credentials, spec.name) as consumer:
        frame_bytes, seconds = _take(consumer, pipe, spec, memory)
        pipe.send(SinkResult(frame_bytes, seconds, memory.grown_bytes))
        _wait_for_end(pipe)


class _Memory:
    """The most memory of this process, sampled; without files, which come when first used."""

    def __init__(self) -> None:
        self._first = self._most = _anonymous_bytes()
        self._look_at = 0.0

    def look(self) -> None:
        """Take a sample, if it is time for one."""
        if (now := monotonic()) >= self._look_at:
            self._look_at = now + _SAMPLE_SECONDS
            self._most = max(self._most, _anonymous_bytes())

    @property
    def grown_bytes(self) -> int:
        return self._most - self._first


def _take(
    consumer: Consumer, pipe: "Connection[Any, Any]", spec: SinkSpec, memory: _Memory
) -> tuple[int, float]:
    """Take rows until the end; return their bytes, and the time from the first to the last."""
    began = ended = 0.0
    frame_bytes = documents = 0
    is_streaming = False
    while not pipe.poll():
        delivery = consumer.next(_WAIT_SECONDS)
        if not is_streaming and all(map(consumer.is_streaming, range(spec.vbuckets))):
            is_streaming = True
            pipe.send("streaming")
        if delivery is not None:
            rows = sum(len(e.columns.seqno) for e in delivery.events if isinstance(e, Items))
            began = began or (monotonic() if rows else 0.0)
            documents += rows
            if began:
                frame_bytes += delivery.frame_bytes
            if spec.bytes_per_second and began:
                sleep(max(0.0, began + frame_bytes / spec.bytes_per_second - monotonic()))
            memory.look()
            delivery.release()
            ended = monotonic() if rows else ended
        if began and monotonic() > began + spec.seconds:
            break
        if spec.documents and documents >= spec.documents:
            break
    return frame_bytes, ended - began


def _connection(flow: FlowControlSettings, connections: int) -> ConnectionSettings:
    return section_of(
        ConnectionSettings,
        flow,
        bucket="default",
        window_bytes=flow.planned_window_bytes(connections),
        unread_limit_bytes=flow.window_bytes,
        bootstrap_timeout_seconds=_START_SECONDS,
    )


def _wait_for_end(pipe: "Connection[Any, Any]") -> None:
    try:
        while True:
            pipe.recv()
    except EOFError:
        pass


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("Linux tells RssAnon")

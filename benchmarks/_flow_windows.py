"""Flow control of consumers, by window and sink speed: one connection, and many by policy."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from time import sleep
from typing import Final

from benchmarks._flow_rows import MIB, Row
from benchmarks._producer import PASSWORD, USER, BenchProducer
from benchmarks._sink import Sink, SinkResult, SinkSpec
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.protocol.window_policies import WindowPolicy

_LOOK_SECONDS: Final = 0.05
_BATCH_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured; speeds in MB/s, 0 is unlimited."""

    windows_bytes: tuple[int, ...]
    window_speeds: tuple[float, ...]
    connections: tuple[int, ...]
    policy_speeds: tuple[float, ...]
    policy_windows_bytes: tuple[int, ...]
    policy_sink_speeds: tuple[float, ...]
    together: int
    """How many connections share the quota where windows and the sinks' speeds differ."""
    seconds: float


def limit_name(speed: float) -> str:
    """Return how a sink's speed is called."""
    return f"{speed:g} MB/s" if speed else "unlimited"


def by_window(source: BenchProducer, grid: Grid) -> Iterator[Row]:
    """Measure one connection."""
    for speed in grid.window_speeds:
        for window_bytes in grid.windows_bytes:
            batch_bytes = min(_BATCH_BYTES, window_bytes // 2)
            flow = FlowControlSettings(window_bytes=window_bytes, batch_bytes=batch_bytes)
            name = limit_name(speed)
            yield _measure(source, flow, 1, speed, grid.seconds).row(
                "window", name, window_bytes / 1024, name
            )


def by_policy(source: BenchProducer, grid: Grid) -> Iterator[Row]:
    """Measure several connections, each of a process, that share an executor's quota of 1 GiB."""
    for speed in grid.policy_speeds:
        for count in grid.connections:
            for policy in WindowPolicy:
                measured = _measure(source, _flow_of(policy), count, speed, grid.seconds)
                yield measured.row("policy", policy.value, count, limit_name(speed))


def by_policy_and_window(source: BenchProducer, grid: Grid) -> Iterator[Row]:
    """Measure the policies where all their numbers are larger or smaller, in proportion."""
    for window_bytes in grid.policy_windows_bytes:
        for policy in WindowPolicy:
            flow = _flow_of(policy, window_bytes)
            measured = _measure(source, flow, grid.together, 0.0, grid.seconds)
            yield measured.row(
                "policy by window", policy.value, window_bytes / 1024, limit_name(0.0)
            )


def by_policy_and_speed(source: BenchProducer, grid: Grid) -> Iterator[Row]:
    """Measure the policies with slower and faster sinks; the speed is that of each."""
    for speed in grid.policy_sink_speeds:
        for policy in WindowPolicy:
            measured = _measure(source, _flow_of(policy), grid.together, speed, grid.seconds)
            yield measured.row("policy by speed", policy.value, speed, limit_name(speed))


def _flow_of(policy: WindowPolicy, window_bytes: int | None = None) -> FlowControlSettings:
    """Return a policy with the defaults, or with all of them in proportion to this window."""
    usual = FlowControlSettings()
    window_bytes = window_bytes or usual.window_bytes
    scale = window_bytes / usual.window_bytes
    return FlowControlSettings(
        window_policy=policy,
        allow_no_flow_control=policy is WindowPolicy.NONE,
        window_bytes=window_bytes,
        window_most_bytes=int(usual.window_most_bytes * scale),
        window_quota_bytes=int(usual.window_quota_bytes * scale),
        batch_bytes=min(usual.batch_bytes, window_bytes // 2),
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    results: Sequence[SinkResult]
    outstanding_bytes: int | None

    def row(self, part: str, line: str, x: float, sink_limit: str) -> Row:
        outstanding = self.outstanding_bytes
        return Row(
            part,
            line,
            x,
            sink_limit,
            sum(result.bytes_per_second for result in self.results) / 1e6,
            None if outstanding is None else outstanding / MIB,
            sum(result.grown_bytes for result in self.results) / MIB,
        )


def _measure(
    source: BenchProducer, flow: FlowControlSettings, count: int, speed: float, seconds: float
) -> _Measured:
    with ExitStack() as stack:
        sinks = [
            stack.enter_context(
                closing(
                    Sink(
                        SinkSpec(
                            f"sink-{number}",
                            source.seeds,
                            USER,
                            PASSWORD,
                            source.vbuckets,
                            flow,
                            count,
                            speed * 1e6,
                            seconds,
                            source.documents,
                        )
                    )
                )
            )
            for number in range(count)
        ]
        for sink in sinks:
            sink.go()
        results = [sink.result() for sink in sinks]
        # Nobody acknowledges without a window: what is outstanding there is all that was sent.
        most = source.most_outstanding() if flow.fixed_window_bytes else None
        if most is not None and len(most) != count:
            raise SystemExit(f"the producer knows {sorted(most)}, expected {count} connections")
    _wait_until_gone(source)
    return _Measured(results, None if most is None else sum(most.values()))


def _wait_until_gone(source: BenchProducer) -> None:
    while source.most_outstanding():
        sleep(_LOOK_SECONDS)

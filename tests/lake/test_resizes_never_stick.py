"""A search for windows that change at a moment from which nothing moves any more.

The clock stands: whatever only time would set free counts as stuck. One task reads from a few
nodes into one batch; other tasks of its executor come and go, so that the policy resizes all
windows; windows of streams are resized, switched off and on as well. Both ends are the real ones
(``flow_ends.py``), and so are the policies. Messages, CONTROLs, acks and answers are on their way
for as long as the search likes.
"""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dcp.client.stream_window_sizes import StreamWindowSizes
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.window_bounds import floored, policy_settings, windows_one_by_one
from dcp.protocol.receive_window import ReceiveWindow
from dcp.protocol.window_policies import WindowPolicies
from tests.lake.flow_ends import LEAST_MESSAGE, Connection, Task

NODES = 2
LARGEST_MESSAGE = 20_000
STREAM_WINDOWS = (0, 4096, 300, 30_000)


class Executor:
    """One task and its connections, in an executor with others in it."""

    def __init__(self, flow: FlowControlSettings, messages: list[list[list[int]]]) -> None:
        self.policies = WindowPolicies(policy_settings(flow), flow.window_quota_bytes)
        self.flow = flow
        self.others: list[str] = []
        self.count = 0
        self.task = Task(flow)
        names = [f"own {number}" for number in range(len(messages))]
        for name in names:
            self.policies.connect(name)
        self.sizes = {name: self.size(name) for name in names}
        self.widest = dict(self.sizes)
        for number, name in enumerate(names):
            own = Connection(
                name, 8 * number, messages[number], flow, self.size(name), self.task.handover
            )
            self.task.connections.append(own)

    @property
    def opaque(self) -> int:
        """The only stream."""
        [opaque] = self.task.connections[0].left
        return opaque

    def size(self, name: str) -> int:
        return floored(self.flow, self.policies.sizes[name])

    def step(self, what: str, number: int) -> None:
        connections = self.task.connections
        connection = connections[number % len(connections)]
        match what:
            case "send":
                connection.send(number)
            case "producer":
                connection.producer_takes()
            case "reader":
                connection.reader_turns(1 + number)
            case "task":
                self.task.turn()
            case "refuse":
                connection.refusals += 1
            case "come":
                self.count += 1
                self.others.append(f"other {self.count}")
                self.policies.connect(self.others[-1])
            case "go" if self.others:
                self.policies.disconnect(self.others.pop(number % len(self.others)))
            case "look":
                self.look()
            case "hurry":
                self.task.readers_hurry = number % 2 == 0
            case "streams":
                for each in connections:
                    each.resize_streams(STREAM_WINDOWS[number])

    def look(self) -> None:
        for connection in self.task.connections:
            name, size = connection.name, self.size(connection.name)
            if self.sizes[name] != size:
                self.sizes[name] = size
                self.widest[name] = max(self.widest[name], size)
                connection.resize(size)

    def check(self) -> None:
        for each in self.task.connections:
            each.check()
            assert each.flow.outstanding_bytes < self.widest[each.name] + LARGEST_MESSAGE


POLICIES = ["static", "dynamic", "aggressive", "ratio"]


@st.composite
def flows(draw: st.DrawFn) -> FlowControlSettings:
    """Settings that are accepted, with windows of a few messages."""
    policy = draw(st.sampled_from(POLICIES))
    ack = draw(st.sampled_from([0.2, 0.5, 0.9]) | st.floats(0.01, 0.9))
    least = draw(st.integers(max(4096, int(1100 / (1 - ack))), 20_000))
    shared = draw(st.floats(0.01, 100))
    quota = draw(st.integers(1 << 20, 1 << 22))
    if policy == "ratio":  # one connection's window must hold a batch
        shared = draw(st.floats(100 * max(4096, least) / quota, 10))
    flow = FlowControlSettings(
        window_policy=policy,
        window_bytes=least,
        window_most_bytes=draw(st.integers(least, 4 * least)),
        window_quota_bytes=quota,
        window_percent=draw(st.floats(0.01, 5)),
        window_threshold_percent=draw(st.floats(0.01, 20)),
        window_shared_percent=shared,
        ack_fraction=ack,
        batch_bytes=1024,
        batch_rows=draw(st.sampled_from([1, 3, 10_000])),
        stream_window_bytes=draw(st.sampled_from([0, 4096])),
    )
    window = windows_one_by_one(flow, 1)[0] if policy == "ratio" else least
    most = int(window * (1 - ack))
    batch = draw(st.just(most) | st.integers(1024, most))
    return replace(flow, batch_bytes=batch)


STEPS = ["send", "producer", "reader", "task", "come", "go", "look", "refuse", "streams", "hurry"]
MESSAGES = st.lists(
    st.integers(LEAST_MESSAGE, 400) | st.integers(LEAST_MESSAGE, LARGEST_MESSAGE),
    min_size=1,
    max_size=25,
)


@given(
    flows(),
    st.lists(st.lists(MESSAGES, min_size=1, max_size=2), min_size=1, max_size=NODES),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=120),
)
@example(  # a refusal that is heard after a later wish
    FlowControlSettings(
        window_policy="ratio",
        window_bytes=4096,
        window_most_bytes=4096,
        window_quota_bytes=1 << 20,
        window_shared_percent=1.0,
        batch_rows=1,
        batch_bytes=8388,
    ),
    [[[128]]],
    [(what, 0) for what in ("come", "look", "refuse", "producer", "reader", "come", "look")],
)
@settings(max_examples=200)
def test_no_resize_leaves_anything_stuck(
    flow: FlowControlSettings, messages: list[list[list[int]]], steps: list[tuple[str, int]]
) -> None:
    executor = Executor(flow, messages)
    for what, number in steps:
        executor.step(what, number)
        executor.check()
    executor.task.come_to_rest()
    executor.check()
    for each in executor.task.connections:
        assert not any(each.left.values()), f"{each.name} waits for ever with {each.left}"
        assert each.flow.window_bytes == each.window_bytes == each.machine.window_bytes
        assert each.streams.window_bytes == each.machine.stream_window_bytes
        assert (each.stream_windows.least_bytes or 0) == each.streams.window_bytes


@pytest.mark.parametrize("forgotten", ["the batch", "the threshold"])
def test_the_search_finds_what_does_not_follow_a_window(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch or acks that go on by the larger window wait for what never comes."""
    flow = FlowControlSettings(
        window_policy="aggressive",
        window_bytes=4096,
        window_most_bytes=20_000,
        window_quota_bytes=1 << 20,
        batch_bytes=3000,
    )
    executor = Executor(flow, [[[400] * 60]])
    assert executor.size("own 0") == 20_000
    if forgotten == "the batch":
        monkeypatch.setattr(FlowControlSettings, "flush_bytes", lambda *_: 8000)
    else:
        monkeypatch.setattr(ReceiveWindow, "resized", lambda account, _: account)
    for _ in range(20):
        executor.step("come", 0)
    executor.step("look", 0)
    executor.task.come_to_rest()
    assert executor.task.connections[0].left[executor.opaque]


@pytest.mark.parametrize("begins_with", [0, 10_000])
@pytest.mark.parametrize("forgets", [False, True])
def test_a_batch_follows_the_windows_of_streams(
    begins_with: int, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes on by the window of before waits for a stream that has filled its new one."""
    flow = FlowControlSettings(
        window_bytes=1 << 20, batch_bytes=1 << 17, stream_window_bytes=begins_with
    )
    executor = Executor(flow, [[[400] * 60]])
    [connection] = executor.task.connections
    if forgets:
        monkeypatch.setattr(StreamWindowSizes, "least_bytes", begins_with or None)
    for _ in range(5):
        connection.send()
    connection.reader_turns(10)
    executor.step("streams", 1)
    executor.task.come_to_rest()
    assert bool(connection.left[executor.opaque]) is forgets


def test_refused_windows_of_streams_hold_up_nothing() -> None:
    """Neither those that are asked for at first, nor what a CONTROL asks for."""
    flow = FlowControlSettings(window_bytes=1 << 20, batch_bytes=1 << 17)
    executor = Executor(flow, [[[400] * 60]])
    executor.step("refuse", 0)
    executor.step("streams", 1)
    executor.task.come_to_rest()
    [connection] = executor.task.connections
    assert connection.stream_windows.least_bytes is None
    assert not connection.left[executor.opaque]
    assert not executor.task.gathering.is_empty, "nothing was handed over early"

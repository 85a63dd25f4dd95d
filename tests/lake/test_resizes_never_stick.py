"""A search for windows that change at a moment from which nothing moves any more.

The clock stands: whatever only time would set free counts as stuck. One task reads from a few
nodes into one batch; other tasks of its executor come and go, so that the policy resizes all
windows. The policies, the accounts of both sides, the CONTROL and its answers, the batch's limit
and the brake on reading are the real ones. Messages, CONTROLs, acks and answers are on their way
for as long as the search likes.
"""

from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.client.reader_credits import ReaderCredits
from dcp.client.settings import ConnectionSettings
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.window_bounds import floored, policy_settings, windows_one_by_one
from dcp.producer.flow_control import FlowControl
from dcp.protocol.flow_control import FlowSettings, ReceiveWindow
from dcp.protocol.window_policies import WindowPolicies
from dcp.protocol.window_resize import WindowResize

NODES = 2
LARGEST_MESSAGE = 20_000


@dataclass
class Connection:
    """Both ends of one connection, and what is on its way between them."""

    name: str
    left: list[int]
    window: ReceiveWindow
    resize: WindowResize
    credits: ReaderCredits
    refusals: int = 0
    flow: FlowControl = field(default_factory=FlowControl)
    to_producer: deque[tuple[str, int]] = field(default_factory=deque)
    to_consumer: deque[tuple[str, int]] = field(default_factory=deque)
    held: int = 0
    """Messages that the batch holds, or that wait for it."""
    widest: int = 0
    believed: int = 0
    """The window as the task knows it."""

    @classmethod
    def of(cls, name: str, left: list[int], flow: FlowControlSettings, size: int) -> "Connection":
        chosen = ConnectionSettings(
            "default", window_bytes=size, max_frame_bytes=LARGEST_MESSAGE, ack_seconds=60.0
        )
        account = ReceiveWindow(FlowSettings(size, flow.ack_fraction, 60.0), 0.0)
        made = cls(name, left, account, WindowResize(size, size), ReaderCredits(chosen))
        made.widest = made.believed = size
        made.flow.set_window(size)
        return made

    # The producer

    def send(self) -> bool:
        if self.left and self.flow.room_bytes > 0:
            message = self.left.pop()
            self.flow.charge(message)
            self.to_consumer.append(("message", message))
            return True
        return False

    def producer_takes(self) -> bool:
        if not self.to_producer:
            return False
        what, value = self.to_producer.popleft()
        if what == "ack":
            assert value <= self.flow.outstanding_bytes, "acknowledged more than was sent"
            self.flow.acknowledge(value)
        elif self.refusals:
            self.refusals -= 1
            self.to_consumer.append(("refused", value))
        else:
            self.flow.set_window(value)
            self.to_consumer.append(("accepted", value))
        return True

    # The consumer

    def reader_takes(self) -> bool:
        """Read one thing; the reader must never stop because of a node that keeps to its window."""
        self.credits.follow(self.window, self.resize.most_bytes, 0.0)
        assert self.credits.handover.account.is_open, "a brake against the innocent"
        if not self.to_consumer:
            return False
        what, value = self.to_consumer.popleft()
        if what == "message":
            self.window = self.window.charge(value)
            self.held += value
            self.credits.handover.take(value, 0.0)
        elif what == "accepted":
            self.resize, self.window = self.resize.accepted(self.window)
        else:
            self.resize, self.window = self.resize.refused(self.window)
        self.say()
        if what == "refused" and self.resize.asked_bytes is None:
            self.believed = self.resize.told_bytes
        return True

    def wish(self, window_bytes: int) -> None:
        self.widest = max(self.widest, window_bytes)
        self.believed = window_bytes
        self.resize = self.resize.want(window_bytes)
        self.say()

    def release(self) -> None:
        self.window = self.window.release(self.held)
        self.credits.handover.release(self.held, 0.0)
        self.held = 0
        self.say()

    def say(self) -> None:
        self.resize, self.window, window_bytes = self.resize.ask(self.window)
        if window_bytes is not None:
            self.to_producer.append(("control", window_bytes))
        self.window, acked_bytes = self.window.acknowledge(0.0)
        if acked_bytes:
            self.to_producer.append(("ack", acked_bytes))


class Task:
    """One task: its connections, its batch, and an executor with others in it."""

    def __init__(self, flow: FlowControlSettings, messages: list[list[int]]) -> None:
        self.flow = flow
        self.policies = WindowPolicies(policy_settings(flow), flow.window_quota_bytes)
        self.others: list[str] = []
        self.count = 0
        names = [f"own {number}" for number in range(len(messages))]
        for name in names:
            self.policies.connect(name)
        self.sizes = {name: self.size(name) for name in names}
        self.connections = [
            Connection.of(name, list(left), flow, self.size(name))
            for name, left in zip(names, messages, strict=True)
        ]

    def size(self, name: str) -> int:
        return floored(self.flow, self.policies.sizes[name])

    def step(self, what: str, number: int) -> None:
        connection = self.connections[number % len(self.connections)]
        match what:
            case "send":
                connection.send()
            case "producer":
                connection.producer_takes()
            case "reader":
                connection.reader_takes()
            case "batch":
                self.hand_over()
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

    def look(self) -> None:
        for connection in self.connections:
            size = self.size(connection.name)
            if self.sizes[connection.name] != size:
                self.sizes[connection.name] = size
                connection.wish(size)

    def hand_over(self) -> bool:
        """Release all if the batch is due."""
        least = min(each.believed for each in self.connections)
        held = sum(each.held for each in self.connections)
        if held < self.flow.flush_bytes(least):
            return False
        for each in self.connections:
            each.release()
        return True

    def come_to_rest(self) -> None:
        """Do all that needs no time, until nothing is left of it."""
        moved = True
        while moved:
            moved = self.hand_over()
            for each in self.connections:
                moved |= each.send()
                moved |= each.producer_takes()
                moved |= each.reader_takes()

    def check(self) -> None:
        for each in self.connections:
            on_its_way = sum(value for what, value in each.to_consumer if what == "message")
            acks = sum(value for what, value in each.to_producer if what == "ack")
            outstanding = each.flow.outstanding_bytes
            assert outstanding == each.window.unacked_bytes + on_its_way + acks
            assert outstanding < each.widest + LARGEST_MESSAGE


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
    )
    window = windows_one_by_one(flow, 1)[0] if policy == "ratio" else least
    most = int(window * (1 - ack))
    batch = draw(st.just(most) | st.integers(1024, most))
    return replace(flow, batch_bytes=batch)


STEPS = ["send", "producer", "reader", "batch", "come", "go", "look", "refuse"]
MESSAGES = st.lists(
    st.integers(24, 400) | st.integers(24, LARGEST_MESSAGE), min_size=1, max_size=60
)


@given(
    flows(),
    st.lists(MESSAGES, min_size=1, max_size=NODES),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=120),
)
@settings(max_examples=400)
def test_no_resize_leaves_anything_stuck(
    flow: FlowControlSettings, messages: list[list[int]], steps: list[tuple[str, int]]
) -> None:
    task = Task(flow, messages)
    for what, number in steps:
        task.step(what, number)
        task.check()
    task.come_to_rest()
    task.check()
    for each in task.connections:
        assert not each.left, f"{each.name} waits for ever with {len(each.left)} messages"
        assert each.flow.window_bytes == each.resize.told_bytes == each.window.settings.window_bytes


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
    task = Task(flow, [[400] * 60])
    assert task.size("own 0") == 20_000
    if forgotten == "the batch":
        monkeypatch.setattr(FlowControlSettings, "flush_bytes", lambda *_: 8000)
    else:
        monkeypatch.setattr(ReceiveWindow, "resized", lambda account, _: account)
    for _ in range(20):
        task.step("come", 0)
    task.step("look", 0)
    task.come_to_rest()
    assert task.connections[0].left

"""A search for windows that change at a moment from which nothing moves any more.

The clock stands: whatever only time would set free counts as stuck. One task reads from a few nodes
into one batch; windows of connections and of streams are resized, refused, switched off and on.
Both ends are the real ones (``flow_ends.py``). Messages, CONTROLs, acks and answers are on their
way for as long as the search likes.
"""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.protocol.window import Window
from dcp.protocol.window_policies import FlowSettings
from tests.lake.flow_ends import LEAST_MESSAGE, Connection, Task, flows

NODES = 2
LARGEST_MESSAGE = 20_000
WINDOWS = (4096, 300, 30_000, 0)
"""Other sizes; 0 switches flow control off."""


class Session:
    """One task and its connections, step by step."""

    def __init__(self, flow: FlowControlSettings, messages: list[list[list[int]]]) -> None:
        self.task = Task(flow)
        self.connections = [self.task.add(each, flow, flow.window_bytes) for each in messages]
        self.widest = [flow.window_bytes] * len(messages)

    def step(self, what: str, number: int) -> None:
        index = number % len(self.connections)
        connection = self.connections[index]
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
            case "resize":
                self.widest[index] = max(self.widest[index], WINDOWS[number])
                connection.resize(WINDOWS[number])
            case "hurry":
                connection.reader_hurries = not connection.reader_hurries
            case "streams":
                for each in self.connections:
                    each.resize_streams(WINDOWS[number])

    def check(self) -> None:
        for each, widest in zip(self.connections, self.widest, strict=True):
            each.check()
            if not each.was_off:
                assert each.flow.outstanding_bytes < widest + LARGEST_MESSAGE


STEPS = ["send", "producer", "reader", "task", "resize", "refuse", "streams", "hurry"]
OFF, RESIZED, STREAMS_OFF = (
    [first, ("producer", 0), ("reader", 3)]
    for first in (("resize", 3), ("resize", 0), ("streams", 3))
)
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
    FlowControlSettings(window_bytes=10_485, batch_rows=1, batch_bytes=8388),
    [[[128]]],
    [("refuse", 0), *RESIZED, ("resize", 0)],
)
@example(  # windows of streams switched off twice: the producer forgets twice
    FlowControlSettings(window_bytes=10_000, batch_bytes=5000, stream_window_bytes=4096),
    [[[400] * 20]],
    [*STREAMS_OFF, *[("send", 0)] * 9, *[("reader", 3)] * 3, *STREAMS_OFF, ("streams", 0)],
)
@example(  # a window that was off, and is refused: the producer has not forgotten what it sent
    FlowControlSettings(window_bytes=10_000, batch_bytes=5000),
    [[[400] * 60]],
    [*OFF, *[("send", 0)] * 12, *[("reader", 3)] * 4, ("refuse", 0), *RESIZED, ("resize", 0)],
)
@settings(max_examples=200)
def test_no_resize_leaves_anything_stuck(
    flow: FlowControlSettings, messages: list[list[list[int]]], steps: list[tuple[str, int]]
) -> None:
    session = Session(flow, messages)
    for what, number in steps:
        session.step(what, number)
        session.check()
    session.task.require_all_back()
    for each in session.connections:
        assert each.flow.window_bytes == each.protocol.flow.connection.size_bytes
        assert each.streams.window_bytes == each.protocol.flow.stream_window_bytes


def small(stream_window: int = 0) -> tuple[Session, Connection]:
    """Return a session whose windows are smaller than a batch once they are resized."""
    flow = FlowControlSettings(
        window_bytes=1 << 20, batch_bytes=1 << 17, stream_window_bytes=stream_window
    )
    session = Session(flow, [[[400] * 60]])
    return session, session.connections[0]


@pytest.mark.parametrize("what", ["resize", "streams"])
@pytest.mark.parametrize("begins_with", [0, 10_000])
@pytest.mark.parametrize("forgotten", ["", "the batch", "the threshold"])
def test_the_search_finds_what_does_not_follow_a_window(
    what: str, begins_with: int, forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch or acks that go on by the window of before wait for what never comes."""
    session, connection = small(begins_with)
    if forgotten == "the batch":
        monkeypatch.setattr(FlowControlSettings, "flush_bytes", lambda *_: 1 << 17)
    elif forgotten == "the threshold":
        due_at = Window.due_at

        def by_the_first(window: Window, settings: FlowSettings) -> float:
            size, window.size_bytes = window.size_bytes, 1 << 20
            try:
                return due_at(window, settings)
            finally:
                window.size_bytes = size

        monkeypatch.setattr(Window, "due_at", by_the_first)
    for _ in range(5):
        connection.send()
    connection.reader_turns(10)
    session.step(what, 0)
    session.task.come_to_rest()
    assert any(connection.left.values()) is bool(forgotten)


def test_refused_windows_of_streams_hold_up_nothing() -> None:
    """Neither those that are asked for at first, nor what a CONTROL asks for."""
    session, connection = small()
    session.step("refuse", 0)
    session.step("streams", 0)
    session.task.come_to_rest()
    assert not any(connection.left.values())
    assert not connection.protocol.flow.streams
    assert not session.task.flusher.is_empty, "nothing was handed over early"
    session.task.require_all_back()

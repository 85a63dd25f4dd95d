"""A search for windows, batches and acknowledgements that wait for each other for ever.

The clock stands: whatever only time would set free counts as stuck. Both ends are the real ones but
for sockets and threads (``flow_ends.py``); between them there is only the order of things, which is
searched too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import pytest
from hypothesis import example, given, settings, target
from hypothesis import strategies as st

from dcp.client.delivery import Receipt
from dcp.errors import ConfigError
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.receive.batch_flusher import BatchFlusher
from dcp.protocol.window import Charge, FlowControl, Window
from tests.lake.flow_ends import LEAST_MESSAGE, Connection, Task, flows


@dataclass(frozen=True, slots=True)
class Unchecked(FlowControlSettings):
    """Settings that nobody checks, with limits of a batch that nobody worked out."""

    flush: int = 0
    stream_flush: int = 0

    def __post_init__(self) -> None:
        """Accept them."""

    def flush_bytes(self, window_bytes: int) -> int:
        is_stream = self.stream_window_bytes and window_bytes == self.stream_window_bytes
        return self.stream_flush if is_stream else self.flush


def sizes(
    window: int, stream_window: int, ack: float, flush: int, stream_flush: int
) -> FlowControlSettings:
    return Unchecked(
        window_bytes=window,
        stream_window_bytes=stream_window,
        ack_fraction=ack,
        flush=flush,
        stream_flush=stream_flush,
    )


def fullest(
    flow: FlowControlSettings,
    messages: Sequence[Sequence[int]],
    choices: Sequence[tuple[int, int]],
    *,
    window_bytes: int = 0,
    reader_hurries: bool = True,
) -> float:
    """Let all streams send all they have; ``choices`` say who, and how much in one block.

    Return how full a window was at most, as a part of it, while the batch was not due: with 1 the
    producer waits for a batch that waits for it.
    """
    task = Task(flow)
    connection = task.add(messages, flow, window_bytes or flow.window_bytes)
    connection.reader_hurries = reader_hurries
    turn, found = 0, 0.0
    while any(connection.left.values()):
        who, how_many = choices[turn % len(choices)]
        turn += 1
        if not connection.send(who):
            return max(found, 1.0)
        for number in range(1, how_many):
            connection.send(who + number)
        connection.reader_turns(len(connection.to_consumer))
        task.come_to_rest(sending=False)
        connection.check()
        found = max(found, connection.full_share())
    return found


def streams(window: int) -> st.SearchStrategy[list[list[int]]]:
    """Messages of each stream: of any sizes up to more than the window, or all of one size."""
    size = st.one_of(
        st.integers(LEAST_MESSAGE, 400),
        st.integers(LEAST_MESSAGE, window),
        st.integers(LEAST_MESSAGE, 2 * window),
    )
    mixed = st.lists(size, min_size=1, max_size=20)
    equal = st.builds(lambda size, count: [size] * count, size, st.integers(1, 30))
    return st.lists(st.one_of(mixed, equal), min_size=1, max_size=4)


@given(st.data())
@settings(max_examples=150)
def test_settings_that_are_accepted_never_stick(data: st.DataObject) -> None:
    flow = data.draw(flows())
    edge = flow.stream_window_bytes or flow.window_bytes
    messages = data.draw(streams(edge))
    choices = data.draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), min_size=1, max_size=6)
    )
    found = fullest(flow, messages, choices, reader_hurries=data.draw(st.booleans()))
    target(found)
    assert found < 1


@pytest.mark.parametrize(
    ("what", "stream_window", "message", "batch_rows", "batches"),
    [
        ("a document larger than a batch", 0, 5_000, 10_000, 1),
        ("a document larger than its window", 0, 40_000, 10_000, 1),
        ("a document larger than its stream's window", 4096, 6_000, 10_000, 1),
        ("a delivery larger than its window, of many batches", 0, 1_500, 1, 6),
        ("a delivery larger than its stream's window", 4096, 1_500, 1, 3),
    ],
)
def test_what_is_larger_than_its_limit_passes(
    what: str, stream_window: int, message: int, batch_rows: int, batches: int
) -> None:
    """Nothing is released before Spark has taken the last batch: nobody waits for parts."""
    window = 8192
    flow = FlowControlSettings(
        window_bytes=window,
        stream_window_bytes=stream_window,
        batch_bytes=4096,
        batch_rows=batch_rows,
    )
    task = Task(flow)
    connection = task.add([[message] * 40], flow, window)
    while any(connection.left.values()):
        while connection.send():  # all that the window lets pass comes in one block
            pass
        connection.reader_turns(len(connection.to_consumer))
        before = connection.protocol.flow.connection.released
        while task.handover or not task.flusher.is_empty:
            assert task.turn(), f"{what}: waits for ever"
        assert connection.protocol.flow.connection.released == before
        task.come_to_rest(sending=False)
        connection.check()
    assert connection.largest_delivery >= (stream_window or window)
    assert task.most_batches >= batches, what
    task.require_all_back()


@pytest.mark.parametrize(
    ("what", "flow", "message"),
    [
        ("acks of 90 % beside half a window", sizes(10_000, 0, 0.9, 5_000, 0), 4_500),
        ("a batch as large as the window", sizes(10_000, 0, 0.2, 10_000, 0), 1_500),
        ("a batch that looks at no stream", sizes(2**20, 4096, 0.2, 2**18, 2**20), 400),
        ("a stream's part beside its acks", sizes(2**20, 4096, 0.9, 2**18, 2048), 1843),
    ],
)
def test_what_is_refused_or_prevented_would_stick(
    what: str, flow: FlowControlSettings, message: int
) -> None:
    """The search finds what it looks for."""
    assert fullest(flow, [[message] * 50], [(0, 1)]) >= 1, what


def _never(*_: object) -> bool:
    return False


def _keep(*_: object) -> None:
    return None


_DELIVER = FlowControl.deliver


def _deliver_connection(flow: FlowControl) -> tuple[Charge, ...]:
    return _DELIVER(flow)[:1]


@pytest.mark.parametrize("of_stream", [False, True])
@pytest.mark.parametrize(
    ("what", "where", "name", "broken"),
    [
        ("a batch that looks at no window", BatchFlusher, "_holds_enough", _never),
        ("a batch that is never due", BatchFlusher, "is_due", _never),
        ("deliveries that nobody releases", Receipt, "release", _keep),
        ("acknowledgements that are never due", Window, "due_at", lambda *_: inf),
        ("deliveries that forget their streams", FlowControl, "deliver", _deliver_connection),
    ],
)
def test_what_forgets_to_go_on_would_stick(
    what: str,
    where: type,
    name: str,
    broken: object,
    of_stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each rule is needed: without it the search ends with a window that is full."""
    flow = FlowControlSettings(window_bytes=1 << 20, batch_bytes=1 << 17)
    if of_stream:
        flow = replace(flow, stream_window_bytes=4096)
    window = 0 if of_stream else 4096  # smaller than the settings say, as `ratio` may make it
    messages = [[400] * 30] * 4
    assert fullest(flow, messages, [(0, 6)], window_bytes=window) < 1
    monkeypatch.setattr(where, name, broken)
    monkeypatch.setattr(Connection, "check", _keep)
    needed = of_stream or broken is not _deliver_connection
    assert (fullest(flow, messages, [(0, 6)], window_bytes=window) >= 1) is needed, what


@pytest.mark.parametrize(
    ("window", "ack", "most"), [(20_000, 0.75, 5_000), (10_000, 0.2, 8_000), (4_096, 0.5, 2_048)]
)
def test_the_validator_refuses_the_first_byte_too_many(window: int, ack: float, most: int) -> None:
    accepted = FlowControlSettings(window_bytes=window, ack_fraction=ack, batch_bytes=most)
    assert accepted.flush_bytes(window) + int(window * ack) <= window
    with pytest.raises(
        ConfigError, match=f"batch_bytes: found {most + 1}, expected at most {most}"
    ):
        replace(accepted, batch_bytes=most + 1)


@given(
    st.integers(4096, 40_000),
    st.floats(0.51, 0.9),
    st.floats(0.01, 0.99),
    st.integers(LEAST_MESSAGE, 2000),
)
@example(10_000, 0.9, 0.5, 4_500)
def test_a_batch_that_fits_exactly_is_the_limit(
    window: int, ack: float, part: float, message: int
) -> None:
    """With room for acks nothing sticks, however large they and the messages are."""
    room = window - int(window * ack)
    flush = max(1, int(room * part))
    assert fullest(sizes(window, 0, ack, flush, 0), [[message] * 40], [(0, 1)]) < 1

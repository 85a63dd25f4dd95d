"""A search for windows, batches and acknowledgements that wait for each other for ever.

The clock stands: whatever only time would set free counts as stuck. Both ends are the real ones but
for sockets and threads (``flow_ends.py``); between them there is only the order of things, which is
searched too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings, target
from hypothesis import strategies as st

from dcp.client.delivery import Delivery
from dcp.client.unreleased import Unreleased
from dcp.errors import ConfigError, LocalProtocolError
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.gathering import Gathering
from dcp.lake.task_credits import TaskCredits
from tests.lake.flow_ends import LEAST_MESSAGE, Connection, Task


@dataclass(frozen=True, slots=True)
class Unchecked(FlowControlSettings):
    """Settings that nobody checks, with limits of a batch that nobody worked out."""

    flush: int = 0
    stream_flush: int = 0

    def __post_init__(self) -> None:
        """Accept them."""

    def flush_bytes(self, window_bytes: int | None) -> int:
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
    readers_hurry: bool = True,
) -> float:
    """Let all streams send all they have; ``choices`` say who, and how much in one block.

    Return how full a window was at most, as a part of it, while the batch was not due: with 1 the
    producer waits for a batch that waits for it.
    """
    task = Task(flow)
    task.readers_hurry = readers_hurry
    connection = Connection("only", 0, messages, flow, flow.window_bytes, task.handover)
    task.connections.append(connection)
    turn, found = 0, 0.0
    while any(connection.left.values()):
        who, how_many = choices[turn % len(choices)]
        turn += 1
        if not connection.send(who):
            return max(found, 1.0)
        for number in range(1, how_many):
            connection.send(who + number)
        connection.reader_turns(connection.on_their_way)
        task.digest()
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


@st.composite
def flows(draw: st.DrawFn) -> FlowControlSettings:
    """Settings that are accepted."""
    ack = draw(st.one_of(st.sampled_from([0.2, 0.5, 0.7, 0.9]), st.floats(0.01, 0.9)))
    window = draw(st.integers(max(4096, int(1100 / (1 - ack))), 40_000))
    stream_window = draw(st.sampled_from([0, 4096, window]) | st.integers(4096, window))
    most = int(window * (1 - ack))
    return FlowControlSettings(
        window_bytes=window,
        stream_window_bytes=stream_window,
        ack_fraction=ack,
        batch_rows=draw(st.sampled_from([1, 2, 5, 10_000])),
        batch_bytes=draw(st.just(most) | st.integers(1024, most)),
    )


@given(st.data())
@settings(max_examples=150)
def test_settings_that_are_accepted_never_stick(data: st.DataObject) -> None:
    flow = data.draw(flows())
    edge = flow.stream_window_bytes or flow.window_bytes
    messages = data.draw(streams(edge))
    choices = data.draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), min_size=1, max_size=6)
    )
    found = fullest(flow, messages, choices, readers_hurry=data.draw(st.booleans()))
    target(found)
    assert found < 1


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


_LEAVE = TaskCredits.leave


def _tell_nobody(credits: TaskCredits, deliveries: int | None, now: float) -> Iterator[Delivery]:
    list(_LEAVE(credits, deliveries, now))
    yield from ()


def _lose_part(
    unreleased: Unreleased, serial: int, frame_bytes: int, of_streams: Mapping[int, int]
) -> None:
    """Give a part back, and leave nothing for the end of the delivery."""
    del of_streams
    unreleased._held[serial].frame_bytes -= frame_bytes


@pytest.mark.parametrize(
    ("what", "where", "name", "broken"),
    [
        ("a batch that looks at no connection", Gathering, "_fills_a_connection", _never),
        ("a batch that looks at no stream", Gathering, "_fills_a_stream", _never),
        ("a batch that is never due", Gathering, "is_due", _never),
        ("deliveries that nobody releases", Task, "release", _keep),
        ("deliveries that the credits forget", TaskCredits, "leave", _tell_nobody),
        ("parts that are lost", Unreleased, "release_part", _lose_part),
    ],
)
def test_what_forgets_to_go_on_would_stick(
    what: str, where: type, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rule is needed: without it the search ends with a window that is full."""
    flow = FlowControlSettings(window_bytes=8192, batch_bytes=4096)
    if broken is _lose_part:
        flow = replace(flow, batch_rows=4)
    if name == "_fills_a_stream":
        flow = FlowControlSettings(
            window_bytes=1 << 20, stream_window_bytes=4096, batch_bytes=1 << 17
        )
    messages = [[400] * 30] * 4
    assert fullest(flow, messages, [(0, 6)]) < 1
    monkeypatch.setattr(where, name, broken)
    monkeypatch.setattr(Task, "counts", False)
    monkeypatch.setattr(Connection, "check", _keep)
    assert fullest(flow, messages, [(0, 6)]) >= 1, what


def test_what_spark_has_taken_comes_back_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery whose rows leave in many batches would else hold its window to the last."""
    flow = FlowControlSettings(window_bytes=8192, batch_rows=2, batch_bytes=4096)
    monkeypatch.setattr(Task, "release_part", _keep)
    with pytest.raises(AssertionError, match="Spark took what is still held"):
        fullest(flow, [[400] * 60], [(0, 12)])


def test_a_batch_that_spark_does_not_take_is_followed_by_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever forgets that Spark has taken one can give it no other."""
    flow = FlowControlSettings(window_bytes=8192, batch_rows=2, batch_bytes=4096)
    leave = TaskCredits.leave

    def forgetful(credits: TaskCredits, deliveries: int | None, now: float) -> Iterator[Delivery]:
        monkeypatch.setattr(credits._offered, "settle", _keep)
        return leave(credits, deliveries, now)

    monkeypatch.setattr(TaskCredits, "leave", forgetful)
    with pytest.raises(LocalProtocolError, match="found a batch that Spark has not taken"):
        fullest(flow, [[400] * 60], [(0, 12)])


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

"""Windows of monotonic counters: the rules by name, and any sequence of steps against sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import ConfigError, LocalProtocolError
from dcp.protocol.window import CONNECTION, Charge, FlowControl, Window
from dcp.protocol.window_policies import FlowSettings
from dcp.types import U16_MAX, U32_MAX

SETTINGS = FlowSettings()
MIB = 1024 * 1024
Step = tuple[str, int, float, int]
"""What happens, with how many bytes, when, and what is acknowledged then."""


def new_window(size_bytes: int = 1000) -> Window:
    return Window(CONNECTION, size_bytes, 0.0)


def play(window: Window, steps: Sequence[Step]) -> None:
    for what, amount, now, expected in steps:
        match what:
            case "receive":
                window.receive(amount, now)
            case "release":
                window.release(amount)
            case "resize":
                window.resize(amount, amount, now)
            case "forget":
                window.forget()
        assert window.acknowledge(SETTINGS, now) == expected, (what, amount, now)


RULES: dict[str, tuple[int, list[Step], tuple[int, int]]] = {
    "an ack leaves when more than a fifth is released": (
        1000,
        [("receive", 1084, 0, 0), ("release", 200, 1, 0), ("release", 1, 1, 201)],
        (883, 883),
    ),
    "a trickle is acknowledged after more than five seconds": (
        1000,
        [("receive", 10, 0, 0), ("release", 7, 5, 0), ("wait", 0, 5.001, 7), ("wait", 0, 99, 0)],
        (3, 3),
    ),
    "the five seconds begin with the last ack": (
        1000,
        [
            ("receive", 900, 0, 0),
            ("release", 300, 4, 300),
            ("release", 1, 9, 0),
            ("wait", 0, 10, 1),
        ],
        (599, 599),
    ),
    "nothing released is nothing acknowledged": (
        1000,
        [("receive", 5000, 0, 0), ("wait", 0, 1e9, 0)],
        (5000, 5000),
    ),
    "a message larger than the window is acknowledged at once": (
        1024,
        [("receive", 20 * MIB, 0, 0), ("release", 20 * MIB, 0, 20 * MIB)],
        (0, 0),
    ),
    "an ack carries no more than fits": (
        1000,
        [("receive", U32_MAX + 5, 0, 0), ("release", U32_MAX + 5, 0, U32_MAX), ("wait", 0, 9, 5)],
        (0, 0),
    ),
    "window 0 turns flow control off": (
        0,
        [("receive", 500, 0, 0), ("release", 500, 100, 0)],
        (500, 0),
    ),
    "a window that comes late begins with all that came": (
        0,
        [("receive", 700, 0, 0), ("release", 700, 1, 0), ("resize", 500, 1, 700)],
        (0, 0),
    ),
    "switching off forgets: what is still held earns nothing": (
        1000,
        [
            ("receive", 900, 0, 0),
            ("release", 100, 0, 0),
            ("forget", 0, 0, 0),
            ("resize", 0, 0, 0),
            ("receive", 50, 0, 0),
            ("resize", 60, 0, 0),
            ("wait", 0, 50, 0),
            ("release", 800, 99, 0),
            ("release", 50, 99, 50),
        ],
        (0, 0),
    ),
    "a smaller window lowers the threshold at once": (
        4_000_000,
        [
            ("receive", 500_000, 0, 0),
            ("release", 500_000, 1, 0),
            ("resize", 2_000_000, 1, 500_000),
        ],
        (0, 0),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_acknowledgements(rule: str) -> None:
    size_bytes, steps, expected = RULES[rule]
    window = new_window(size_bytes)
    play(window, steps)
    assert (window.unacked_bytes, window.unreleased_bytes) == expected


def test_the_deadline_is_when_an_ack_falls_due_by_time() -> None:
    window = new_window()
    window.receive(10, 0.0)
    assert window.due_at(SETTINGS) == inf
    window.release(7)
    deadline = window.due_at(SETTINGS)
    assert 5.0 < deadline < 5.001
    assert window.acknowledge(SETTINGS, deadline) == 7
    assert window.due_at(SETTINGS) == inf
    assert (window.acks, window.acknowledged, window.last_ack_at) == (1, 7, deadline)


@pytest.mark.parametrize("frame_bytes", [-1, 11])
def test_more_than_is_held_cannot_be_released(frame_bytes: int) -> None:
    window = new_window()
    window.receive(10, 0.0)
    with pytest.raises(LocalProtocolError, match=f"found {frame_bytes} bytes, expected 0 to 10"):
        window.release(frame_bytes)
    assert window.released == 0


def test_overshoot_is_what_a_message_went_beyond_the_window_of_its_time() -> None:
    window = new_window(1000)
    window.receive(900, 0.0)
    window.receive(150, 0.0)
    assert window.overshoot_bytes == 50
    window.resize(400, 1000, 1.0)
    window.receive(10, 1.0)
    assert window.overshoot_bytes == 60, "the producer has not heard of the smaller one yet"
    window.resize(400, 400, 1.0)
    assert window.overshoot_bytes == 60, "the window shrank: no message went beyond it"
    play(window, [("release", 1060, 2, 1060), ("receive", 470, 2, 0), ("resize", 5000, 2, 0)])
    assert window.overshoot_bytes == 70, "and it stays when the window grows"


def test_a_window_tells_how_long_it_was_full() -> None:
    window = new_window(1000)
    found = []
    for step in (
        ("receive", 999, 1, 0),
        ("receive", 1, 2, 0),
        ("release", 500, 5, 500),
        ("resize", 400, 6, 0),
        ("resize", 0, 8, 0),
        ("receive", 5000, 9, 0),
    ):
        play(window, [step])
        found.append((window.is_full, window.full_seconds(step[2])))
    assert found == [(False, 0), (True, 0), (False, 3), (True, 3), (False, 5), (False, 5)]
    assert window.full_seconds(100.0) == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_bytes", -1),
        ("window_bytes", U32_MAX + 1),
        ("stream_window_bytes", -1),
        ("stream_window_bytes", U32_MAX + 1),
        ("prepare_extra_bytes", -1),
        ("prepare_extra_bytes", U16_MAX + 1),
        ("ack_fraction", 1.0),
        ("ack_seconds", 0),
        ("ack_seconds", float("inf")),
    ],
)
def test_settings_that_would_stall_or_cannot_be_told_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        FlowSettings(**{name: value})  # type: ignore[arg-type]


@given(sizes=st.lists(st.integers(1, 4000), min_size=1), window_bytes=st.integers(1, 5000))
def test_a_consumer_that_passes_everything_on_never_stalls(
    sizes: list[int], window_bytes: int
) -> None:
    """After each release either the window has room or an ack has a deadline."""
    window = new_window(window_bytes)
    for size in sizes:
        if window.is_full:
            assert window.acknowledge(SETTINGS, window.due_at(SETTINGS)) > 0
        assert not window.is_full
        window.receive(size, 0.0)
        window.release(size)
        window.acknowledge(SETTINGS, 0.0)


# --- a connection and its streams, in any sequence of steps


@dataclass
class Sums:
    """What is known of a window, as plain sums; and whether its producer counts."""

    size_bytes: int
    last_ack_at: int
    received: int = 0
    released: int = 0
    acknowledged: int = 0
    forgotten: int = 0
    is_over: bool = False

    def resize(self, size_bytes: int) -> None:
        """Take another size; 0 forgets, and again where it is said again."""
        if not size_bytes:
            self.forgotten = self.received - self.acknowledged
        self.size_bytes = size_bytes

    def acknowledge(self, now: int) -> int:
        acked_bytes = max(0, self.released - self.forgotten - self.acknowledged)
        is_due = acked_bytes > int(self.size_bytes * 0.2) or now - self.last_ack_at > 5
        if not self.size_bytes or self.is_over or not acked_bytes or not is_due:
            return 0
        self.acknowledged, self.last_ack_at = self.acknowledged + acked_bytes, now
        return acked_bytes


COUNTERS = ("received", "delivered", "taken", "given", "released", "acknowledged", "acks")
WORDS = ["receive", "deliver", "take", "give", "release", "acknowledge", "end"]
SIZES = st.sampled_from([0, 1, 700, 5000])
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(WORDS), st.integers(0, 900), st.integers(0, 3)),
        st.tuples(st.sampled_from(["resize", "resize streams"]), SIZES, st.just(0)),
    ),
    max_size=80,
)


class Session:
    """A connection with three streams, and the sums of the same; deliveries end in any order."""

    def __init__(self, window_bytes: int, stream_window_bytes: int) -> None:
        self.flow = FlowControl(FlowSettings(window_bytes=window_bytes), 0)
        self.flow.offer_streams(stream_window_bytes)
        self.flow.resume_stream_acks(())
        self.windows = {CONNECTION: self.flow.connection}
        self.sums = {CONNECTION: Sums(window_bytes, 0)}
        self.streams = {1, 2, 3}
        self.now = 0
        self.stages: dict[str, list[tuple[Charge, ...]]] = {
            stage: [] for stage in ("deliver", "take", "give")
        }

    def step(self, what: str, amount: int, which: int) -> None:
        match what:
            case "receive":
                self._receive(which, amount)
            case "deliver":
                self.stages[what].append(self.flow.deliver())
            case "take" | "give" | "release":
                self._move(what, which)
            case "acknowledge":
                self.now += which
                acks = [(each, sums.acknowledge(self.now)) for each, sums in self.sums.items()]
                found = self.flow.acknowledge(self.now)
                assert found == sorted(ack for ack in acks if ack[1])
            case "end":
                self.flow.end_stream(which)
                self.streams.discard(which)
                if which in self.sums and which != CONNECTION:
                    self.sums[which].is_over = True
            case "resize":
                if not amount:
                    self.flow.connection.forget()
                self.flow.connection.resize(amount, amount, self.now)
                self.sums[CONNECTION].resize(amount)
            case _:
                self.flow.resize_streams(amount, self.now)
                self.flow.resume_stream_acks(())
                for opaque in self.streams & self.sums.keys():
                    self.sums[opaque].resize(amount)

    def _receive(self, opaque: int, amount: int) -> None:
        self.flow.receive(amount + 1, self.now)
        self.sums[CONNECTION].received += amount + 1
        twice = np.array([opaque, opaque], np.uint32)
        frame_bytes = np.array([amount, 1], np.int64)
        self.flow.receive_streams(twice, frame_bytes, self.streams, self.now)
        if opaque in self.streams:
            first = Sums(self.flow.stream_window_bytes, self.now)
            self.sums.setdefault(opaque, first).received += amount + 1
            self.windows[opaque] = self.flow.streams[opaque]

    def _move(self, what: str, which: int) -> None:
        before = {"take": "deliver", "give": "take", "release": "give"}[what]
        if not self.stages[before]:
            return
        shares = self.stages[before].pop(which % len(self.stages[before]))
        if what == "release":
            self.flow.release(shares)
            for window, frame_bytes in shares:
                self.sums[window.opaque].released += frame_bytes
            return
        self.stages[what].append(shares)
        for window, frame_bytes in shares:
            getattr(window, what)(frame_bytes)

    def counters(self) -> dict[tuple[int, str], int]:
        return {
            (opaque, name): getattr(window, name)
            for opaque, window in self.windows.items()
            for name in COUNTERS
        }


@given(SIZES, SIZES, steps)
def test_counters_agree_with_plain_sums_whatever_happens(
    window_bytes: int, stream_window_bytes: int, script: list[tuple[str, int, int]]
) -> None:
    """Nothing is acknowledged before it is released, or twice, or though it was forgotten."""
    session = Session(window_bytes, stream_window_bytes)
    before = session.counters()
    for step in script:
        session.step(*step)
        after = session.counters()
        assert all(after[name] >= count for name, count in before.items()), "counters only grow"
        before = after
        for opaque, sums in session.sums.items():
            window = session.windows[opaque]
            in_order = [getattr(window, name) for name in COUNTERS[:5]]
            assert in_order == sorted(in_order, reverse=True)
            assert (window.received, window.released) == (sums.received, sums.released)
            assert window.acknowledged == sums.acknowledged + sums.forgotten <= window.received
    session.step("deliver", 0, 0)
    for what in ("take", "give", "release"):
        for _ in range(len(script) + 1):
            session.step(what, 0, 0)
    assert {each.unreleased_bytes for each in session.windows.values()} == {0}
    session.now += 6
    session.step("acknowledge", 0, 0)
    for window in session.windows.values():
        assert window.is_over or not window.size_bytes or not window.unacked_bytes


def test_bytes_that_came_while_it_was_off_do_not_overshoot() -> None:
    window = Window(CONNECTION, 100, 0.0)
    window.resize(0, 0, 1.0)
    window.receive(1000, 2.0)
    window.resize(0, 500, 3.0)  # asked for, not answered
    window.receive(10, 4.0)
    assert window.overshoot_bytes == 0


def test_a_release_of_one_stream_looks_at_no_other() -> None:
    """A connection may have a thousand streams below their threshold."""
    flow = FlowControl(FlowSettings(window_bytes=10_000, stream_window_bytes=1000), 0.0)
    flow.offer_streams(1000)
    flow.resume_stream_acks(())
    opaques = np.arange(1, 11, dtype=np.uint32)
    flow.receive_streams(opaques, np.full(10, 150), set(range(1, 11)), 0.0)
    shares = flow.deliver()
    flow.release(shares)
    assert flow.acknowledge(0.0) == []
    for window in flow.streams.values():
        window.last_ack_at = -100.0  # whoever looks finds an acknowledgement due by time
    flow.receive_streams(opaques[:1], np.full(1, 100), {1}, 0.0)
    flow.release(flow.deliver())
    assert [opaque for opaque, _ in flow.acknowledge(0.0)] == [1]


def test_how_long_it_was_full_never_goes_back() -> None:
    window = Window(CONNECTION, 100, 0.0)
    settings = FlowSettings(window_bytes=100, ack_seconds=1.0)
    window.receive(100, 1.0)
    assert window.full_seconds(3.0) == 2.0
    window.release(100)
    assert window.acknowledge(settings, 4.0) == 100
    assert window.full_seconds(9.0) == 3.0

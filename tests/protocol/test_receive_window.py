"""The receive window against a naive model, and its rules by name."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import LocalProtocolError
from dcp.protocol.receive_window import FlowSettings, ReceiveWindow
from dcp.types import U32_MAX

KIB = 1024


def window(window_bytes: int = 1000, now: float = 0.0) -> ReceiveWindow:
    return ReceiveWindow(FlowSettings(window_bytes), now)


def test_an_ack_leaves_when_more_than_a_fifth_is_released() -> None:
    account = window().charge(1084).release(200)
    account, acked_bytes = account.acknowledge(1.0)
    assert acked_bytes == 0
    account, acked_bytes = account.release(1).acknowledge(1.0)
    assert acked_bytes == 201
    assert account.unacked_bytes == 1084 - 201
    assert account.last_ack_at == 1.0


def test_a_trickle_is_acknowledged_after_more_than_five_seconds() -> None:
    account = window().charge(10).release(7)
    assert account.acknowledge(5.0)[1] == 0
    assert account.deadline is not None
    assert 5.0 < account.deadline < 5.001
    account, acked_bytes = account.acknowledge(account.deadline)
    assert acked_bytes == 7
    assert account.deadline is None


def test_nothing_released_is_nothing_acknowledged() -> None:
    account = window().charge(5000)
    assert account.deadline is None
    assert account.acknowledge(1e9) == (account, 0)


def test_a_message_larger_than_the_window_is_acknowledged_at_once() -> None:
    account = window(KIB).charge(20 * KIB * KIB)
    assert account.unacked_bytes == 20 * KIB * KIB
    assert account.release(20 * KIB * KIB).acknowledge(0.0)[1] == 20 * KIB * KIB


def test_window_zero_turns_flow_control_off() -> None:
    account = window(0).charge(500).release(500)
    assert account.charged_total == 500
    assert account.deadline is None
    assert account.acknowledge(100.0) == (account, 0)
    assert not account.is_full


def test_a_window_that_comes_late_begins_with_all_that_was_charged() -> None:
    """The producer counts while it is off, and ignores acks: without these it would stand still."""
    account = window(0).charge(700).release(700).resized(500)
    assert account.is_full
    account, acked_bytes = account.acknowledge(1.0)
    assert acked_bytes == 700
    assert account.unacked_bytes == 0


def test_switching_off_forgets_what_was_outstanding() -> None:
    account = window(1000).charge(900).release(100).resized(0)
    assert (account.unacked_bytes, account.forgotten_total) == (0, 900)
    account = account.charge(50).resized(60)
    assert account.unacked_bytes == 50
    assert account.release(800).released_bytes == 0, "the forgotten bytes come back first"
    account = account.release(850)
    assert (account.held_bytes, account.released_bytes) == (0, 50)
    with pytest.raises(LocalProtocolError, match="found 1 bytes, expected 0 to 0"):
        account.release(1)


def test_a_smaller_window_lowers_the_threshold_at_once() -> None:
    account = window(4_000_000).charge(500_000).release(500_000)
    assert account.acknowledge(1.0) == (account, 0)
    account = account.resized(2_000_000)
    assert account.unacked_bytes == 500_000
    account, acked_bytes = account.acknowledge(1.0)
    assert acked_bytes == 500_000
    assert account.acknowledge(1.0) == (account, 0)


def test_the_same_window_changes_nothing() -> None:
    assert window(1000).resized(1000) == window(1000)


@pytest.mark.parametrize("size", [-1, U32_MAX + 1])
def test_a_window_that_no_producer_takes_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="window_bytes: found"):
        window().resized(size)


def test_releasing_twice_is_our_mistake() -> None:
    account = window().charge(10).release(10)
    with pytest.raises(LocalProtocolError, match="found 1 bytes, expected 0 to 0"):
        account.release(1)
    with pytest.raises(LocalProtocolError, match="found -1 bytes"):
        account.release(-1)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"window_bytes": -1}, "window_bytes"),
        ({"window_bytes": U32_MAX + 1}, "window_bytes"),
        ({"ack_fraction": 1.0}, "ack_fraction"),
        ({"ack_seconds": 0}, "ack_seconds"),
        ({"ack_seconds": float("inf")}, "ack_seconds"),
    ],
)
def test_settings_that_would_stall_are_refused(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        FlowSettings(**settings)  # type: ignore[arg-type]


@dataclass
class NaiveProducer:
    """What the other side counts: one list of messages and what was acknowledged."""

    window_bytes: int
    sent: list[int] = field(default_factory=list)
    acked: int = 0

    @property
    def outstanding(self) -> int:
        return sum(self.sent) - self.acked


actions = st.lists(
    st.tuples(
        st.sampled_from(["charge", "release", "tick"]),
        st.integers(0, 3000),
        st.floats(0, 3, allow_nan=False),
    ),
    max_size=60,
)


@given(window_bytes=st.integers(1, 5000), steps=actions)
def test_the_account_agrees_with_what_the_producer_counts(
    window_bytes: int, steps: list[tuple[str, int, float]]
) -> None:
    account, producer, now = window(window_bytes), NaiveProducer(window_bytes), 0.0
    held, released, last_ack = 0, 0, 0.0
    for action, size, pause in steps:
        now += pause
        if action == "charge" and producer.outstanding < window_bytes:
            producer.sent.append(size)
            account = account.charge(size)
            held += size
        elif action == "release":
            passed_on = min(size, held)
            account = account.release(passed_on)
            held, released = held - passed_on, released + passed_on
        account, acked_bytes = account.acknowledge(now)
        due = released > int(window_bytes * 0.2) or (released > 0 and now - last_ack > 5)
        if acked_bytes or (due and abs(now - last_ack - 5) > 1e-6):
            assert acked_bytes == released
            assert due
            producer.acked += acked_bytes
            released, last_ack = 0, now
        assert account.unacked_bytes == producer.outstanding == held + released
        assert account.released_bytes <= max(int(window_bytes * 0.2), 0) or not acked_bytes


@given(sizes=st.lists(st.integers(1, 4000), min_size=1), window_bytes=st.integers(1, 5000))
def test_a_consumer_that_passes_everything_on_never_stalls(
    sizes: list[int], window_bytes: int
) -> None:
    """After each release either the window has room or an ack has a deadline."""
    account, outstanding = window(window_bytes), 0
    for size in sizes:
        if outstanding >= window_bytes:
            deadline = account.deadline
            assert deadline is not None
            account, acked_bytes = account.acknowledge(deadline)
            outstanding -= acked_bytes
        assert outstanding < window_bytes
        account, acked_bytes = account.charge(size).release(size).acknowledge(0.0)
        outstanding += size - acked_bytes


@dataclass
class OtherSide:
    """The producer as it is: it counts while it is off, ignores acks then, and forgets at 0."""

    window_bytes: int
    outstanding: int = 0

    def set_window(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        if not window_bytes:
            self.outstanding = 0


resizing = st.lists(
    st.tuples(
        st.sampled_from(["charge", "release", "resize", "off", "say"]),
        st.integers(1, 3000),
        st.floats(0, 3, allow_nan=False),
    ),
    max_size=80,
)


@given(window_bytes=st.integers(0, 2000), steps=resizing)
def test_however_the_window_changes_nothing_is_lost_and_nothing_acknowledged_twice(
    window_bytes: int, steps: list[tuple[str, int, float]]
) -> None:
    account, other, in_hand, now = window(window_bytes), OtherSide(window_bytes), 0, 0.0
    for action, size, pause in steps:
        now += pause
        if action == "charge" and not (other.window_bytes and other.outstanding >= window_bytes):
            account, in_hand = account.charge(size), in_hand + size
            other.outstanding += size
        elif action == "release":
            passed_on = min(size, in_hand)
            account, in_hand = account.release(passed_on), in_hand - passed_on
        elif action in ("resize", "off"):
            window_bytes = size if action == "resize" else 0
            if window_bytes != account.settings.window_bytes:  # what stays is not said
                other.set_window(window_bytes)
            account = account.resized(window_bytes)
        elif action == "say":
            account, acked_bytes = account.acknowledge(now)
            if acked_bytes:
                assert other.window_bytes
                assert 0 < acked_bytes <= other.outstanding
                other.outstanding -= acked_bytes
        counted = account.charged_total - account.acked_total - account.forgotten_total
        assert account.unacked_bytes == counted == other.outstanding
        assert account.held_bytes + account.forgotten_held_bytes == in_hand
        with pytest.raises(LocalProtocolError):
            account.release(in_hand + 1)

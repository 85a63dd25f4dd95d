"""The credits of a task, from the socket to Spark and back, in any interleaving and on every exit.

The parts are the real ones, without sockets and threads: what the window charged, what waits in
the hand-over, what the task holds. After each step the sum must be right: what was received and
not acknowledged is held by exactly one stage, or freed and not acknowledged yet.
"""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dcp.client.addresses import NodeAddress
from dcp.client.delivery import ConnectionEnded, Delivery, Handover
from dcp.client.reader_credits import ReaderCredits
from dcp.client.settings import ConnectionSettings
from dcp.lake.task_credits import TaskCredits
from dcp.protocol.flow_control import FlowSettings, ReceiveWindow

NODE = NodeAddress("node", 11210)
WINDOW = 1000


class Chain:
    """One connection and one task; each method is what one thread does at once."""

    def __init__(self) -> None:
        self.now = 0.0
        settings = ConnectionSettings("default", window_bytes=WINDOW)
        self.window = ReceiveWindow(FlowSettings(WINDOW), 0.0)
        self.reader = ReaderCredits(settings)
        self.handover = Handover()
        self.handover.open_account("c", WINDOW)
        self.task = TaskCredits(batch_bytes=WINDOW // 2, target_bytes=10**6)
        self.posted_bytes = 0  # released by the task, not seen by the reader yet
        self.offered = 0  # deliveries that wait for Spark
        self.handed_over = False
        self.read_bytes = 0
        self.serial = 0
        self.unreleased: dict[int, int] = {}

    def receive(self, frame_bytes: int, is_dropped: bool) -> None:
        self.reader.socket.take(frame_bytes, self.now)
        if self.window.unacked_bytes >= WINDOW:
            self.reader.decoded(0, self.now)  # a node that keeps to the window sends only NOOPs
            return
        self.reader.decoded(frame_bytes // 3, self.now)
        self.window = self.window.charge(frame_bytes)
        self.reader.decoded(0, self.now)
        self.reader.held.take(frame_bytes, self.now)
        if is_dropped:
            self.posted_bytes += frame_bytes
            return
        self.serial += 1
        self.unreleased[self.serial] = frame_bytes
        self.handover.put(Delivery(NODE, [], frame_bytes, {}, "c", self.serial))

    def take(self) -> None:
        if self.handed_over or not self.task.batch.is_open:
            return
        entry = self.handover.get(0.0)
        if isinstance(entry, Delivery):
            self.task.take_in(entry, self.now)

    def hand_over(self) -> None:
        if not self.handed_over and self.task.is_holding:
            self.task.hand_over(self.now)
            self.task.offer(self.now)
            self.handed_over, self.offered = True, 0

    def spark_takes(self, deliveries: int) -> None:
        if not self.handed_over:
            return
        self.offered += deliveries
        self._release(self.offered)
        if self.task.is_holding:
            self.task.offer(self.now)
        else:
            self._release(None)
            self.handed_over = False

    def _release(self, deliveries: int | None) -> None:
        for each in self.task.leave(deliveries, self.now):
            assert not each.events, "a task keeps no events beside its batch"
            self.posted_bytes += self.unreleased.pop(each.serial)

    def turn(self, seconds: float) -> None:
        self.now += seconds
        released, self.posted_bytes = self.posted_bytes, 0
        self.reader.held.release(released, self.now)
        self.window, _ = self.window.release(released).acknowledge(self.now)
        self.reader.follow(self.window, WINDOW, self.now)

    def check(self) -> None:
        self.reader.follow(self.window, WINDOW, self.now)
        waiting = self.handover.look("c", self.now)
        assert waiting is not None
        task = self.task.batch.in_use + self.task.spark.in_use
        held_bytes = waiting.in_use + task + self.posted_bytes
        received, acked = self.window.charged_total, self.window.acked_total
        assert received - acked == held_bytes + self.window.released_bytes
        assert self.reader.held.amount == held_bytes == self.window.held_bytes
        assert self.reader.window.amount == received - acked
        assert self.reader.unaccounted_bytes == 0
        assert self.task.batches.in_use <= 1
        assert self.reader.window.account.is_open == (received - acked < WINDOW)

    def close(self) -> None:
        self.handover.close()
        self.task.settle(self.now)
        self.reader.settle(self.now)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), st.integers(1, 3 * WINDOW), st.booleans()),
        st.tuples(st.just("receive"), st.integers(1, WINDOW // 5), st.just(False)),
        st.tuples(st.just("take")),
        st.tuples(st.just("hand_over")),
        st.tuples(st.just("spark_takes"), st.integers(0, 4)),
        st.tuples(st.just("turn"), st.sampled_from([0.0, 0.1, 6.0])),
    ),
    max_size=80,
)


@given(steps=STEPS)
def test_every_byte_has_one_place_whatever_happens_in_which_order(
    steps: list[tuple[object, ...]],
) -> None:
    chain = Chain()
    for name, *arguments in steps:
        getattr(chain, str(name))(*arguments)
        chain.check()
    chain.close()  # wherever that was
    accounts = [chain.reader.socket, chain.reader.window, chain.reader.held]
    everything = [queue.account for queue in accounts] + [chain.task.batch, chain.task.spark]
    looks = chain.task.look(chain.now)
    assert {account.in_use for account in everything} | {look.in_use for look in looks} == {0}
    assert not any(account.second_releases for account in everything)


@given(seed=st.integers(0, 2**32))
def test_no_order_of_steps_gets_stuck(seed: int) -> None:
    """Whatever was done so far, everybody doing his work brings all bytes back."""
    random = Random(seed)
    chain = Chain()
    for _ in range(60):
        step = random.choice(["receive", "receive", "take", "hand_over", "spark_takes", "turn"])
        arguments: dict[str, list[object]] = {
            "receive": [random.choice([10, 300, 5000]), False],
            "spark_takes": [random.randint(0, 2)],
            "turn": [random.choice([0.0, 1.0])],
        }
        getattr(chain, step)(*arguments.get(step, []))
    for _ in range(200):
        for step, arguments_ in (("take", []), ("hand_over", []), ("spark_takes", [9])):
            getattr(chain, step)(*arguments_)
        chain.turn(1.0)
    chain.turn(6.0)
    chain.check()
    assert (chain.window.unacked_bytes, chain.unreleased) == (0, {})
    assert chain.reader.window.account.is_open


def test_what_leaves_a_lost_connection_is_released_when_it_is_taken() -> None:
    handover = Handover()
    handover.open_account("lost", 100)
    for serial in (1, 2):
        handover.put(Delivery(NODE, [], 60, {}, "lost", serial))
    handover.put(ConnectionEnded("lost", NODE, None))
    look = handover.look("lost", 0.0)
    assert look is not None
    assert (look.in_use, look.is_full) == (120, True)
    assert [type(handover.get(0.0)) for _ in range(3)] == [Delivery, Delivery, ConnectionEnded]
    assert handover.look("lost", 0.0) is None

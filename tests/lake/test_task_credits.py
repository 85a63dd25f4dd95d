"""The credits of a task, from the socket to Spark and back, in any interleaving and on every exit.

The parts are the real ones, without sockets and threads: what the window charged, what waits in
the hand-over, what the task holds. After each step the sum must be right: what was received and
not acknowledged is held by exactly one stage, or freed and not acknowledged yet.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.client.addresses import NodeAddress
from dcp.client.delivery import Delivery, Handover
from dcp.client.reader_credits import ReaderCredits
from dcp.client.settings import ConnectionSettings
from dcp.client.unreleased import Unreleased
from dcp.errors import LocalProtocolError
from dcp.lake.task_credits import TaskCredits
from dcp.protocol.receive_window import FlowSettings, ReceiveWindow

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
        self.task = TaskCredits(batch_bytes=WINDOW // 2, target_bytes=10**6)
        self.offered = 0  # deliveries that wait for Spark
        self.handed_over = False
        self.read_bytes = 0
        self.unreleased = Unreleased(self.reader.handover.account)
        self.held: dict[int, int] = {}

    def receive(self, frame_bytes: int, is_dropped: bool) -> None:
        self.reader.socket.take(frame_bytes, self.now)
        if self.window.unacked_bytes >= WINDOW:
            self.reader.decoded(0, self.now)  # a node that keeps to the window sends only NOOPs
            return
        self.reader.decoded(frame_bytes // 3, self.now)
        self.window = self.window.charge(frame_bytes)
        self.reader.decoded(0, self.now)
        self.reader.handover.take(frame_bytes, self.now)
        if is_dropped:
            self.unreleased.drop(frame_bytes, {})
            return
        serial = self.unreleased.add(frame_bytes, {})
        self.held[serial] = frame_bytes
        self.handover.put(Delivery(NODE, [], frame_bytes, {}, "c", serial))

    def take(self) -> None:
        if self.handed_over or not self.task.batch.is_open:
            return
        entry = self.handover.get(0.0)
        if isinstance(entry, Delivery):
            self.task.take_in(entry, self.now)

    def hand_over(self) -> None:
        if not self.handed_over and self.task.is_holding:
            assert self.task.hand_over(self.now) > 0
            self.task.offer(self.now)
            self.handed_over, self.offered = True, 0

    def spark_takes(self, deliveries: int) -> None:
        if not self.handed_over:
            return
        self.offered += deliveries
        self._release(self.offered)
        if self.task._leaving:
            self.task.offer(self.now)
        else:
            self._release(None)
            self.handed_over = False

    def _release(self, deliveries: int | None) -> None:
        for each in self.task.leave(deliveries, self.now):
            assert not each.events, "a task keeps no events beside its batch"
            self.unreleased.release(each.serial)
            del self.held[each.serial]

    def spark_takes_a_part(self, share: float) -> None:
        """Take some documents of the oldest delivery, not all of it."""
        if self.handed_over and self.task._leaving:
            part_bytes = int(self.task._leaving[0].credit.amount * share)
            delivery = self.task.leave_part(part_bytes, self.now)
            self.unreleased.release_part(delivery.serial, part_bytes, {})
            self.held[delivery.serial] -= part_bytes

    def turn(self, seconds: float) -> None:
        self.now += seconds
        released, _ = self.unreleased.collect()
        self.reader.handover.release(released, self.now)
        self.window, _ = self.window.release(released).acknowledge(self.now)
        self.reader.follow(self.window, WINDOW, self.now)

    def check(self) -> None:
        self.reader.follow(self.window, WINDOW, self.now)
        queued = [each for each in self.handover._entries if isinstance(each, Delivery)]
        waiting = sum(each.frame_bytes for each in queued)
        task = self.task.batch.in_use + self.task.spark.in_use
        assert waiting + task == sum(self.held.values())
        held_bytes = waiting + task + self.unreleased.released_bytes
        received, acked = self.window.charged_total, self.window.acked_total
        assert received - acked == held_bytes + self.window.released_bytes
        assert self.reader.handover.amount == held_bytes == self.window.held_bytes
        assert self.reader.window.amount == received - acked
        assert self.reader.unaccounted_bytes == 0
        assert self.task.batches.peak <= 1
        largest = max((each.credit.amount for each in self.task._leaving), default=0)
        assert self.task.spark.in_use < self.task.spark.high + largest
        assert self.reader.window.account.is_open == (received - acked < WINDOW)

    def close(self) -> None:
        self.handover.close()
        self.unreleased.end()
        self.task.settle(self.now)
        self.reader.settle(self.now)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), st.integers(1, 3 * WINDOW), st.booleans()),
        st.tuples(st.just("receive"), st.integers(1, WINDOW // 5), st.just(False)),
        st.tuples(st.just("take")),
        st.tuples(st.just("hand_over")),
        st.tuples(st.just("spark_takes"), st.integers(0, 4)),
        st.tuples(st.just("spark_takes_a_part"), st.floats(0, 0.9)),
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
    accounts = [chain.reader.socket, chain.reader.frame, chain.reader.window, chain.reader.handover]
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
    assert (chain.window.unacked_bytes, chain.held) == (0, {})
    assert chain.reader.window.account.is_open


def delivery(frame_bytes: int, serial: int = 1) -> Delivery:
    return Delivery(NODE, [], frame_bytes, {}, "c", serial)


def test_no_more_is_on_its_way_to_spark_at_once_than_its_account_admits() -> None:
    """A window that shrinks while a batch waits: the batch goes in portions."""
    task = TaskCredits(batch_bytes=1000, target_bytes=10**6)
    for serial, frame_bytes in enumerate([300, 300, 300, 5000, 10], 1):
        task.take_in(delivery(frame_bytes, serial), 0.0)
    assert task.batch_is_full(400, 1.0)
    portions = []
    while task.is_holding:
        task.hand_over(2.0)
        assert task.hand_over(2.0) == len(task._leaving), "nothing more before that has left"
        task.offer(2.0)
        portions.append([each.serial for each in task.leave(None, 3.0)])
    assert portions == [[1, 2], [3, 4], [5]]
    assert task.spark.peak == 5300
    assert task.batch.is_open


def test_what_leaves_opens_the_gate_to_spark_at_the_low_mark_only() -> None:
    task = TaskCredits(batch_bytes=100, target_bytes=10**6)
    for serial in (1, 2):
        task.take_in(delivery(100, serial), 0.0)
    assert task.hand_over(0.0) == 1
    task.leave_part(99, 0.0)
    assert (task.hand_over(0.0), task.spark.is_open) == (1, False)
    task.leave_part(1, 0.0)
    assert task.hand_over(0.0) == 2


def test_spark_is_given_no_second_batch_before_it_took_the_first() -> None:
    task = TaskCredits(batch_bytes=100, target_bytes=10**6)
    task.offer(0.0)
    with pytest.raises(LocalProtocolError, match="found a batch that Spark has not taken"):
        task.offer(0.0)
    assert list(task.leave(0, 1.0)) == []
    task.offer(1.0)
    assert task.batches.peak == 1


def test_more_than_a_delivery_has_is_refused_and_counted() -> None:
    task = TaskCredits(batch_bytes=100, target_bytes=10**6)
    task.take_in(delivery(50), 0.0)
    task.hand_over(0.0)
    task.leave_part(30, 0.0)
    with pytest.raises(LocalProtocolError, match="found 21"):
        task.leave_part(21, 0.0)
    assert [each.second_releases for each in task.look(0.0)] == [0, 1, 0, 0]


def test_staging_is_full_at_the_target_of_the_task_and_stays_so() -> None:
    task = TaskCredits(batch_bytes=1000, target_bytes=120)
    task.take_in(delivery(119, 1), 0.0)
    seen = [task.staging.is_open]
    task.take_in(delivery(1, 2), 0.0)
    seen.append(task.staging.is_open)
    task.hand_over(0.0)
    assert len(list(task.leave(None, 0.0))) == 2
    seen.append(task.staging.is_open)
    assert seen == [True, False, False], "at the end Spark has the rows, the tables do not"
    task.settle(1.0)
    assert task.staging.in_use == 0

"""Answers that wait: their order, how many bytes are counted, and how long ones are made."""

from collections.abc import Iterator
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from dcp.server.commands.outbox import LONG_ANSWER_BYTES, Outbox

ANSWERS = st.lists(st.one_of(st.binary(max_size=9), st.lists(st.binary(min_size=1, max_size=9))))


@given(ANSWERS, st.lists(st.integers(1, 30), min_size=1))
def test_everything_comes_in_order_and_nothing_is_left(
    answers: list[bytes | list[bytes]], sizes: list[int]
) -> None:
    outbox = Outbox()
    for answer in answers:
        if isinstance(answer, bytes):
            outbox.put(answer)
        else:
            outbox.put_long(iter(answer))
    taken: list[bytes] = []
    turn = 0
    while not outbox.is_empty:
        taken += outbox.take(sizes[turn % len(sizes)])
        turn += 1
    flat = ([each] if isinstance(each, bytes) else each for each in answers)
    assert taken == list(chain.from_iterable(flat))
    assert outbox.waiting_bytes == 0
    assert outbox.take(1) == []


def test_a_long_answer_is_made_as_it_is_taken() -> None:
    made = 0

    def frames() -> Iterator[bytes]:
        nonlocal made
        for _ in range(1000):
            made += 1
            yield b"x" * 10

    outbox = Outbox()
    outbox.put(b"before")
    outbox.put_long(frames())
    outbox.put(b"after")
    assert outbox.waiting_bytes == len(b"before") + LONG_ANSWER_BYTES + len(b"after")
    assert outbox.take(106)[0] == b"before"
    assert made == 10
    assert not outbox.is_empty
    assert outbox.take(10_000, 3) == [b"x" * 10] * 3
    assert outbox.is_long
    assert made == 13
    assert outbox.take(10_000)[-1] == b"after"
    assert (outbox.is_long, made) == (False, 1000)

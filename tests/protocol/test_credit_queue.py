import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import LocalProtocolError
from dcp.protocol.credit_queue import CreditQueue
from dcp.protocol.credits import Credits


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
def test_what_is_taken_in_pieces_is_released_in_others(steps: list[tuple[bool, int]]) -> None:
    account = Credits("bytes", high=40, low=10)
    queue, held, closed, mistakes = CreditQueue(account), 0, False, 0
    for number, (takes, amount) in enumerate(steps):
        if takes:
            queue.take(amount, float(number))
            held += amount
        elif amount <= held:
            queue.release(amount, float(number))
            held -= amount
        else:
            with pytest.raises(LocalProtocolError, match="what is left"):
                queue.release(amount, float(number))
            mistakes += 1
        closed = held >= 40 or (closed and held > 10)
        assert (queue.amount, account.in_use, account.is_open) == (held, held, not closed)
    queue.hold(17, 98.0)
    assert (queue.amount, account.in_use) == (17, 17)
    queue.settle(99.0)
    assert (queue.amount, account.in_use, account.second_releases) == (0, 0, mistakes)

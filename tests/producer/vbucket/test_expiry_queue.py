"""The next document to expire, against a dictionary; and how long the queue gets."""

from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.writes.expiry_queue import ExpiryQueue

NOTES = st.tuples(st.integers(0, 1), st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 9))
TIMES = st.floats(0, 10)


@given(st.lists(st.one_of(NOTES, TIMES)))
def test_against_a_dictionary(steps: list[tuple[int, bytes, int] | float]) -> None:
    queue = ExpiryQueue()
    model: dict[tuple[int, bytes], int] = {}
    for step in steps:
        if isinstance(step, tuple):
            collection, key, expiry = step
            queue.note(collection, key, expiry)
            model[collection, key] = expiry
            continue
        found = set()
        while (due := queue.pop_due(step)) is not None:
            assert model[due[:2]] == due[2]
            assert due[:2] not in found
            found.add(due[:2])
        assert found == {which for which, at in model.items() if at and at <= step}
        model = {which: at for which, at in model.items() if which not in found}


def test_old_entries_do_not_pile_up() -> None:
    queue = ExpiryQueue()
    longest = 0
    for expiry in range(1, 100_000):
        queue.note(0, b"%d" % (expiry % 10), expiry)
        longest = max(longest, len(queue))
    assert longest < 100
    for number in range(10):
        queue.note(0, b"%d" % number, 0)
    assert queue.pop_due(1_000_000) is None

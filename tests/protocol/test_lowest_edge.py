"""The lowest edge is that of a look at all receivers, whatever they did."""

from hypothesis import given
from hypothesis import strategies as st

from dcp.protocol.lowest_edge import LowestEdge

_RECEIVERS = st.integers(0, 5)
_STEPS = st.lists(st.tuples(_RECEIVERS, st.none() | st.integers(-3, 3)), max_size=60)


@given(_STEPS)
def test_it_is_the_smallest_and_of_equal_ones_the_first(
    steps: list[tuple[int, int | None]],
) -> None:
    """``None`` is a receiver that goes, if it is there."""
    lowest, edges = LowestEdge(), dict[int, int]()
    for receiver, edge in steps:
        if edge is not None:
            lowest.set(receiver, edge)
            edges[receiver] = edge  # a dict keeps the order of their coming
        elif receiver in edges:
            lowest.forget(receiver)
            del edges[receiver]
        first = min(edges, key=lambda each: edges[each], default=None)
        assert lowest.receiver_id == first
        assert lowest.edge == (None if first is None else edges[first])


def test_what_was_said_before_takes_no_memory() -> None:
    lowest = LowestEdge()
    for edge in range(10_000):
        for receiver in range(8):
            lowest.set(receiver, edge + receiver)  # the lowest is never looked at
        assert len(lowest._heap) <= 2 * 8 + 17
    assert (lowest.edge, lowest.receiver_id) == (9_999, 0)

"""The bytes of one stream: what is received, consumed, and where who was sent something stands."""

from hypothesis import given
from hypothesis import strategies as st

from dcp.relay.byte_positions import BytePositions


def test_by_hand() -> None:
    found = BytePositions(1600)  # blocks of 100 bytes
    found.receive(5, 150)
    found.receive(8, 150)
    assert [found.position_of(s) for s in (0, 4, 5, 7, 8, 99)] == [0, 0, 150, 150, 300, 300]
    assert (found.consume_to(200), found.consumed_bytes, found.unconsumed_bytes) == (200, 200, 100)
    assert found.consume_to(100) == 0  # never back
    found.receive(8, 10)  # a marker: its items are still to come
    assert found.position_of(8) == 310
    assert (found.consume_to(10_000), found.unconsumed_bytes) == (110, 0)


def test_small_blocks_become_one() -> None:
    found = BytePositions(1600)
    found.receive(1, 60)
    found.receive(2, 40)
    found.receive(3, 40)
    assert [found.position_of(s) for s in (0, 1, 2, 3)] == [0, 0, 100, 140]


def test_who_stands_before_all_blocks() -> None:
    found = BytePositions(160)
    for seqno in range(1, 101):
        found.receive(seqno, 10)
    found.consume_to(1000)
    assert found.position_of(83) == found.before_blocks == 1000 - 160 - 1
    assert found.position_of(84) == 840
    found.begin_again(50)
    assert (found.position_of(49), found.position_of(50)) == (found.before_blocks, 1000)
    found.receive(51, 10)
    assert found.position_of(51) == 1010


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400), st.integers(0, 3000)), max_size=40),
    st.integers(1, 2000),
)
def test_properties(steps: list[tuple[int, int, int]], window_bytes: int) -> None:
    """D never goes back nor beyond R; a position is never beyond what was received by then."""
    found = BytePositions(window_bytes)
    seqno = received = consumed = 0
    ends = {0: 0}
    for further, frame_bytes, consume_to in steps:
        seqno += further
        received += frame_bytes
        found.receive(seqno, frame_bytes)
        ends[seqno] = received
        consumed += found.consume_to(consume_to)
        assert found.received_bytes == received
        assert found.consumed_bytes == consumed <= received
        assert found.unconsumed_bytes == received - consumed
        positions = [found.position_of(each) for each in range(seqno + 1)]
        assert positions == sorted(positions)
        assert positions[-1] == received
        for each, end in ends.items():
            assert found.position_of(each) <= max(end, found.before_blocks)

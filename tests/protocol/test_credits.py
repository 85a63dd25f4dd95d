"""Stage credits: the gate, a credit's states, and that nothing is lost in any interleaving."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import LocalProtocolError
from dcp.protocol.credits import Credit, Credits, CreditState


def taken(credits: Credits, amount: int, now: float = 0.0) -> Credit:
    credit = credits.try_take(amount, now)
    assert credit is not None
    return credit


def test_the_gate_closes_at_high_and_opens_at_low() -> None:
    stage = Credits("decode", high=100, low=40)
    first, second = taken(stage, 60), taken(stage, 40)
    seen = [(stage.in_use, stage.is_open)]
    for credit, now in ((first, 1.0), (second, 2.0)):
        credit.release_part(30, now)
        seen.append((stage.in_use, stage.is_open))
    assert seen == [(100, False), (70, False), (40, True)]
    assert stage.closed_seconds(9.0) == 2.0


def test_an_item_larger_than_the_gate_passes_and_earns_its_parts_back() -> None:
    stage = Credits("window", high=100, low=50)
    big = taken(stage, 20_000)
    assert (stage.is_open, stage.in_use, stage.peak) == (False, 20_000, 20_000)
    for _ in range(199):
        big.release_part(100, 1.0)
        assert not stage.is_open
    big.release_part(50, 1.0)
    assert stage.is_open
    assert big.amount == 50
    big.release(2.0)
    assert stage.in_use == 0


def test_the_room_is_what_is_left_to_the_mark_and_nothing_while_closed() -> None:
    stage = Credits("read", high=100, low=50)
    credit = taken(stage, 30)
    rooms = [stage.room]
    credit.take_more(90, 0.0)
    rooms.append(stage.room)
    credit.release_part(60, 0.0)
    assert [*rooms, stage.room] == [70, 0, 0], "60 in use: it opens at 50"
    credit.release_part(10, 0.0)
    assert stage.room == 50


def test_what_is_here_already_is_counted_though_the_gate_is_closed() -> None:
    stage = Credits("read", high=10, low=0)
    taken(stage, 10)
    stage.take(5, 1.0)
    assert (stage.in_use, stage.peak) == (15, 15)


COMMANDS = {
    "release": lambda credit: credit.release(1.0),
    "release_part": lambda credit: credit.release_part(0, 1.0),
    "take_more": lambda credit: credit.take_more(1, 1.0),
    "try_pass": lambda credit: credit.try_pass(Credits("next", 10, 0), 1.0),
}
ENDS = {
    "released": lambda credit: credit.release(1.0),
    "settled": lambda credit: credit.settle(1.0),
    "passed": lambda credit: credit.try_pass(Credits("next", 10, 0), 1.0),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_credit_ends_once(end: str, command: str) -> None:
    stage = Credits("stage", high=10, low=0)
    credit = stage.take(7, 0.0, "vbucket 3")
    ENDS[end](credit)
    in_use, state = stage.in_use, credit.state
    with pytest.raises(
        LocalProtocolError, match=f"{command}: stage: found a credit of 'vbucket 3'"
    ):
        COMMANDS[command](credit)
    credit.settle(2.0)
    assert (stage.in_use, credit.state, stage.second_releases) == (in_use, state, 1)


def test_a_credit_passes_to_the_next_stage_once_that_admits_it() -> None:
    stage, following = Credits("batch", high=10, low=0), Credits("spark", high=5, low=0)
    mine, before = stage.take(7, 0.0, "reader"), taken(following, 5)
    assert mine.try_pass(following, 1.0) is None
    assert (stage.in_use, mine.state) == (7, CreditState.HELD)
    before.release(2.0)
    theirs = mine.try_pass(following, 2.0)
    assert theirs is not None
    mine.settle(3.0)
    assert (stage.in_use, mine.state, following.in_use) == (0, CreditState.PASSED, 7)
    assert (theirs.amount, theirs.holder) == (7, "reader")
    theirs.release(4.0)
    assert following.in_use == 0


def test_a_part_beyond_what_is_left_is_refused() -> None:
    stage = Credits("stage", high=10, low=0)
    credit = stage.take(7, 0.0)
    with pytest.raises(LocalProtocolError, match=r"found 8 .* expected 0 to 7"):
        credit.release_part(8, 1.0)
    with pytest.raises(LocalProtocolError, match="found -1"):
        credit.release_part(-1, 1.0)
    assert (stage.in_use, stage.second_releases) == (7, 2)


@pytest.mark.parametrize(("high", "low"), [(0, 0), (10, 10), (10, 11), (10, -1), (-5, -6)])
def test_marks_that_would_close_for_ever_are_refused(high: int, low: int) -> None:
    with pytest.raises(ValueError, match="stage"):
        Credits("stage", high, low)


steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "release", "part", "pass", "settle", "again"]),
        st.integers(0, 200),
        st.integers(0, 20),
    ),
    max_size=80,
)


def ends(
    credit: Credit, what: str, amount: int, following: Credits, beyond: list[Credit], now: float
) -> bool:
    """Do something with a credit; return whether it is no longer held here."""
    if what == "part":
        credit.release_part(min(amount, credit.amount), now)
        return False
    if what == "pass":
        passed = credit.try_pass(following, now)
        beyond += [] if passed is None else [passed]
        return passed is not None
    if what in ("release", "settle"):
        getattr(credit, what)(now)
    return what in ("release", "settle")


@given(high=st.integers(1, 100), gap=st.integers(1, 100), script=steps)
def test_whatever_happens_everything_comes_back_once(
    high: int, gap: int, script: list[tuple[str, int, int]]
) -> None:
    stage = Credits("stage", high, max(0, high - gap))
    following = Credits("next", 50, 10)
    held: list[Credit] = []
    ended: list[Credit] = []
    beyond: list[Credit] = []
    largest = 0
    for now, (what, amount, which) in enumerate(script):
        if what == "take":
            was_open, before = stage.is_open, stage.in_use
            credit = stage.try_take(amount, now, "somebody")
            assert (credit is not None) == was_open
            assert was_open or before > stage.low
            if credit is not None:
                held.append(credit)
                largest = max(largest, amount)
        elif what == "again" and ended:
            with pytest.raises(LocalProtocolError):
                ended[which % len(ended)].release(now)
        elif held:
            credit = held[which % len(held)]
            if ends(credit, what, amount, following, beyond, now):
                held.remove(credit)
                ended.append(credit)
        while len(beyond) > 3:
            beyond.pop(0).release(now)
        assert stage.in_use == sum(each.amount for each in held)
        assert following.in_use == sum(each.amount for each in beyond)
        assert stage.in_use <= stage.peak <= max(high - 1, 0) + largest
        assert stage.is_open or stage.in_use > stage.low
        assert not stage.is_open or stage.in_use < high
    for credit in (*held, *beyond):
        credit.settle(len(script))
    assert (stage.in_use, following.in_use) == (0, 0)
    assert stage.is_open
    assert stage.taken_total == stage.released_total
    assert 0 <= stage.closed_seconds(len(script)) <= len(script)

"""A replica's acknowledgements of prepares, against a model that remembers all of them."""

from hypothesis import given
from hypothesis import strategies as st

from dcp.server.vbucket.acknowledgements import Acknowledgements

LEVELS = st.lists(st.integers(1, 3), max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("snapshot"), LEVELS),
        st.tuples(st.just("persist"), st.integers(0, 30)),
        st.tuples(st.just("cut"), st.integers(0, 30)),
    ),
    max_size=20,
)


def _reachable(prepares: dict[int, int], whole: int, persisted: int) -> int:
    """The newest prepare up to ``whole`` that no unpersisted one of level 3 comes up to."""
    missing = [seqno for seqno, level in prepares.items() if level == 3 and seqno > persisted]
    end = min([whole, *(seqno - 1 for seqno in missing)])
    return max((seqno for seqno in prepares if seqno <= end), default=0)


@given(STEPS)
def test_acknowledged_is_what_is_held(steps: list[tuple[str, list[int] | int]]) -> None:
    """Never more than that; and all of it when the disk has what the snapshots brought."""
    held, prepares = Acknowledgements(), dict[int, int]()
    seqno = whole = persisted = 0
    for kind, what in steps:
        if isinstance(what, list):
            for level in what:
                seqno += 1
                held.prepared(seqno, level, whole)
                prepares[seqno] = level
                held.reach(whole, persisted)
                assert held.seqno <= _reachable(prepares, whole, persisted)
            whole = seqno
        elif kind == "persist":
            persisted = max(persisted, min(what, whole))
        else:
            whole = seqno = min(what, whole)
            persisted = min(persisted, whole)
            prepares = {each: level for each, level in prepares.items() if each <= whole}
            held.cut(whole)
        held.reach(whole, persisted)
        assert held.seqno <= whole
    held.reach(whole, whole)
    newest = max(prepares, default=0)
    assert newest <= held.seqno <= whole


def test_what_must_be_on_disk_holds_up_what_comes_behind_it() -> None:
    held = Acknowledgements()
    held.prepared(1, 1, 0)
    held.prepared(2, 3, 1)
    held.prepared(3, 1, 2)
    held.reach(0, 0)
    assert held.seqno == 0
    held.reach(3, 1)
    assert held.seqno == 1
    held.reach(3, 2)
    assert held.seqno == 3


def test_prepares_of_one_snapshot_take_one_place() -> None:
    """However many a backfill brings, the last of them is what is acknowledged."""
    held = Acknowledgements()
    for seqno in range(1, 1000):
        held.prepared(seqno, 1, 0)
    held.reach(998, 0)
    assert held.seqno == 0
    held.reach(999, 0)
    assert held.seqno == 999

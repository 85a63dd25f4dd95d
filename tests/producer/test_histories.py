"""What the unseen seqnos of a recorded history held: so that all is shown again as it was."""

from hypothesis import given
from hypothesis import strategies as st

from tests.producer_conformance.histories import complete
from tests.producer_conformance.sightings import Item, Snapshot, What

KEYS = (b"a", b"b", b"c")


def newest(items: dict[int, Item], after: int, end: int) -> set[int]:
    """The naive model of a snapshot: each key once, with its newest version up to the end."""
    last = {item.key: seqno for seqno, item in sorted(items.items()) if seqno <= end}
    return {seqno for seqno in last.values() if seqno > after}


def history_of(keys: list[bytes]) -> dict[int, Item]:
    return {
        seqno: Item(seqno, key, rev=keys[:seqno].count(key)) for seqno, key in enumerate(keys, 1)
    }


def snapshot_of(items: dict[int, Item], bounds: tuple[int, int]) -> Snapshot:
    after, end = min(bounds), max(bounds)
    return Snapshot(1, after, end, end, newest(items, after, end))


@given(
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=4),
)
def test_what_was_shown_is_shown_again(keys: list[bytes], bounds: list[tuple[int, int]]) -> None:
    true = history_of(keys)
    within = [(min(low, len(keys)), min(high, len(keys))) for low, high in bounds]
    snapshots = [snapshot_of(true, one) for one in within]
    shown = {seqno: true[seqno] for one in snapshots for seqno in one.shown}
    items = complete(shown, range(1, len(keys) + 1), 0, snapshots)
    assert [item.seqno for item in items] == [*true]
    assert all(item.what is not What.HIDDEN for item in items)
    found = {item.seqno: item for item in items}
    assert found.items() >= shown.items()
    for one in snapshots:
        assert newest(found, one.after, one.end) == one.shown


def test_a_purged_tombstone_is_of_a_key_that_is_gone() -> None:
    shown = {1: Item(1, b"a"), 3: Item(3, b"b")}
    snapshots = [Snapshot(1, 0, 1, 1, {1}), Snapshot(2, 0, 3, 3, {3})]
    _, tombstone, _ = complete(shown, range(1, 4), 2, snapshots)
    assert (tombstone.key, tombstone.rev, tombstone.what) == (b"a", 2, What.DOCUMENT)


def test_what_no_revision_explains_is_hidden() -> None:
    shown = {2: Item(2, b"a")}
    first, _ = complete(shown, range(1, 3), 0, [Snapshot(1, 0, 2, 2, {2})])
    assert first.what is What.HIDDEN


def test_what_no_snapshot_reached_may_be_anything() -> None:
    _, last = complete({1: Item(1, b"a")}, range(1, 3), 0, [Snapshot(1, 0, 1, 1, {1})])
    assert last.what is What.DOCUMENT

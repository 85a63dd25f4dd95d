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
    items = complete(shown, 0, [len(keys)], 0, snapshots)
    assert [item.seqno for item in items] == [*true]
    first_shown = min(shown, default=1)  # what lay before it was gone
    assert all(item.what is not What.HIDDEN or item.seqno < first_shown for item in items)
    found = {item.seqno: item for item in items}
    assert found.items() >= shown.items()
    for one in snapshots:
        assert newest(found, one.after, one.end) == one.shown


def test_a_purged_tombstone_is_of_a_key_that_is_gone() -> None:
    shown = {1: Item(1, b"a"), 3: Item(3, b"b")}
    snapshots = [Snapshot(1, 0, 1, 1, {1}), Snapshot(2, 0, 3, 3, {3})]
    _, tombstone, _ = complete(shown, 0, [], 2, snapshots)
    assert (tombstone.key, tombstone.rev, tombstone.what) == (b"a", 2, What.DOCUMENT)


SEEN_WHOLE = [Snapshot(1, 0, 3, 3, {1, 3})]
SHOWN = {1: Item(1, b"a"), 3: Item(3, b"b")}


def test_what_no_revision_explains_is_hidden_where_anything_is() -> None:
    _, second, _ = complete(SHOWN, 0, [], 0, SEEN_WHOLE, hides=True)
    assert second.what is What.HIDDEN


def test_what_no_revision_explains_is_a_lost_document_where_nothing_is_hidden() -> None:
    _, second, _ = complete(SHOWN, 0, [], 0, SEEN_WHOLE, hides=False)
    assert second.what is What.DOCUMENT


def test_before_all_that_was_shown_anything_may_be_gone() -> None:
    first, _ = complete({2: Item(2, b"a")}, 0, [], 0, [Snapshot(1, 0, 2, 2, {2})], hides=False)
    assert first.what is What.HIDDEN


def test_what_no_snapshot_reached_may_be_anything() -> None:
    _, last = complete({1: Item(1, b"a")}, 0, [2], 0, [Snapshot(1, 0, 1, 1, {1})])
    assert last.what is What.DOCUMENT


def test_far_apart_seqnos_cost_nothing() -> None:
    shown = {seqno: Item(seqno, b"k%d" % seqno) for seqno in (5, 10**12, 2 * 10**12)}
    items = complete(shown, 4, [3 * 10**12], 0, [Snapshot(1, 0, 4 * 10**12, 4 * 10**12, {*shown})])
    assert [item.seqno for item in items] == [*shown, 3 * 10**12]

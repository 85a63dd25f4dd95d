"""Each key's fate follows from the rows that the log has of it: in any order, however many."""

from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.log.slice_rows import LostKey, Winner, keys_of
from dcp.lake.store.log_slice import Role

rows = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from("abc"), st.sampled_from(list(Role))), max_size=40
).flatmap(lambda found: st.permutations(list(enumerate(found, 1))))


@given(rows)
def test_the_newest_live_version_of_a_touched_key_wins(
    log: list[tuple[int, tuple[int, str, Role]]],
) -> None:
    found = keys_of(
        {"vbucket": vbucket, "key": key, "round": 3, "epoch": 0, "seqno": seqno, "role": role}
        for seqno, (vbucket, key, role) in log
    )
    winners, lost = list[Winner](), list[LostKey]()
    for place in sorted({(vbucket, key) for _, (vbucket, key, _) in log}):
        versions = {seqno: row[2] for seqno, row in log if row[:2] == place}
        live = [seqno for seqno, role in versions.items() if role != Role.UNDONE]
        if set(versions.values()) == {Role.KEPT}:
            continue
        if live:
            winners.append(Winner(place[1], 3, place[0], 0, max(live)))
        else:
            lost.append(LostKey(place[1], place[0]))
    assert (list(found.winners), list(found.lost)) == (winners, lost)

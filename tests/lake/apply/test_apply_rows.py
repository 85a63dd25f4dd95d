"""Each key's fate follows from the rows that the log has of it: in any order, however many."""

from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.change_log.touched_keys import RowPlace, touched_by
from dcp.lake.store.log_slice import Role

rows = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from("abc"), st.sampled_from(list(Role))), max_size=40
).flatmap(lambda found: st.permutations(list(enumerate(found, 1))))


@given(rows)
def test_the_newest_live_version_of_a_touched_key_wins(
    log: list[tuple[int, tuple[int, str, Role]]],
) -> None:
    found = touched_by(
        {"vbucket": vbucket, "key": key, "round": 3, "epoch": 0, "seqno": seqno, "role": role}
        for seqno, (vbucket, key, role) in log
    )
    newest: dict[tuple[int, str], RowPlace | None] = {}
    for place in sorted({(vbucket, key) for _, (vbucket, key, _) in log}):
        roles = {seqno: row[2] for seqno, row in log if row[:2] == place}
        if set(roles.values()) != {Role.KEPT}:
            live = [seqno for seqno, role in roles.items() if role in (Role.FRESH, Role.KEPT)]
            newest[place] = RowPlace(max(live), 0, 3) if live else None
    assert found.newest == newest

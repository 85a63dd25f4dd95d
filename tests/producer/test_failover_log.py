"""A failover log's life cycle against a list that is edited by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.failover_log import fork
from dcp.types import MAX_FAILOVER_ENTRIES, U64_MAX, FailoverEntry, FailoverLog

seqnos = st.one_of(st.integers(0, 60), st.integers(2**63 - 2, 2**63 + 2), st.just(U64_MAX))


@given(st.lists(seqnos, max_size=80))
def test_branches_against_a_naive_list(branch_seqnos: list[int]) -> None:
    log = FailoverLog((FailoverEntry(1, 0),))
    newest_last = [(1, 0)]
    for uuid, seqno in enumerate(branch_seqnos, start=2):
        log = fork(log, seqno, uuid)
        for entry in list(newest_last):
            if entry[1] > seqno:
                newest_last.remove(entry)
        newest_last.append((uuid, seqno))
        while len(newest_last) > 25:
            newest_last.pop(0)
        assert [(e.vb_uuid, e.seqno) for e in log.entries] == newest_last[::-1]


def test_the_oldest_entries_make_room() -> None:
    log = FailoverLog((FailoverEntry(1, 0),))
    for number in range(2, 32):
        log = fork(log, 10 * number, number)
    assert len(log.entries) == MAX_FAILOVER_ENTRIES == 25
    assert (log.entries[0].vb_uuid, log.entries[-1].vb_uuid) == (31, 7)


@pytest.mark.parametrize(("uuid", "seqno"), [(0, 5), (7, 5), (8, -1), (2**64, 5), (8, 2**64)])
def test_impossible_branches(uuid: int, seqno: int) -> None:
    with pytest.raises(ValueError, match="found"):
        fork(FailoverLog((FailoverEntry(7, 0),)), seqno, uuid)

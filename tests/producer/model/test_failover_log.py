"""A failover log's life cycle against a list that is edited by hand; how branches are called."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.server.model.failover_log import fork, fresh_uuid
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


def test_new_branches_have_uuids_of_48_bits() -> None:
    random = Random(1)
    uuids = [fresh_uuid(random.randint) for _ in range(500)]
    assert all(0 < uuid < 1 << 48 for uuid in uuids)
    assert max(uuids) >= 1 << 47
    assert all(int(float(uuid)) == uuid for uuid in uuids)


@pytest.mark.parametrize("is_kept", [False, True])
def test_all_branches_of_a_cluster_have_uuids_of_48_bits(
    make_cluster: Callable[..., ProducerCluster], tmp_path: Path, is_kept: bool
) -> None:
    folder = {"data_folder": tmp_path / "kept"} if is_kept else {}
    cluster = make_cluster(nodes=2, vbuckets=8, replicas=1, **folder)
    for number in range(100):
        cluster.set(b"k%d" % number, b"1")
    cluster.wait_until_replicated()
    cluster.failover(0)
    entries = [each for vbucket in range(8) for each in cluster.failover_log(vbucket).entries]
    assert len(entries) == 8 + 4
    assert all(0 < entry.vb_uuid < 1 << 48 for entry in entries)

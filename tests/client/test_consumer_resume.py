"""Nothing is sent again or lost: a consumer resumes after a cut connection and after a restart.

A position counts what was delivered, not what the reader thread holds already.
"""

import pytest

from dcp.protocol.events import StreamOpened
from tests.client.conftest import MakeCluster
from tests.client.consuming import PATIENT, assert_nothing_sent_twice, consuming, settings, starts
from tests.client.drained import Drained, assert_same_state, caught_up, fill


@pytest.mark.parametrize("cut_after", [1, 150, 777])
def test_resumes_inside_a_snapshot_without_repeating(
    make_cluster: MakeCluster, cut_after: int
) -> None:
    cluster = make_cluster(vbuckets=1, **PATIENT)
    fill(cluster, 1000)
    with consuming(cluster) as consumer:
        cluster.snapshot_cut_after(cut_after)
        drained = Drained().run(consumer, caught_up(cluster))
        assert cluster.faults.cuts_done == 1
        assert_same_state(cluster, drained)
    assert_nothing_sent_twice(cluster, drained)
    assert cluster.counters().dcp_connections_opened == 2


def test_a_new_consumer_resumes_where_the_old_one_stood(make_cluster: MakeCluster) -> None:
    """A restart: rows that were delivered and released are not sent again."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 1000)
    drained = Drained()
    for _ in range(10):
        cluster.snapshot_cut_after(120)
        with consuming(cluster, starts(cluster, drained)) as consumer:
            rows = drained.rows
            drained.run(consumer, lambda each, rows=rows: each.rows >= min(1000, rows + 100))  # type: ignore[misc]
            while (more := consumer.next(0.1)) is not None and drained.rows < 1000:
                drained.take(more)
                drained.release_all()
            assert {v: consumer.position(v) for v in drained.positions} == drained.positions
    cluster.faults.clear()
    with consuming(cluster, starts(cluster, drained)) as consumer:
        drained.run(consumer, caught_up(cluster))
    assert_same_state(cluster, drained)


def test_positions_lag_behind_the_reader(make_cluster: MakeCluster) -> None:
    """What the reader thread received early must not count as delivered."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 2000, value_bytes=200)
    chosen = settings(read_buffer_bytes=4096)
    with consuming(cluster, chosen=chosen) as consumer:
        drained = Drained().run(consumer, lambda each: each.rows > 0, release=False)
        assert consumer.position(0) == drained.positions[0]
        assert consumer.position(0).seqno == drained.seqnos[0][-1] < 2000


def test_releasing_after_a_reconnect_is_harmless(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 1000, value_bytes=200)
    with consuming(cluster, chosen=settings(window_bytes=100_000)) as consumer:
        drained = Drained().run(consumer, lambda each: each.rows > 10, release=False)
        cluster.drop_connections()
        drained.run(
            consumer,
            lambda each: sum(isinstance(e, StreamOpened) for e in each.events) == 2,
            release=False,
        )
        drained.release_all()
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster)))
    assert cluster.counters().peak_unacked_bytes <= 100_000 + 300

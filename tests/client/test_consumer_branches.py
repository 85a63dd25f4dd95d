"""Snapshots that span branches: a stream that is cut in them over and over never starts again."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.protocol.events import RollbackOrdered
from dcp.types import FailoverLog
from tests.client.conftest import MakeCluster
from tests.client.consuming import PATIENT, assert_nothing_sent_twice, consuming, settings, starts
from tests.client.drained import Drained, all_of, assert_same_state, caught_up

TINY = settings(window_bytes=600, read_buffer_bytes=256)
"""A window of some messages; each of them is handed over for itself."""
KEYS = 240


def fill_branches(cluster: ProducerCluster, branches: int) -> None:
    """Write documents on several branches, of which a backfill makes one snapshot."""
    random = Random(3)
    for branch in range(branches):
        with cluster.batch():
            for number in range(KEYS):
                if branch == 0 or random.random() < 0.3:
                    cluster.set(b"key-%d" % number, b'{"branch":%d}' % branch)
        if branch < branches - 1:
            cluster.crash_restart(0, lost_seqnos=0)
            cluster.restore_node(0)
    for vbucket in all_of(cluster):
        assert len(cluster.failover_log(vbucket).entries) == branches


def rollbacks(drained: Drained) -> list[RollbackOrdered]:
    return [each for each in drained.events if isinstance(each, RollbackOrdered)]


@pytest.mark.parametrize("rules", ["document", "server"])
def test_connections_that_are_cut_again_and_again(make_cluster: MakeCluster, rules: str) -> None:
    cluster = make_cluster(vbuckets=2, checkpoint_items=10, rules=rules, **PATIENT)
    fill_branches(cluster, 3)
    with consuming(cluster, chosen=TINY) as consumer:
        drained = Drained()
        for cuts in range(1, 15):
            cluster.snapshot_cut_after(10)
            drained.run(consumer, has_been_cut(cluster, cuts))
        cluster.faults.clear()
        drained.run(consumer, caught_up(cluster))
    assert_same_state(cluster, drained)
    assert_nothing_sent_twice(cluster, drained)
    assert rollbacks(drained) == []


def has_been_cut(cluster: ProducerCluster, times: int) -> Callable[[Drained], bool]:
    return lambda _: cluster.faults.cuts_done >= times


@pytest.mark.parametrize("keeps_log", [True, False])
def test_consumers_that_begin_again_and_again(make_cluster: MakeCluster, keeps_log: bool) -> None:
    cluster = make_cluster(vbuckets=2, checkpoint_items=10)
    fill_branches(cluster, 3)
    drained = Drained()
    logs: dict[int, FailoverLog] = {}
    is_done = caught_up(cluster)
    while not is_done(drained):
        streams = [
            replace(each, failover_log=logs.get(each.vbucket)) for each in starts(cluster, drained)
        ]
        enough = drained.rows + 20
        with consuming(cluster, streams, TINY) as consumer:
            drained.run(consumer, lambda each, most=enough: each.rows >= most or is_done(each))  # type: ignore[misc]
            if keeps_log:
                logs = drained.logs
    assert_same_state(cluster, drained)
    assert rollbacks(drained) == []


def test_a_failover_below_what_is_held_still_takes_back(make_cluster: MakeCluster) -> None:
    """The end of the snapshot lies on what was lost: the newer branch must not be claimed."""
    cluster = make_cluster(vbuckets=1, checkpoint_items=10)
    fill_branches(cluster, 2)
    drained = Drained()
    with consuming(cluster, starts(cluster), TINY) as consumer:
        drained.run(consumer, lambda each: each.rows >= 100)
    position = drained.positions[0]
    assert position.seqno < KEYS < position.snap_end
    cluster.crash_restart(0, lost_seqnos=cluster.high_seqno(0) - KEYS)
    cluster.restore_node(0)
    with consuming(cluster, starts(cluster, drained), TINY) as consumer:
        drained.run(consumer, lambda each: bool(rollbacks(each)))
    assert [each.seqno for each in rollbacks(drained)] == [0], "the start of its snapshot"

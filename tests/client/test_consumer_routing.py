"""The consumer finds each vbucket's owner by the cluster map, and follows a vbucket that moves."""

from dcp.client.vbucket_track import StreamStart
from tests.client.conftest import MakeCluster
from tests.client.connecting import START
from tests.client.consuming import assert_nothing_sent_twice, consuming, starts
from tests.client.drained import Drained, all_of, assert_same_state, caught_up, fill


def test_finds_owners_by_the_map_when_no_address_is_known(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3)
    fill(cluster, 200)
    streams = [StreamStart(vbucket, None, START) for vbucket in all_of(cluster)]
    with consuming(cluster, streams) as consumer:
        assert_same_state(cluster, Drained().run(consumer, caught_up(cluster)))


def test_a_moved_vbucket_is_followed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 400)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        for vbucket in all_of(cluster):
            cluster.move_vbucket(vbucket, 1 - cluster.vbucket_owner(vbucket))
        fill(cluster, 400, prefix="later")
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
    assert_nothing_sent_twice(cluster, drained)


def test_a_stale_plan_is_corrected_by_not_my_vbucket(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    streams = starts(cluster)
    for vbucket in all_of(cluster):
        cluster.move_vbucket(vbucket, 1 - cluster.vbucket_owner(vbucket))
    with consuming(cluster, streams) as consumer:
        assert_same_state(cluster, Drained().run(consumer, caught_up(cluster)))

"""A lake says to which group it belongs, and only a relay listens."""

from collections.abc import Callable, Mapping
from contextlib import closing

import pytest

from dcp.client.probe import probe_cluster
from dcp.errors import NoRelayError
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.thread import Relay
from tests.client.consuming import consuming, settings
from tests.client.drained import CREDENTIALS, fill, wait_for
from tests.relay.lakes import Lake


@pytest.mark.parametrize("tag", [-(2**63), 7, 2**63 - 1])
def test_a_lake_with_the_tag_is_of_the_group(
    make_cluster: Callable[..., ProducerCluster], make_relay: Callable[..., Relay], tag: int
) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 20)
    relay = make_relay(cluster, flow_spec=parse_flow_spec(f"tagged,g:{tag}/1,t:60s"))
    with (
        closing(Lake(relay.seeds[0], 2, "other", receiver_group_tag="0")) as other,
        closing(Lake(relay.seeds[0], 2, "member", receiver_group_tag=str(tag))) as member,
    ):
        member.run_to(cluster)
        other.run_to(cluster)
        assert str(relay.figures().groups[0]) == "vbuckets 0-1: 1 of 1 receivers"


def test_who_is_no_relay_refuses_it(make_cluster: Callable[..., ProducerCluster]) -> None:
    cluster = make_cluster(vbuckets=1)
    expected = r"receiver_group_tag=7: found status 0x04 EINVAL.*, expected a relay"
    with (
        consuming(cluster, chosen=settings(receiver_group_tag="7")) as consumer,
        pytest.raises(NoRelayError, match=expected),
    ):
        for _ in range(100):
            consumer.next(0.1)


def test_a_vbucket_that_lacks_receivers_promises_what_the_cluster_has(
    make_cluster: Callable[..., ProducerCluster], make_relay: Callable[..., Relay]
) -> None:
    """Who plans by seqnos finds something to do, asks for it, and completes the group."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 20)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("tagged,g:7/1,t:60s"))

    def told() -> Mapping[int, int]:
        return probe_cluster(relay.seeds, settings().connection, CREDENTIALS).high_seqnos

    assert told() == {v: cluster.high_seqno(v) for v in range(2)}  # from the first moment
    assert cluster.counters().items_sent == {}
    with closing(Lake(relay.seeds[0], 2, "member", receiver_group_tag="7")) as member:
        member.run_to(cluster)
    fill(cluster, 20, prefix="later")
    wait_for("it is told", lambda: told() == {v: cluster.high_seqno(v) for v in range(2)})
    assert not relay.figures().upstream[0].streams

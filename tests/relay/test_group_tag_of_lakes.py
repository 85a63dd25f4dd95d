"""A lake says to which group it belongs, and only a relay listens."""

from collections.abc import Callable
from contextlib import closing

import pytest

from dcp.errors import NoRelayError
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.relay import Relay
from tests.client.consuming import consuming, settings
from tests.client.drained import fill
from tests.relay.lakes import Lake


@pytest.mark.parametrize("tag", [-(2**63), 7, 2**63 - 1])
def test_a_lake_with_the_tag_is_of_the_group(
    make_cluster: Callable[..., ProducerCluster], make_relay: Callable[..., Relay], tag: int
) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 20)
    relay = make_relay(cluster, flow_spec=parse_flow_spec(f"tagged,g:{tag}/1,t:60s"))
    with (
        closing(Lake(relay.seeds[0], 2, "other", receiver_group_tag=0)) as other,
        closing(Lake(relay.seeds[0], 2, "member", receiver_group_tag=tag)) as member,
    ):
        member.run_to(cluster)
        other.run_to(cluster)
        assert str(relay.snapshot().groups[0]) == "vbuckets 0-1: 1 of 1 receivers"


def test_who_is_no_relay_refuses_it(make_cluster: Callable[..., ProducerCluster]) -> None:
    cluster = make_cluster(vbuckets=1)
    expected = r"receiver_group_tag=7: found status 0x04 EINVAL.*, expected a relay"
    with (
        consuming(cluster, chosen=settings(receiver_group_tag=7)) as consumer,
        pytest.raises(NoRelayError, match=expected),
    ):
        for _ in range(100):
            consumer.next(0.1)

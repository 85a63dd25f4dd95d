"""A corrupt frame costs its connection and no row; a node that sends nothing else is reported."""

import pytest

from dcp.client.consumer_events import StopReason
from dcp.producer.faults import Corruption
from tests.client.conftest import MakeCluster
from tests.client.consuming import consuming, settings
from tests.client.drained import Drained, assert_same_state, caught_up, fill


@pytest.mark.parametrize("corruption", Corruption)
def test_a_corrupt_frame_costs_the_connection_and_no_row(
    make_cluster: MakeCluster, corruption: Corruption
) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 300)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, lambda each: each.rows > 0)
        cluster.corrupt(corruption)
        fill(cluster, 300, prefix="later")
        drained.run(consumer, caught_up(cluster))
        assert cluster.faults.corruptions_done == 1
        assert_same_state(cluster, drained)
    assert cluster.counters().dcp_connections_opened >= 2


def test_a_node_that_keeps_sending_garbage_is_reported(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 10)
    faults = cluster.faults
    corrupt_once = faults.corrupted

    def corrupt_always(frame: bytes | bytearray) -> tuple[bytes | bytearray, bool]:
        answer = corrupt_once(frame)
        faults.corrupt_next_item(Corruption.BAD_EXTRAS)
        return answer

    monkeypatch.setattr(faults, "corrupted", corrupt_always)
    cluster.corrupt(Corruption.BAD_EXTRAS)
    with consuming(cluster, chosen=settings(node_deadline_seconds=5.0)) as consumer:
        drained = Drained().run(consumer, lambda each: 0 in each.stopped)
        assert drained.stopped[0].reason is StopReason.PROTOCOL_ERROR
        assert "extras" in drained.stopped[0].detail
        assert drained.rows == 0
    assert faults.corruptions_done > 2

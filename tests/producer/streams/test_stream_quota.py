"""Streams of a node: a bound for all clients together, and room for who comes late."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import ConfigError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.streams.stream_quota import StreamQuota
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, Status
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
MOST = 90


def open_all(client: RawClient, vbucket: int = 0) -> int:
    """Open streams until one is refused; return how many were accepted."""
    for stream_id in range(1, 2 * MOST):
        answer = client.request_stream(vbucket, value=b'{"sid":%d}' % stream_id)
        if answer.status != Status.SUCCESS:
            assert answer.status == Status.ENOMEM
            return stream_id - 1
    raise AssertionError("no stream was refused")


def test_greedy_clients_leave_room_for_others(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(nodes=2, vbuckets=2, max_streams=MOST)

    def opened(name: bytes) -> RawClient:
        return connect(cluster).log_in().open_dcp(name=name, enable_stream_id="true")

    clients = [opened(b"%d" % number) for number in range(4)]
    assert [open_all(client) for client in clients] == [10, 9, 8, 7]
    quota = cluster.bucket.dcp_connections.shared.stream_quotas[0]
    assert quota.free == MOST - 34
    other_node = RawClient(cluster.seeds[1])
    with other_node:
        other_node.log_in().open_dcp(name=b"elsewhere", enable_stream_id="true")
        assert open_all(other_node, vbucket=1) == 10
    clients[1].socket.close()
    last = opened(b"last")
    while quota.streams > 10 + 8 + 7:
        last.ok(m.Empty(), Opcode.NOOP)
    assert open_all(last) == 8
    opened(b"0")  # in the place of the first one, whose streams are gone at once
    assert quota.streams == 8 + 7 + 8


def test_streams_that_end_make_room(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1, max_streams=2)
    dcp = connect(cluster).log_in().open_dcp()
    for _ in range(5):
        assert dcp.request_stream(0).status == Status.SUCCESS
        dcp.ok(m.Empty(), Opcode.DCP_CLOSE_STREAM)
    assert cluster.bucket.dcp_connections.shared.stream_quotas[0].streams == 0


def test_replicas_need_no_room(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(nodes=2, vbuckets=8, replicas=1, max_streams=1)
    cluster.set(b"k", b"v")
    cluster.wait_until_replicated(60.0)
    assert connect(cluster).log_in().open_dcp().request_stream(0).status == Status.SUCCESS


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=300), st.integers(1, 200))
def test_no_order_of_steps_exceeds_the_bound_or_takes_all(
    steps: list[tuple[int, bool]], most: int
) -> None:
    quota, held = StreamQuota(most), [0] * 7
    for who, opens in steps:
        if opens and quota.has_room(held[who]):
            quota.opened()
            held[who] += 1
        elif not opens and held[who]:
            quota.ended()
            held[who] -= 1
        assert quota.streams == sum(held) <= most
    assert max(held) <= most // 9 + 1
    assert most < 50 or quota.has_room(0)


def test_none_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_streams: found 0"):
        ClusterSettings(max_streams=0)

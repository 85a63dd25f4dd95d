"""Membership of a vbucket's group, from when and until when: over real sockets."""

from collections.abc import Callable
from contextlib import closing
from time import sleep

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.stuck_consumers import StuckConsumers
from dcp.relay.thread import Relay
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status
from tests.client.drained import fill, wait_for
from tests.producer.raw_client import RawClient
from tests.relay.following import wait_until_level
from tests.relay.lakes import PATIENCE_SECONDS, Lake

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]


def _request_at_the_end(client: RawClient, cluster: ProducerCluster) -> Frame:
    end = cluster.high_seqno(0)
    return client.request_stream(0, end, vb_uuid=cluster.failover_log(0).current_uuid)


def _groups(relay: Relay) -> list[str]:
    return [str(each) for each in relay.figures().groups]


def _wait_for_members(relay: Relay, count: int) -> None:
    def is_so() -> bool:
        return [each.receivers for each in relay.figures().groups] == [count]

    wait_for(f"{count} members", is_so, PATIENCE_SECONDS)


@pytest.mark.parametrize("gives_up", [False, True])
def test_who_asks_seldom_is_there_between(
    make_cluster: MakeCluster, make_relay: MakeRelay, gives_up: bool
) -> None:
    """Two meet whose attempts are farther apart than the timeout, as both are connected."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 20)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,g:/2,t:100ms"))
    with RawClient(relay.seeds[0]) as first, RawClient(relay.seeds[0]) as second:
        for client, name in ((first, b"first"), (second, b"second")):
            client.log_in().open_dcp(name)
        assert _request_at_the_end(first, cluster).status == Status.ETMPFAIL
        _wait_for_members(relay, 1)
        sleep(0.7)
        if gives_up:
            gone = first.call(m.Empty(), Opcode.DCP_CLOSE_STREAM)
            assert gone.status == Status.KEY_ENOENT
            _wait_for_members(relay, 0)
        assert _request_at_the_end(second, cluster).status == Status.ETMPFAIL
        _wait_for_members(relay, 1 if gives_up else 2)
        assert _groups(relay)[0].endswith("no stream until they are there") is gives_up
        if not gives_up:
            wait_until_level(cluster, relay)
            for client in (first, second):
                assert _request_at_the_end(client, cluster).status == Status.SUCCESS
    _wait_for_members(relay, 0)


def test_who_begins_again_far_behind_holds_nobody(
    make_cluster: MakeCluster, make_relay: MakeRelay
) -> None:
    """On the same connection, and so soon that nobody looks in between."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 200, 1_000)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,t:60s"), window_bytes=50_000)
    with (
        closing(Lake(relay.seeds[0], 1, "level", window_bytes=10_000)) as level,
        RawClient(relay.seeds[0]) as client,
    ):
        level.run_to(cluster)
        client.log_in().open_dcp(b"again", window=2_000)
        assert _request_at_the_end(client, cluster).status == Status.SUCCESS
        _wait_for_members(relay, 2)
        from_the_beginning = m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0)
        client.send(
            encode(m.Empty(), Opcode.DCP_CLOSE_STREAM, opaque=77),
            encode(from_the_beginning, Opcode.DCP_STREAM_REQ, opaque=78),
        )
        fill(cluster, 200, 1_000, prefix="later")
        level.run_to(cluster)
        _wait_for_members(relay, 1)
        assert relay.figures().newcomers_refused == 1


def test_who_changes_its_tag_has_left_and_is_not_stuck(
    make_cluster: MakeCluster, make_relay: MakeRelay, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = make_cluster(vbuckets=1)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("tagged,g:9,t:1s"))
    with RawClient(relay.seeds[0]) as client:
        client.log_in().open_dcp(b"turncoat", receiver_group_tag="9")
        client.request_stream(0)
        for tag, members in ((b"8", 0), (b"9", 1), (b"8", 0)):
            _wait_for_members(relay, 1 - members)
            client.ok(m.DcpControl(b"receiver_group_tag", tag), Opcode.DCP_CONTROL)
            _wait_for_members(relay, members)
        fill(cluster, 20)
        wait_until_level(cluster, relay)
        sleep(1.5)
        found = relay.figures()
    assert (found.ejections, found.streams_ejected) == (0, 0)
    assert "is stuck" not in caplog.text


def test_a_second_stall_is_told_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """It left one of the vbuckets that gave it up, and counted again in the other."""
    stuck = StuckConsumers()
    for vbuckets in ((5, 6), (6,)):
        for vbucket in vbuckets:
            stuck.ejected(1, vbucket)
            stuck.tell({1: "some"})  # not all have looked yet
        stuck.tell({1: "some"})
        for vbucket in vbuckets:
            stuck.is_over(1, vbucket)
    assert stuck.ejections == 2
    assert [each.getMessage().split(",")[0] for each in caplog.records] == [
        "consumer some is stuck: 2 vbuckets no longer wait for it",
        "consumer some is stuck: 1 vbucket no longer waits for it",
    ]

"""A consumer's reactions to refusals: try again, end the vbucket, or end altogether."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.consumer_events import StopReason
from dcp.client.vbucket_track import StreamStart
from dcp.errors import AuthenticationError, BucketError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.position import Position
from dcp.server.commands.session import CommandHandler, Session
from dcp.server.model.resume_rules import Rules, VbucketFacts, Verdict, judge
from dcp.types import MAX_FAILOVER_ENTRIES, FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status
from tests.client.conftest import MakeCluster
from tests.client.consuming import (
    assert_nothing_sent_twice,
    consuming,
    owned,
    settings,
    starts,
)
from tests.client.drained import (
    PATIENCE_SECONDS,
    USERS,
    Drained,
    all_of,
    assert_same_state,
    caught_up,
    fill,
)


@pytest.mark.parametrize("status", [Status.ETMPFAIL, Status.EBUSY, Status.ENOMEM, 0x4F])
def test_temporary_refusals_are_retried(make_cluster: MakeCluster, status: Status) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 50)
    cluster.refuse_stream(1, status, times=3)
    with consuming(cluster) as consumer:
        assert_same_state(cluster, Drained().run(consumer, caught_up(cluster)))
    assert cluster.counters().streams_refused[1] == 3


def test_a_node_in_warm_up_is_waited_for(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses one step after the other for a while: login, bucket, DCP, streams."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 50)
    refusals: list[tuple[int, Status]] = []
    carry_out = Session._carry_out

    def warming_up(session: Session, command: CommandHandler, frame: Frame, *more: Any) -> None:
        if refusals and frame.opcode == refusals[0][0]:
            session.refuse(frame, refusals.pop(0)[1])
        else:
            carry_out(session, command, frame, *more)

    monkeypatch.setattr(Session, "_carry_out", warming_up)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        refusals += [
            (opcode, status)
            for opcode, status in (
                (Opcode.HELLO, Status.NOT_INITIALIZED),
                (Opcode.SASL_AUTH, Status.NOT_INITIALIZED),
                (Opcode.SELECT_BUCKET, Status.ETMPFAIL),
                (Opcode.GET_CLUSTER_CONFIG, Status.ETMPFAIL),
                (Opcode.DCP_OPEN, Status.ETMPFAIL),
                (Opcode.DCP_STREAM_REQ, Status.NOT_INITIALIZED),
                (Opcode.DCP_STREAM_REQ, Status.ETMPFAIL),
                (Opcode.DCP_STREAM_REQ, Status.NOT_MY_VBUCKET),  # with no map, as observed on 7.0
            )
            for _ in range(2)
        ]
        cluster.drop_connections()
        fill(cluster, 50, prefix="later")
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster)))
    assert not refusals, "each of them was met"
    assert_nothing_sent_twice(cluster, drained)


def test_a_lasting_refusal_ends_its_vbucket_at_the_deadline(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 50)
    cluster.refuse_stream(1, Status.ETMPFAIL, times=10**6)
    with consuming(cluster, chosen=settings(node_deadline_seconds=5.0)) as consumer:
        drained = Drained().run(consumer, lambda each: 1 in each.stopped)
        assert drained.stopped[1].reason is StopReason.REFUSED
        assert "status 0x86 ETMPFAIL, a temporary failure" in drained.stopped[1].detail
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster, 0)), 0)


@pytest.mark.parametrize("status", [Status.EINVAL, Status.ERANGE, Status.UNKNOWN_COLLECTION])
def test_a_final_refusal_ends_its_vbucket_at_once(
    make_cluster: MakeCluster, status: Status
) -> None:
    cluster = make_cluster(vbuckets=2)
    cluster.refuse_stream(0, status)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, lambda each: 0 in each.stopped)
        assert drained.stopped[0].reason is StopReason.REFUSED
        assert status.name in drained.stopped[0].detail


def break_log(cluster: ProducerCluster, vbucket: int) -> None:
    """Let a vbucket have one entry more than any server keeps."""
    entries = (FailoverEntry(seqno + 1, 0) for seqno in range(MAX_FAILOVER_ENTRIES + 1))
    cluster.bucket.vbuckets[vbucket].failover_log = FailoverLog(tuple(entries))


def test_an_impossible_failover_log_ends_its_vbucket_alone(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 50)
    break_log(cluster, 1)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, lambda each: 1 in each.stopped)
        assert drained.stopped[1].reason is StopReason.REFUSED
        assert "failover log: found 26 entries, expected at most 25" in drained.stopped[1].detail
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster, 0)), 0)
        fill(cluster, 50, prefix="later")
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster, 0)), 0)
    assert 1 not in drained.seqnos
    assert cluster.counters().dcp_connections_opened == 1


def test_an_impossible_failover_log_after_a_rollback_ends_its_vbucket_alone(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 50)
    break_log(cluster, 1)
    streams = starts(cluster)
    streams[1] = StreamStart(1, streams[1].address, Position.complete_at(0xDEAD, 10))
    with consuming(cluster, streams) as consumer:
        drained = Drained().run(consumer, lambda each: 1 in each.stopped)
        assert drained.stopped[1].reason is StopReason.REFUSED
        assert "found 26 entries" in drained.stopped[1].detail
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster, 0)), 0)
    assert cluster.counters().dcp_connections_opened == 1


def test_a_rollback_above_the_request_ends_its_vbucket_alone(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 50)
    log = cluster.failover_log(1)

    def misjudge(
        request: m.StreamRequest, facts: VbucketFacts, rules: Rules, purge_seqno: int
    ) -> Verdict:
        if facts.failover_log == log:
            return Verdict(Status.ROLLBACK, request.start + 20)
        return judge(request, facts, rules, purge_seqno)

    monkeypatch.setattr("dcp.server.commands.stream_requests.judge", misjudge)
    streams = starts(cluster)
    streams[1] = StreamStart(1, streams[1].address, Position.complete_at(log.current_uuid, 10))
    with consuming(cluster, streams) as consumer:
        drained = Drained().run(consumer, lambda each: 1 in each.stopped)
        assert drained.stopped[1].reason is StopReason.REFUSED
        found = "found ROLLBACK to 30, above the requested seqno 10"
        assert found in drained.stopped[1].detail
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster, 0)), 0)
    assert cluster.counters().dcp_connections_opened == 1


def test_no_access_to_the_bucket_is_fatal(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2)
    cluster.refuse_stream(0, Status.EACCESS)
    with (
        consuming(cluster) as consumer,
        pytest.raises(BucketError, match=r"EACCESS.*give the user the role Data DCP Reader"),
    ):
        Drained().run(consumer, lambda _: False)


def test_wrong_password_and_unknown_bucket_are_fatal_at_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    wrong = Credentials("reader", Secret("wrong"))
    with (
        Consumer(starts(cluster), cluster.seeds, settings(), wrong) as consumer,
        pytest.raises(AuthenticationError),
    ):
        Drained().run(consumer, lambda _: False)
    with (
        consuming(cluster, chosen=settings(bucket="absent")) as consumer,
        pytest.raises(BucketError),
    ):
        Drained().run(consumer, lambda _: False)


def test_a_node_that_has_no_bucket_yet_is_tried_again(make_cluster: MakeCluster) -> None:
    """It took us before: it restarts, and listens before it has its bucket."""
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        port = NodeAddress.parse(cluster.seeds[1]).port
        cluster.kill_node(1)
        with ProducerCluster(ClusterSettings(bucket="another", users=USERS, port=port)):
            refused = "SELECT_BUCKET"
            drained.run(
                consumer, lambda _: any(refused in consumer.trouble(v) for v in all_of(cluster))
            )
        cluster.restore_node(1)
        fill(cluster, 100, prefix="later")
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster)))


@contextmanager
def without_bucket(cluster: ProducerCluster, node: int) -> Iterator[None]:
    """Let a node listen without its bucket, as one that starts does."""
    cluster.kill_node(node)
    port = NodeAddress.parse(cluster.seeds[node]).port
    with ProducerCluster(ClusterSettings(bucket="another", users=USERS, port=port)):
        yield


@pytest.mark.parametrize("refusal_is_first", [True, False])
def test_a_node_without_the_bucket_fails_its_own_vbuckets_alone(
    make_cluster: MakeCluster, refusal_is_first: bool
) -> None:
    """Whichever node answers first: nobody has taken us before."""
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    taken, refused = owned(cluster, 0), owned(cluster, 1)
    with (
        without_bucket(cluster, 1),
        consuming(cluster, chosen=settings(node_deadline_seconds=5.0)) as consumer,
    ):
        drained = Drained()
        if refusal_is_first:
            cluster.hang_node(0)
            drained.run(consumer, lambda _: "SELECT_BUCKET" in consumer.trouble(refused[0]))
            assert drained.rows == 0
            cluster.restore_node(0)
        drained.run(consumer, caught_up(cluster, *taken))
        drained.run(consumer, lambda _: drained.stopped.keys() >= {*refused})
        assert sorted(drained.stopped) == refused
        for stopped in drained.stopped.values():
            assert stopped.reason is StopReason.NODE_UNAVAILABLE
            assert "SELECT_BUCKET" in stopped.detail
        assert_same_state(cluster, drained, *taken)


def test_a_consumer_of_one_node_asks_the_other_seeds_before_it_is_refused(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    theirs = [each for each in starts(cluster) if each.vbucket in owned(cluster, 1)]
    with (
        without_bucket(cluster, 1),
        consuming(cluster, theirs, settings(node_deadline_seconds=1.0)) as consumer,
    ):
        drained = Drained().run(consumer, lambda each: len(each.stopped) == len(theirs))
    assert {each.reason for each in drained.stopped.values()} == {StopReason.NODE_UNAVAILABLE}


@pytest.mark.parametrize("other", ["refuses", "is gone"])
def test_a_refusal_is_fatal_at_once_where_no_node_answers_otherwise(
    make_cluster: MakeCluster, other: str
) -> None:
    cluster = make_cluster(nodes=2)
    if other == "is gone":
        cluster.kill_node(1)
    wrong = Credentials("reader", Secret("wrong"))
    began = monotonic()
    with (
        Consumer(starts(cluster), cluster.seeds, settings(), wrong) as consumer,
        pytest.raises(AuthenticationError),
    ):
        Drained().run(consumer, lambda _: False)
    assert monotonic() - began < PATIENCE_SECONDS / 2, "no deadline of a node was waited for"


def test_a_bucket_that_was_made_anew_is_not_read(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2, bucket_uuid="a" * 32)
    fill(cluster, 50)
    with consuming(cluster, chosen=settings(bucket_uuid="a" * 32)) as consumer:
        assert_same_state(cluster, Drained().run(consumer, caught_up(cluster)))
    drained = Drained()
    with (
        consuming(cluster, chosen=settings(bucket_uuid="b" * 32)) as consumer,
        pytest.raises(BucketError, match=r"found bucket 'default' with uuid 'aaa.*created again"),
    ):
        drained.run(consumer, caught_up(cluster))
    assert not drained.positions

"""The final end of a vbucket's stream: a rollback, its end seqno, or the application's wish."""

from time import monotonic

from dcp.client.addresses import NodeAddress
from dcp.client.consumer_events import StopReason
from dcp.client.delivery import Delivery
from dcp.client.vbucket_track import StreamStart
from dcp.protocol.events import FailoverLogReceived, RollbackOrdered, StreamEnded
from dcp.protocol.position import Position
from tests.client.conftest import MakeCluster
from tests.client.connecting import START
from tests.client.consuming import consuming, settings, starts
from tests.client.drained import Drained, assert_same_state, caught_up, fill, wait_for


def test_a_rollback_ends_its_vbucket_with_the_servers_log(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 100)
    streams = starts(cluster)
    elsewhere = Position.complete_at(0xDEAD, 10)
    streams[1] = StreamStart(1, streams[1].address, elsewhere)
    with consuming(cluster, streams) as consumer:
        drained = Drained().run(
            consumer, lambda each: any(isinstance(e, FailoverLogReceived) for e in each.events)
        )
        order = next(e for e in drained.events if isinstance(e, RollbackOrdered))
        log = next(e for e in drained.events if isinstance(e, FailoverLogReceived))
        assert order == RollbackOrdered(1, elsewhere, 0)
        assert log == FailoverLogReceived(1, cluster.failover_log(1))
        assert drained.events.index(order) < drained.events.index(log)
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster, 0)), 0)


def test_an_end_that_was_asked_for_finishes_the_vbucket(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 100)
    address = NodeAddress.parse(cluster.seeds[0])
    with consuming(cluster, [StreamStart(0, address, START, end_seqno=60)]) as consumer:
        drained = Drained().run(consumer, lambda each: 0 in each.stopped)
        assert drained.stopped[0].reason is StopReason.FINISHED
        assert drained.seqnos[0][-1] >= 60


def test_a_stream_can_be_stopped(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 100)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        consumer.stop_stream(1)
        drained.run(consumer, lambda each: 1 in each.stopped)
        assert drained.stopped[1].reason is StopReason.CLOSED
        rows = len(drained.seqnos[1])
        fill(cluster, 100, prefix="later")
        drained.run(consumer, caught_up(cluster, 0))
        assert len(drained.seqnos[1]) == rows


def test_streams_that_were_stopped_are_not_asked_for_again(make_cluster: MakeCluster) -> None:
    """Most answers to CLOSE_STREAM arrive together with the STREAM_END."""
    cluster = make_cluster(vbuckets=33)
    fill(cluster, 330)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        for vbucket in range(32):
            consumer.stop_stream(vbucket)
        drained.run(consumer, lambda each: len(each.stopped) == 32)
        retried_at = monotonic() + 2 * settings().retry_cap_seconds
        while (left := retried_at - monotonic()) > 0:
            consumer.next(left)
        assert [vbucket for vbucket in range(33) if consumer.is_streaming(vbucket)] == [32]
        assert cluster.counters().streams_opened == dict.fromkeys(range(33), 1)


def test_stopping_a_stream_that_has_just_ended_by_itself(make_cluster: MakeCluster) -> None:
    """The reader knows of the end already, the application does not yet."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 500, value_bytes=100)
    address = NodeAddress.parse(cluster.seeds[0])
    streams = [StreamStart(0, address, START, end_seqno=500)]
    with consuming(cluster, streams, settings(read_buffer_bytes=4096)) as consumer:
        drained = Drained().run(consumer, lambda each: each.rows > 0)
        queue = consumer._queue._entries

        def end_is_queued() -> bool:
            return any(
                isinstance(event, StreamEnded)
                for entry in list(queue)
                if isinstance(entry, Delivery)
                for event in entry.events
            )

        wait_for("the end of the stream", end_is_queued)
        consumer.stop_stream(0)
        drained.run(consumer, lambda each: 0 in each.stopped)
        assert drained.stopped[0].reason is StopReason.CLOSED
        assert drained.seqnos[0] == list(range(1, consumer.position(0).seqno + 1))


def test_of_a_stream_that_was_stopped_nothing_follows(make_cluster: MakeCluster) -> None:
    """Rows are queued and on their way: position and rows stay where they were, side by side."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 2000, value_bytes=100)
    with consuming(cluster, None, settings(read_buffer_bytes=4096)) as consumer:
        drained = Drained().run(consumer, lambda each: 0 in each.seqnos)
        position = consumer.position(0)
        assert position.seqno < 1000
        consumer.stop_stream(0)
        told = len(drained.events)
        drained.run(consumer, caught_up(cluster, 1))
        drained.run(consumer, lambda each: 0 in each.stopped)
        assert drained.seqnos[0] == list(range(1, position.seqno + 1))
        assert consumer.position(0) == drained.positions[0] == position
        about_it = [each for each in drained.events[told:] if getattr(each, "vbucket", -1) == 0]
        assert about_it == [drained.stopped[0]]

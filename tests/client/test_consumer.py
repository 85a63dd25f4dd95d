"""The consumer against the real producer: lost connections, moved vbuckets, refusals, faults."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from time import monotonic

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.consumer_events import StopReason
from dcp.client.delivery import Delivery
from dcp.client.settings import ConnectionSettings, ConsumerSettings
from dcp.client.vbucket_track import StreamStart
from dcp.errors import AuthenticationError, BucketError, ConfigError, LocalProtocolError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.faults import Corruption
from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.events import (
    FailoverLogReceived,
    RollbackOrdered,
    SeqnosReceived,
    StreamEnded,
    StreamOpened,
)
from dcp.protocol.position import Position
from dcp.wire.vocabulary import Status
from tests.client.conftest import MakeCluster
from tests.client.drained import (
    CREDENTIALS,
    Drained,
    all_of,
    assert_same_state,
    caught_up,
    fill,
    wait_for,
)
from tests.seeds import seeds

START = Position.beginning()


def settings(
    *, bucket: str = "default", node_deadline_seconds: float = 20.0, **connection: object
) -> ConsumerSettings:
    return ConsumerSettings(
        ConnectionSettings(bucket, **connection),  # type: ignore[arg-type]
        node_deadline_seconds=node_deadline_seconds,
        retry_first_seconds=0.01,
        retry_cap_seconds=0.1,
    )


def starts(cluster: ProducerCluster, drained: Drained | None = None) -> list[StreamStart]:
    """Streams of all vbuckets from where ``drained`` stands, at their owners."""
    positions = drained.positions if drained else {}
    return [
        StreamStart(
            vbucket,
            NodeAddress.parse(cluster.seeds[cluster.vbucket_owner(vbucket)]),
            positions.get(vbucket, START),
        )
        for vbucket in all_of(cluster)
    ]


@contextmanager
def consuming(
    cluster: ProducerCluster,
    streams: list[StreamStart] | None = None,
    chosen: ConsumerSettings | None = None,
) -> Iterator[Consumer]:
    with Consumer(
        starts(cluster) if streams is None else streams,
        cluster.seeds,
        chosen or settings(),
        CREDENTIALS,
        "test",
        Random(5),
    ) as consumer:
        yield consumer


def assert_nothing_sent_twice(cluster: ProducerCluster, drained: Drained) -> None:
    """The producer sent exactly what was delivered, in that order: nothing again, nothing lost."""
    assert drained.seqnos == cluster.counters().seqnos_sent


def test_drains_all_nodes_and_follows_writes(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3)
    fill(cluster, 1000)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        fill(cluster, 100)
        cluster.delete(b"key-500")
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        for vbucket in all_of(cluster):
            assert consumer.position(vbucket) == drained.positions[vbucket]
            assert consumer.failover_log(vbucket) == cluster.failover_log(vbucket)
    assert_nothing_sent_twice(cluster, drained)
    assert cluster.counters().dcp_connections_opened == 3


def test_finds_owners_by_the_map_when_no_address_is_known(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3)
    fill(cluster, 200)
    streams = [StreamStart(vbucket, None, START) for vbucket in all_of(cluster)]
    with consuming(cluster, streams) as consumer:
        assert_same_state(cluster, Drained().run(consumer, caught_up(cluster)))


@pytest.mark.parametrize("cut_after", [1, 150, 777])
def test_resumes_inside_a_snapshot_without_repeating(
    make_cluster: MakeCluster, cut_after: int
) -> None:
    cluster = make_cluster(vbuckets=1)
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
                drained.release_all(consumer)
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


@pytest.mark.parametrize("status", [Status.ETMPFAIL, Status.EBUSY, Status.ENOMEM, 0x4F])
def test_temporary_refusals_are_retried(make_cluster: MakeCluster, status: Status) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 50)
    cluster.refuse_stream(1, status, times=3)
    with consuming(cluster) as consumer:
        assert_same_state(cluster, Drained().run(consumer, caught_up(cluster)))
    assert cluster.counters().streams_refused[1] == 3


def test_a_lasting_refusal_ends_its_vbucket_at_the_deadline(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 50)
    cluster.refuse_stream(1, Status.ETMPFAIL, times=10**6)
    with consuming(cluster, chosen=settings(node_deadline_seconds=0.5)) as consumer:
        drained = Drained().run(consumer, lambda each: 1 in each.stopped)
        assert drained.stopped[1].reason is StopReason.REFUSED
        assert "ETMPFAIL (0x86)" in drained.stopped[1].detail
        assert consumer.active_vbuckets == {0}
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster, 0)), 0)


@pytest.mark.parametrize("status", [Status.EINVAL, Status.ERANGE, Status.UNKNOWN_COLLECTION])
def test_a_final_refusal_ends_its_vbucket_at_once(
    make_cluster: MakeCluster, status: Status
) -> None:
    cluster = make_cluster(vbuckets=2)
    cluster.refuse_stream(0, status)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, lambda each: 0 in each.stopped, timeout_seconds=5)
        assert drained.stopped[0].reason is StopReason.REFUSED
        assert status.name in drained.stopped[0].detail


def test_no_access_to_the_bucket_is_fatal(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2)
    cluster.refuse_stream(0, Status.EACCESS)
    with consuming(cluster) as consumer, pytest.raises(BucketError, match="EACCESS"):
        Drained().run(consumer, lambda _: False, timeout_seconds=5)


def test_wrong_password_and_unknown_bucket_are_fatal_at_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    wrong = Credentials("reader", Secret("wrong"))
    with (
        Consumer(starts(cluster), cluster.seeds, settings(), wrong) as consumer,
        pytest.raises(AuthenticationError),
    ):
        Drained().run(consumer, lambda _: False, timeout_seconds=5)
    with (
        consuming(cluster, chosen=settings(bucket="absent")) as consumer,
        pytest.raises(BucketError),
    ):
        Drained().run(consumer, lambda _: False, timeout_seconds=5)


@pytest.mark.parametrize("fault", ["kill_node", "hang_node"])
def test_a_lost_node_is_reported_and_delays_no_other(make_cluster: MakeCluster, fault: str) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 500)
    chosen = settings(
        node_deadline_seconds=1.0,
        noop_interval_seconds=0.2,
        silence_grace_seconds=0.1,
        bootstrap_timeout_seconds=0.4,
    )
    lost = [v for v in all_of(cluster) if cluster.vbucket_owner(v) == 1]
    alive = [v for v in all_of(cluster) if v not in lost]
    with consuming(cluster, chosen=chosen) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        getattr(cluster, fault)(1)
        fill(cluster, 500, prefix="later")
        drained.run(consumer, caught_up(cluster, *alive), timeout_seconds=3)
        drained.run(consumer, lambda each: len(each.stopped) == len(lost))
        assert sorted(drained.stopped) == lost
        assert {each.reason for each in drained.stopped.values()} == {StopReason.NODE_UNAVAILABLE}
        assert all(cluster.seeds[1] in each.detail for each in drained.stopped.values())
        fill(cluster, 100, prefix="last")
        drained.run(consumer, caught_up(cluster, *alive), timeout_seconds=3)
        assert_same_state(cluster, drained, *alive)
        assert_same_state(cluster, drained, *lost)  # at the seqnos they reached
    cluster.restore_node(1)


@pytest.mark.parametrize("fault", ["kill_node", "refuse_node", "hang_node"])
def test_a_node_that_comes_back_goes_on(make_cluster: MakeCluster, fault: str) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 300)
    chosen = settings(
        noop_interval_seconds=0.2, silence_grace_seconds=0.1, bootstrap_timeout_seconds=0.4
    )
    with consuming(cluster, chosen=chosen) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        getattr(cluster, fault)(1)
        if fault == "refuse_node":
            cluster.drop_connections(1)
        for _ in range(5):  # long enough for failed attempts
            assert consumer.next(0.2) is None
        cluster.restore_node(1)
        fill(cluster, 300, prefix="later")
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster)))
        assert not drained.stopped


@pytest.mark.parametrize(
    "corruption",
    # A row of a stream that we do not know is dropped on purpose; nobody could miss it.
    [each for each in Corruption if each is not Corruption.UNKNOWN_OPAQUE],
)
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
    with consuming(cluster, chosen=settings(node_deadline_seconds=0.5)) as consumer:
        drained = Drained().run(consumer, lambda each: 0 in each.stopped)
        assert drained.stopped[0].reason is StopReason.PROTOCOL_ERROR
        assert "extras" in drained.stopped[0].detail
        assert drained.rows == 0
    assert faults.corruptions_done > 2


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
        assert consumer.active_vbuckets == {0}
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
        drained.run(consumer, lambda each: 1 in each.stopped, timeout_seconds=5)
        assert drained.stopped[1].reason is StopReason.CLOSED
        rows = len(drained.seqnos[1])
        fill(cluster, 100, prefix="later")
        drained.run(consumer, caught_up(cluster, 0))
        assert len(drained.seqnos[1]) == rows


def test_stopping_a_stream_that_has_just_ended_by_itself(make_cluster: MakeCluster) -> None:
    """The reader knows of the end already, the application does not yet."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 500, value_bytes=100)
    address = NodeAddress.parse(cluster.seeds[0])
    streams = [StreamStart(0, address, START, end_seqno=500)]
    with consuming(cluster, streams, settings(read_buffer_bytes=4096)) as consumer:
        drained = Drained().run(consumer, lambda each: each.rows > 0)
        queue = consumer._handover._entries

        def end_is_queued() -> bool:
            return any(
                isinstance(event, StreamEnded)
                for entry in list(queue)
                if isinstance(entry, Delivery)
                for event in entry.events
            )

        wait_for("the end of the stream", end_is_queued)
        consumer.stop_stream(0)
        drained.run(consumer, lambda each: 0 in each.stopped, timeout_seconds=5)
        assert drained.stopped[0].reason is StopReason.CLOSED
        assert drained.seqnos[0] == list(range(1, 501))
        assert consumer.position(0).seqno == 500


def test_close_from_another_thread_ends_the_wait(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with consuming(cluster) as consumer:
        Drained().run(
            consumer, lambda each: sum(isinstance(e, StreamOpened) for e in each.events) == 8
        )
        closer = threading.Timer(0.1, consumer.close)
        closer.start()
        with pytest.raises(LocalProtocolError, match="closed"):
            consumer.next(30.0)
        closer.join(5)


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
        drained.release_all(consumer)
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster)))
    assert cluster.counters().peak_unacked_bytes <= 100_000 + 300


@pytest.mark.parametrize("prefix", ["x" * 190, 'a"b', "a{b}", "späß", "a\nb"])
def test_names_that_servers_refuse(make_cluster: MakeCluster, prefix: str) -> None:
    with pytest.raises(ConfigError, match="name prefix"):
        Consumer([], ["127.0.0.1:1"], settings(), CREDENTIALS, prefix)


@pytest.mark.parametrize("seed", seeds(4))
def test_chaos(make_cluster: MakeCluster, seed: int) -> None:
    """Random writes, drops, cuts, corruption, moves and slow releases: the state stays exact."""
    print(f"seed {seed}")
    random = Random(seed)
    cluster = make_cluster(nodes=2, seed=seed, checkpoint_items=50)
    chosen = settings(window_bytes=20_000, read_buffer_bytes=4096)
    drained = Drained()
    with consuming(cluster, chosen=chosen) as consumer:
        for step in range(40):
            with cluster.batch():
                for _ in range(random.randrange(60)):
                    key = b"key-%d" % random.randrange(200)
                    if random.random() < 0.2 and key in _live(cluster, key):
                        cluster.delete(key)
                    else:
                        cluster.set(key, b'{"s":%d}' % step * random.randrange(1, 20))
            match random.randrange(6):
                case 0:
                    cluster.drop_connections(random.randrange(2))
                case 1:
                    cluster.snapshot_cut_after(random.randrange(1, 50))
                case 2:
                    cluster.corrupt(random.choice([Corruption.BAD_MAGIC, Corruption.DUPLICATE]))
                case 3:
                    cluster.move_vbucket(random.randrange(8), random.randrange(2))
            for _ in range(random.randrange(8)):
                delivery = consumer.next(0.01)
                if delivery is not None:
                    drained.take(delivery)
            if random.random() < 0.7:
                drained.release_all(consumer)
        drained.release_all(consumer)
        cluster.faults.clear()
        drained.run(consumer, caught_up(cluster), timeout_seconds=30)
        assert_same_state(cluster, drained)
        assert not drained.stopped


def _live(cluster: ProducerCluster, key: bytes) -> dict[bytes, object]:
    vbucket = cluster.vbucket_of(key)
    return dict(cluster.state_at(vbucket, cluster.high_seqno(vbucket)))


def test_a_busy_application_makes_no_node_unavailable(make_cluster: MakeCluster) -> None:
    """The time between two calls of ``next`` is the application's; what came meanwhile counts."""
    cluster = make_cluster(nodes=2)
    fill(cluster, 400)
    chosen = settings(node_deadline_seconds=0.4)
    drained = Drained()
    with consuming(cluster, chosen=chosen) as consumer:
        while not drained.rows:  # one node delivers; the other is still being set up, or is queued
            delivery = consumer.next(1.0)
            if delivery is not None:
                drained.take(delivery)
        threading.Event().wait(1.0)  # the application works, for longer than the deadline
        drained.run(consumer, caught_up(cluster))
    assert drained.stopped == {}
    assert_same_state(cluster, drained)


def test_what_is_queued_is_digested_before_a_deadline_is_judged(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 400)
    drained = Drained()
    with consuming(cluster) as consumer:
        keeper = consumer._keeper
        consumer.next(0.0)  # begins to connect
        links = [keeper.links.link(address) for address in node_addresses(cluster)]
        names = [link.connection.name for link in links if link.connection is not None]
        assert len(names) == 2
        wait_for(
            "both nodes are ready",
            lambda: all(consumer._handover.holds(name) for name in names),
        )
        keeper.act(monotonic() + 1000.0)  # long past the deadline
        assert not keeper.reports
        assert drained.run(consumer, lambda each: each.rows > 0).stopped == {}


def test_the_high_seqnos_can_be_asked_over_the_streams_connection(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    node = node_addresses(cluster)[1]
    with consuming(cluster) as consumer:
        assert not consumer.request_high_seqnos(node), "not connected yet"
        drained = Drained().run(consumer, caught_up(cluster))
        assert all(consumer.is_streaming(vbucket) for vbucket in all_of(cluster))
        heard_at = consumer.data_heard_at(node)
        assert heard_at <= monotonic()
        assert consumer.request_high_seqnos(node)
        drained.run(consumer, lambda each: isinstance(each.events[-1], SeqnosReceived))
        assert drained.events[-1] == SeqnosReceived(
            tuple((v, cluster.high_seqno(v)) for v in all_of(cluster) if v in owned(cluster, 1))
        )
        assert consumer.data_heard_at(node) == heard_at, "an answer is no data"
        cluster.kill_node(1)
        drained.run(
            consumer, lambda _: not any(consumer.is_streaming(v) for v in owned(cluster, 1))
        )
        assert all(consumer.is_streaming(v) for v in owned(cluster, 0))
        assert str(node) in consumer.trouble(owned(cluster, 1)[0])


def owned(cluster: ProducerCluster, node: int) -> list[int]:
    return [vbucket for vbucket in all_of(cluster) if cluster.vbucket_owner(vbucket) == node]


def node_addresses(cluster: ProducerCluster) -> list[NodeAddress]:
    return [NodeAddress.parse(seed) for seed in cluster.seeds]

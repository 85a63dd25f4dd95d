"""Vbuckets that no node serves yet: the consumer asks on, and they cost nothing meanwhile."""

import json
import logging
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any

import pytest

from dcp.client.consumer import Consumer
from dcp.client.consumer_events import StopReason
from dcp.client.vbucket_track import StreamStart, VbucketTrack
from dcp.producer.commands.session import CommandHandler, Session
from dcp.producer.model.cluster_map import ServedClusterMap
from dcp.producer.server.cluster import ProducerCluster
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status
from tests.client.conftest import MakeCluster
from tests.client.connecting import START
from tests.client.consuming import consuming, node_addresses, owned, settings, starts
from tests.client.drained import Drained, assert_same_state, caught_up, fill

IMPATIENT = settings(node_deadline_seconds=1.0)


def awaiting(cluster: ProducerCluster, *, knows_owner: bool = True) -> list[StreamStart]:
    """Return the streams of all vbuckets, those of node 1 awaited."""
    second = node_addresses(cluster)[1]
    return [
        replace(each, is_awaited=True, address=second if knows_owner else None)
        if each.address == second
        else each
        for each in starts(cluster)
    ]


def test_an_awaited_vbucket_has_a_deadline_from_its_first_stream_on() -> None:
    """Also where that ends at once, and again and again."""
    track = VbucketTrack.begin(StreamStart(0, None, START, is_awaited=True), 1.0)
    for now in (1.0, 100.0, 1000.0):
        assert (track.is_awaited, track.deadline(30.0)) == (True, inf)
        track.trouble(now, StopReason.NODE_UNAVAILABLE, "refused", settled_seconds=2.0)
    for now in (2000.0, 2001.0):
        track.opened(FailoverLog((FailoverEntry(1, 0),)), now)
        track.trouble(now, StopReason.STREAM_ENDED, "ended", settled_seconds=2.0)
        assert (track.is_awaited, track.deadline(30.0)) == (False, 2030.0)


def listen(consumer: Consumer, drained: Drained, seconds: float) -> None:
    """Take what comes in this time."""
    until = monotonic() + seconds
    while monotonic() < until:
        delivery = consumer.next(0.1)
        if delivery is not None:
            drained.take(delivery)
            drained.release_all()


@pytest.mark.parametrize("cure", ["failover", "restore_node"])
def test_a_vbucket_comes_however_late_a_node_has_it(
    make_cluster: MakeCluster, caplog: pytest.LogCaptureFixture, cure: str
) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 200)
    awaited, others = owned(cluster, 1), owned(cluster, 0)
    cluster.kill_node(1)
    with (
        caplog.at_level(logging.WARNING),
        consuming(cluster, awaiting(cluster), IMPATIENT) as consumer,
    ):
        drained = Drained().run(consumer, caught_up(cluster, *others))
        listen(consumer, drained, 2.0)
        assert not drained.stopped, "the deadline is 1 s"
        assert not set(awaited) & drained.logs.keys()
        told = [text for text in caplog.messages if cluster.seeds[1] in text]
        assert len(told) == 1, "one warning, though it is tried again all the time"
        getattr(cluster, cure)(1)
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        if cure == "restore_node":  # from now on it is a stream like any other
            cluster.kill_node(1)
            drained.run(consumer, lambda each: each.stopped.keys() >= set(awaited))
            reasons = {each.reason for each in drained.stopped.values()}
            assert reasons == {StopReason.NODE_UNAVAILABLE}


def test_a_map_that_names_no_node_is_asked_for_again_now_and_then(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody pushes the one that does: many servers do not."""
    cluster = make_cluster(nodes=2)
    fill(cluster, 200)
    awaited, others = owned(cluster, 1), owned(cluster, 0)
    as_json, carry_out = ServedClusterMap.as_json, Session._carry_out
    has_owner, asked = False, 0

    def map_of_now(cluster_map: ServedClusterMap, node: int) -> bytes:
        tree = json.loads(as_json(cluster_map, node))
        for vbucket in awaited:
            row = tree["vBucketServerMap"]["vBucketMap"][vbucket]
            row[0] = row[0] if has_owner else -1
        return json.dumps(tree | {"rev": tree["rev"] + has_owner}).encode()

    def counting(session: Session, command: CommandHandler, frame: Frame, *more: Any) -> None:
        nonlocal asked
        asked += frame.opcode == Opcode.GET_CLUSTER_CONFIG
        carry_out(session, command, frame, *more)

    monkeypatch.setattr(ServedClusterMap, "as_json", map_of_now)
    monkeypatch.setattr(Session, "_carry_out", counting)
    with consuming(cluster, awaiting(cluster, knows_owner=False), IMPATIENT) as consumer:
        drained = Drained().run(consumer, caught_up(cluster, *others))
        before = asked
        listen(consumer, drained, 2.0)
        assert 2 <= asked - before <= 30, "each 0.1 s, for all vbuckets together"
        has_owner = True
        drained.run(consumer, caught_up(cluster))
        assert not drained.stopped
        assert_same_state(cluster, drained)


def refuse_the_bucket(monkeypatch: pytest.MonkeyPatch) -> list[Status]:
    """Let whoever selects a bucket hear that there is none, as while a node starts.

    The list has the refusals that are left.
    """
    refusals = [Status.KEY_ENOENT] * 3
    carry_out = Session._carry_out

    def starting(session: Session, command: CommandHandler, frame: Frame, *more: Any) -> None:
        if refusals and frame.opcode == Opcode.SELECT_BUCKET:
            session.refuse(frame, refusals.pop())
        else:
            carry_out(session, command, frame, *more)

    monkeypatch.setattr(Session, "_carry_out", starting)
    return refusals


def test_a_node_that_does_not_know_the_bucket_yet_fails_nothing(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 200)
    others = owned(cluster, 0)
    cluster.kill_node(1)

    with consuming(cluster, awaiting(cluster), IMPATIENT) as consumer:
        drained = Drained().run(consumer, caught_up(cluster, *others))
        refusals = refuse_the_bucket(monkeypatch)
        cluster.restore_node(1)
        drained.run(consumer, caught_up(cluster))
    assert not refusals
    assert_same_state(cluster, drained)


def test_a_node_whose_other_vbuckets_have_been_read_fails_nothing_either(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(nodes=2, vbuckets=4)
    fill(cluster, 60)
    wanted = awaiting(cluster)
    [first, second] = [each.vbucket for each in wanted if each.is_awaited]
    wanted = [replace(each, is_awaited=each.vbucket == second) for each in wanted]
    cluster.refuse_stream(second, Status.EACCESS, times=10_000)  # no access to the bucket, yet

    with consuming(cluster, wanted, IMPATIENT) as consumer:
        others = [each.vbucket for each in wanted if each.vbucket != second]
        drained = Drained().run(consumer, caught_up(cluster, *others))
        consumer.stop_stream(first)
        drained.run(consumer, lambda drained: first in drained.stopped)
        refusals = refuse_the_bucket(monkeypatch)
        cluster.drop_connections(1)
        listen(consumer, drained, 1.0)
        assert not refusals
        cluster.faults.clear()
        drained.run(consumer, caught_up(cluster, second))

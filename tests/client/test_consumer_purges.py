"""The purge seqno in a consumer's requests: the one it started with, then the newest marker's."""

from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.backoff import Backoff
from dcp.client.delivery import ConnectionEnded, Delivery, DeliveryQueue
from dcp.client.node_links import NodeLink, NodeLinks
from dcp.client.stream_keeper import StreamKeeper
from dcp.client.vbucket_track import StreamStart
from dcp.errors import NodeUnavailableError
from dcp.protocol.events import SnapshotStarted
from dcp.server.model.manifest import Manifest
from dcp.server.model.stream_filter import StreamFilter
from dcp.server.streams.stream_request_value import parse_filter
from dcp.types import SnapshotRange
from tests.client.conftest import MakeCluster
from tests.client.connecting import START
from tests.client.consuming import consuming, settings, starts
from tests.client.drained import Drained, caught_up, fill

NODE = NodeAddress("127.0.0.1", 1)


def test_the_purge_seqno_goes_into_the_stream_request(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 20)
    asked: list[bytes] = []

    def record(value: bytes, manifest: Manifest, **negotiated: bool) -> StreamFilter:
        asked.append(value)
        return parse_filter(value, manifest, **negotiated)

    monkeypatch.setattr("dcp.server.commands.stream_requests.parse_filter", record)
    streams = starts(cluster)
    streams[1] = replace(streams[1], purge_seqno=7)
    with consuming(cluster, streams) as consumer:
        Drained().run(consumer, caught_up(cluster))
    assert asked == [b"", b'{"purge_seqno":"7"}']


class OneLink:
    """The links of a consumer with one node, whose connection keeps what it is asked for."""

    def __init__(self) -> None:
        self.starts: list[StreamStart] = []
        self.name = "only"
        self.only = NodeLink(NODE, cast("Any", self), ready_at=0.0)
        self.map = None
        self.due_at = 1e9

    def open_streams(self, starts: list[StreamStart], *, reads_replicas: bool) -> None:
        assert not reads_replicas
        self.starts += starts

    def release(self, _: Delivery) -> None:
        """Hold nothing."""

    def link(self, _: NodeAddress) -> NodeLink:
        return self.only

    def connect(self, _: NodeAddress, __: float) -> NodeLink:
        return self.only

    def by_name(self, _: str) -> NodeLink:
        return self.only

    def ended(self, link: NodeLink, _: object, now: float) -> None:
        link.retry_at = now

    def refuse_if_all_failed(self, _: object) -> None:
        """Refuse nothing."""

    def want_map(self, _: float) -> None:
        """Have no map."""

    def refresh_map(self, _: float) -> None:
        """Have no map."""


def test_a_stream_asked_for_again_names_the_newest_markers() -> None:
    """What we resume from came with that marker, so it knows of the purges up to there."""
    links = OneLink()
    queue = DeliveryQueue()
    backoff = Backoff(0.01, 0.1, Random(1).random)
    keeper = StreamKeeper(
        [StreamStart(3, NODE, START)], cast("NodeLinks", links), settings(), backoff, queue, 0.0
    )
    lost = ConnectionEnded("only", NODE, NodeUnavailableError("gone"))
    for purge_seqno in (None, 40, None, 2**64 - 1):
        keeper.act(1.0)
        marker = SnapshotStarted(3, SnapshotRange(0, 90), 1, purge_seqno)
        keeper.take(Delivery(NODE, [marker], connection_name="only"), 1.0)
        keeper.take(lost, 1.0)
    keeper.act(1.0)
    named = [start.purge_seqno for start in links.starts]
    assert named == [None, None, 40, 40, 2**64 - 1]

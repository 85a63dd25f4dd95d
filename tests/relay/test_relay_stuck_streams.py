"""A stream that its own window holds up is stuck like any other, under all strategies.

The connection goes on meanwhile: it has no window, and its other stream is taken and acknowledged.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from time import monotonic

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.thread import Relay
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.vocabulary import Opcode, Status
from tests.client.drained import fill
from tests.producer.raw_client import RawClient
from tests.relay.following import wait_until_level
from tests.relay.lakes import Lake, wait_for

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]
WINDOW_BYTES = 50_000
STREAM_WINDOW_BYTES = 5_000
DOCUMENT_BYTES = 1_000
HELD, FREE = 0, 1
"""The vbucket whose stream is not acknowledged, and the one whose is."""


class Picky:
    """A consumer with windows for its streams; ``acknowledged`` are the vbuckets it goes on with.

    With ``crumb_bytes`` it acknowledges so much of the others each time: too little for a message.
    """

    def __init__(self, relay: Relay, name: str) -> None:
        self.client = RawClient(
            relay.seeds[0]
        ).log_in()  # with collections: who has none sees whole snapshots only
        window = str(STREAM_WINDOW_BYTES)
        self.client.open_dcp(name.encode(), stream_buffer_size=window)
        self.keys: defaultdict[int, set[bytes]] = defaultdict(set)
        self.acknowledged = {FREE}
        self.crumb_bytes = 0
        self._opaques: dict[int, int] = {}
        self._held: defaultdict[int, int] = defaultdict(int)
        for vbucket in (HELD, FREE):
            answer = self.client.request_stream(vbucket)
            assert answer.status == Status.SUCCESS
            self._opaques[vbucket] = answer.opaque
        self.client.socket.settimeout(0.01)

    def pump(self) -> None:
        """Take what is there; acknowledge what it goes on with."""
        try:
            while True:
                frame = self.client.stream_frame()
                body = decode(frame)
                if isinstance(body, m.Mutation):
                    self.keys[frame.vbucket].add(frame.key[1:])  # the default collection's
                self._held[frame.vbucket] += len(frame.to_bytes())
                self._acknowledge()
        except TimeoutError:
            self._acknowledge()

    def _acknowledge(self) -> None:
        for vbucket, held in self._held.items():
            given = held if vbucket in self.acknowledged else min(held, self.crumb_bytes)
            if given:
                self._held[vbucket] -= given
                ack = encode(
                    m.BufferAck(given), Opcode.DCP_BUFFER_ACK, opaque=self._opaques[vbucket]
                )
                self.client.send(ack)

    def has_all_of(self, cluster: ProducerCluster) -> bool:
        self.pump()
        return all(
            self.keys[v] == set(cluster.state_at(v, cluster.high_seqno(v))) for v in (HELD, FREE)
        )

    def close(self) -> None:
        self.client.socket.close()


class Scene:
    """A cluster, a relay, a picky consumer, and a lake that belongs to group 7."""

    def __init__(self, cluster: ProducerCluster, relay: Relay, name: str) -> None:
        self.cluster, self.relay = cluster, relay
        self.picky = Picky(relay, name)
        self.fast = Lake(relay.seeds[0], 2, "fast#gtag=7", window_bytes=10_000)

    def settle(self) -> None:
        """Let both have what there is, so that they count from here on."""
        fill(self.cluster, 8)
        self.fast.run_to(self.cluster)
        wait_for("all is sent", lambda: self.picky.has_all_of(self.cluster))

    def write_much(self) -> None:
        fill(self.cluster, 400, DOCUMENT_BYTES, prefix="later")

    def run_fast(self, until: Callable[[], bool]) -> None:
        def look(_: Lake) -> bool:
            self.picky.pump()
            return until()

        self.fast.run(look)

    @property
    def is_held_up(self) -> bool:
        waits_for = self.relay.figures().upstream[0].waits_for
        with self.cluster.bucket.lock:
            flows = self.cluster.bucket.counters.flows.values()
            is_full = any(flow.outstanding_bytes >= WINDOW_BYTES for flow in flows)
        return is_full and waits_for.startswith("picky")

    def close(self) -> None:
        self.picky.close()
        self.fast.close()


@pytest.fixture
def make_scene(make_cluster: MakeCluster, make_relay: MakeRelay) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as stack:

        def make(fc: str, tag: int | None = None) -> Scene:
            cluster = make_cluster(vbuckets=2)
            relay = make_relay(cluster, flow_spec=parse_flow_spec(fc), window_bytes=WINDOW_BYTES)
            name = "picky" if tag is None else f"picky#gtag={tag}"
            return stack.enter_context(closing(Scene(cluster, relay, name)))

        yield make


MakeScene = Callable[..., Scene]


@pytest.mark.parametrize(("fc", "tag"), [("min,t:60s", None), ("tagged,g:7,t:60s", 7)])
def test_it_is_waited_for(make_scene: MakeScene, fc: str, tag: int | None) -> None:
    """What does not fit its window was not sent: it stands there, not at the end."""
    scene = make_scene(fc, tag)
    scene.settle()
    scene.write_much()
    scene.run_fast(lambda: scene.is_held_up)
    assert not scene.fast.has_all_of(scene.cluster)
    scene.picky.acknowledged.add(HELD)
    scene.run_fast(lambda: scene.picky.has_all_of(scene.cluster))
    scene.fast.run_to(scene.cluster)
    assert scene.relay.figures().ejections == 0


@pytest.mark.parametrize(("fc", "tag"), [("min,t:5s", None), ("tagged,g:7,t:5s", 7)])
def test_it_is_ejected(
    make_scene: MakeScene, fc: str, tag: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """From the one vbucket's group, not from the other's; it is told of, and loses nothing."""
    scene = make_scene(fc, tag)
    scene.settle()
    scene.write_much()
    with caplog.at_level(logging.WARNING):
        scene.run_fast(lambda: scene.fast.has_all_of(scene.cluster))
    found = scene.relay.figures()
    assert found.ejections == 1
    told = f"consumer {_name(tag)} is stuck: 1 vbucket no longer waits for it"
    wait_for("it is told", lambda: told in caplog.text)
    members = {group.vbuckets: group.receivers for group in found.groups}
    assert members == {str(HELD): 1, str(FREE): 2}
    wait_until_level(scene.cluster, scene.relay)
    scene.picky.acknowledged.add(HELD)
    wait_for("it has all", lambda: scene.picky.has_all_of(scene.cluster))
    scene.fast.assert_same(scene.cluster)
    both = [f"vbuckets {HELD}-{FREE}: 2 of 0 receivers"]
    wait_for("it counts again", lambda: [str(g) for g in scene.relay.figures().groups] == both)


def _name(tag: int | None) -> str:
    return "picky" if tag is None else f"picky#gtag={tag}"


@pytest.mark.parametrize(
    ("fc", "tag"), [("max", None), ("tagged,g:7,t:60s", 8), ("tagged,g:7,t:60s", None)]
)
def test_it_does_not_count(make_scene: MakeScene, fc: str, tag: int | None) -> None:
    """Nobody waits for it, so nobody ejects it; it goes on from the disk."""
    scene = make_scene(fc, tag)
    scene.settle()
    scene.write_much()
    scene.fast.run_to(scene.cluster)
    wait_until_level(scene.cluster, scene.relay)
    assert scene.relay.figures().ejections == 0
    assert len(scene.picky.keys[HELD]) * DOCUMENT_BYTES < 2 * STREAM_WINDOW_BYTES
    scene.picky.acknowledged.add(HELD)
    wait_for("it has all", lambda: scene.picky.has_all_of(scene.cluster))


def test_one_that_acknowledges_crumbs_is_slow_and_not_stuck(make_scene: MakeScene) -> None:
    """Less than makes room, again and again: whoever does that is waited for."""
    scene = make_scene("min,t:4s")
    scene.settle()
    scene.picky.crumb_bytes = 1
    scene.write_much()
    scene.run_fast(lambda: scene.is_held_up)
    until = monotonic() + 8
    while monotonic() < until:
        scene.picky.pump()
        scene.fast.take_one(0.2)
    assert scene.relay.figures().ejections == 0
    assert scene.is_held_up
    scene.picky.acknowledged.add(HELD)
    scene.run_fast(lambda: scene.picky.has_all_of(scene.cluster))
    scene.fast.run_to(scene.cluster)

"""Anything may be cut, stalled or begun again at any moment: nothing is lost."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random

import pytest

from dcp.errors import SetupError
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.thread import Relay
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.wire.vocabulary import Opcode
from tests.client.drained import fill
from tests.relay.following import relay_settings
from tests.relay.lakes import Lake

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]


class Chaos:
    """A cluster of three nodes with replicas, a relay, and three lakes of which one may be lazy."""

    def __init__(self, cluster: ProducerCluster, folder: Path, fc: str, seed: int) -> None:
        self.cluster, self.random = cluster, Random(seed)
        self._settings = relay_settings(
            cluster, folder, flow_spec=parse_flow_spec(fc), window_bytes=30_000
        )
        self.relay = Relay(self._settings)
        self.relay.start()
        self.lakes = [self._lake(number) for number in range(3)]
        self.turn = 0

    def _lake(self, number: int) -> Lake:
        vbuckets = self.cluster.settings.vbuckets
        name = f"lake{number}#gtag={number % 2}"
        return Lake(self.relay.seeds[0], vbuckets, name, window_bytes=8_000)

    def write(self) -> None:
        self.turn += 1
        fill(self.cluster, self.random.randrange(1, 120), 300, f"turn{self.turn}")

    def write_the_same_keys(self) -> None:
        for number in range(self.random.randrange(1, 40)):
            self.cluster.set(b"key-%d" % number, b"%d" % self.random.random().__hash__())

    def take(self) -> None:
        for lake in self.random.sample(self.lakes, 2):
            for _ in range(self.random.randrange(1, 10)):
                lake.take_one(0.01)

    def cut_upstream(self) -> None:
        self.cluster.snapshot_cut_after(self.random.randrange(1, 50))

    def drop_upstream(self) -> None:
        self.cluster.drop_connections()

    def drop_downstream(self) -> None:
        self.relay.drop_connections()

    def move(self) -> None:
        vbucket = self.random.randrange(self.cluster.settings.vbuckets)
        self.cluster.move_vbucket(vbucket, self.random.randrange(3))

    def crash_a_node(self) -> None:
        self.cluster.crash_restart(self.random.randrange(3), lost_seqnos=self.random.randrange(5))

    def restart_the_relay(self) -> None:
        self.relay.stop()
        self.relay = Relay(self._settings)
        self.relay.start()
        for lake in self.lakes:
            lake.close()
            lake.connect(self.relay.seeds[0])

    def stall_a_node(self) -> None:
        node = self.random.randrange(3)
        self.cluster.hang_node(node)
        self.take()
        self.cluster.restore_node(node)

    def run(self, steps: int) -> None:
        actions = [
            *[self.write, self.write_the_same_keys, self.take] * 4,
            self.cut_upstream,
            self.drop_upstream,
            self.drop_downstream,
            self.move,
            self.crash_a_node,
            self.restart_the_relay,
            self.stall_a_node,
        ]
        for _ in range(steps):
            self.random.choice(actions)()
        self.cluster.faults.clear()
        for _ in range(200):
            if all(lake.has_all_of(self.cluster) for lake in self.lakes):
                break
            for lake in self.lakes:
                lake.take_one(0.02)
        for lake in self.lakes:
            lake.run_to(self.cluster)

    def close(self) -> None:
        for lake in self.lakes:
            lake.close()
        self.relay.stop()


@pytest.mark.parametrize("fc", ["max", "min,t:1s", "tagged,g:0/1,t:1s"])
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost(make_cluster: MakeCluster, tmp_path: Path, fc: str, seed: int) -> None:
    cluster = make_cluster(nodes=3, vbuckets=4, clock=lambda: 1_700_000_000.0)
    with closing(Chaos(cluster, tmp_path / "relay", fc, seed)) as chaos:
        chaos.run(60)


def test_documents_larger_than_any_window(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    cluster = make_cluster(vbuckets=1)
    relay = make_relay(cluster, window_bytes=10_000, flow_spec=parse_flow_spec("min"))
    with ExitStack() as stack:
        lakes = [
            stack.enter_context(closing(Lake(relay.seeds[0], 1, f"lake{n}", window_bytes=5_000)))
            for n in range(2)
        ]
        for number in range(3):
            cluster.set(b"%d" % number, b"x" * 3_000_000)
        for _ in range(1000):
            for lake in lakes:
                lake.take_one(0.02)
            if all(lake.has_all_of(cluster) for lake in lakes):
                break
        for lake in lakes:
            lake.run_to(cluster)


def test_sync_writes_arrive_as_documents(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    """Prepares and aborts are the cluster's own: a relay is told of their seqnos only."""
    cluster = make_cluster(vbuckets=1)
    relay = make_relay(cluster)
    prepare = Content(b"1", opcode=Opcode.DCP_PREPARE, sync=SyncWrite(level=1))
    contents = [
        (b"a", prepare),
        (b"a", Content(b"1", sync=SyncWrite(1))),
        (b"b", prepare),
        (b"b", Content(opcode=Opcode.DCP_ABORT, sync=SyncWrite(3))),
        (b"c", prepare),
    ]
    with closing(Lake(relay.seeds[0], 1)) as lake:
        for seqno, (key, content) in enumerate(contents, 1):
            cluster.take_versions(0, [Version(0, key, content, seqno=seqno, rev=seqno, cas=seqno)])
        cluster.take_versions(0, [Version(0, b"d", Content(b"4"), seqno=6, rev=1, cas=6)])
        lake.run(lambda each: 6 in each.ends[0])
        assert [row[:3] for row in lake.rows[0]] == [
            (2, Opcode.DCP_MUTATION, b"a"),
            (6, Opcode.DCP_MUTATION, b"d"),
        ]


def test_a_port_that_is_taken(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(vbuckets=1)
    port = int(cluster.seeds[0].rpartition(":")[2])
    with pytest.raises(SetupError, match=rf"relay: cannot listen: port {port} .*\(--listen\): "):
        Relay(relay_settings(cluster, tmp_path, listen=f"127.0.0.1:{port}")).start()


def test_listening_on_all_addresses(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    """Clients go on with the address that they know."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 10)
    relay = make_relay(cluster, listen="0.0.0.0:0")
    assert relay.seeds[0].startswith("$HOST:")
    port = relay.seeds[0].rpartition(":")[2]
    with closing(Lake(f"localhost:{port}", 2)) as lake:
        lake.run_to(cluster)
        relay.drop_connections()
        fill(cluster, 10, prefix="later")
        lake.run_to(cluster)

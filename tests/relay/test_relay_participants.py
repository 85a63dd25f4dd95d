"""Each participant is cut, stalled or killed under each strategy: the others go on as it says.

A cluster, a relay, and two consumers. Where cluster or relay are killed or stalled, the relay is
``dcplake relay`` as a process. The oracle is what was written: who reads in the end has every
document, as it was written at last.

    fc       one consumer stalls                  one consumer is cut
    max      cluster and the other go on          both go on
    min      they wait, until it is ejected       both go on
    tagged   in the group as min, else as max     both go on

Who stalls goes on later, and has everything too.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import pytest

from dcp.client.kv.kv_client import KvClient
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.records import read
from dcp.relay.thread import Relay
from dcp.relay_figures import RelayFigures
from tests.cli.own_process import port_kept
from tests.cli.serving import Serving
from tests.client.drained import USERS, fill, wait_for
from tests.producer.raw_client import PLAIN_FEATURES, RawClient
from tests.relay.lakes import PATIENCE_SECONDS, Lake
from tests.relay.relaying import relaying

MakeCluster = Callable[..., ProducerCluster]
((USER, PASSWORD),) = USERS.items()
VBUCKETS = 2
STUCK_SECONDS = 8.0
"""Longer than the shorter ``t`` here and ``--consumer-ack-seconds`` together."""
IDLE_SECONDS = 5.0
"""After so long without an answer a cluster that shall do so drops a connection."""
WINDOW_BYTES = 50_000
DOCUMENT_BYTES = 1_000
MUCH = 300
"""Documents that no window holds."""
WAITS = ["min,t:60s", "tagged,g:7,t:60s"]
EJECTS = ["min,t:2s", "tagged,g:7,t:2s"]
GOES_ON = ["max", "tagged,g:8,t:60s"]
"""Both consumers have tag 7."""
ALL = ["max", "min,t:2s", "tagged,g:7,t:2s"]


@dataclass
class Scene:
    """A cluster in this process, a relay, and two lakes of group 7."""

    cluster: ProducerCluster
    seed: str
    """The relay's."""
    lakes: list[Lake] = field(default_factory=list)

    def write_much(self, prefix: str) -> None:
        fill(self.cluster, MUCH, DOCUMENT_BYTES, prefix)

    def told(self) -> RelayFigures:
        with RawClient(self.seed, PATIENCE_SECONDS) as client:
            told = client.log_in(PLAIN_FEATURES, USER, PASSWORD).statistics("relay")
        return read(RelayFigures, json.loads(told["relay"]))

    def is_held_up(self) -> bool:
        with self.cluster.bucket.lock:
            flows = self.cluster.bucket.counters.flows.values()
            return any(flow.outstanding_bytes >= WINDOW_BYTES for flow in flows)

    def all_have_all(self) -> None:
        """Let both lakes have what was written, in turns: each may be waited for."""
        until = monotonic() + PATIENCE_SECONDS
        while not all(lake.has_all_of(self.cluster) for lake in self.lakes):
            assert monotonic() < until
            for lake in self.lakes:
                lake.take_one(0.02)
        for lake in self.lakes:
            lake.assert_same(self.cluster)
            assert lake.rollbacks == {}


MakeScene = Callable[[str], Scene]


def begun(stack: ExitStack, cluster: ProducerCluster, seed: str) -> Scene:
    """Return a scene where both lakes hold some documents."""
    scene = Scene(cluster, seed)
    for name in ("first#gtag=7", "second#gtag=7"):
        lake = Lake(seed, VBUCKETS, name, window_bytes=10_000)
        scene.lakes.append(stack.enter_context(closing(lake)))
    fill(cluster, 8)
    scene.all_have_all()
    return scene


@pytest.fixture
def make_scene(make_cluster: MakeCluster, make_relay: Callable[..., Relay]) -> Iterator[MakeScene]:
    """Returns a function that makes a scene in this process."""
    with ExitStack() as stack:

        def make(fc: str) -> Scene:
            cluster = make_cluster(vbuckets=VBUCKETS)
            flow = {"flow_spec": parse_flow_spec(fc), "window_bytes": WINDOW_BYTES}
            [seed] = make_relay(cluster, **flow).seeds
            return begun(stack, cluster, seed)

        yield make


def options_of(fc: str) -> tuple[str, ...]:
    return "--fc", fc, "--window-bytes", str(WINDOW_BYTES)


# --- one consumer


@pytest.mark.parametrize("fc", WAITS)
def test_a_stalled_consumer_is_waited_for(make_scene: MakeScene, fc: str) -> None:
    scene = make_scene(fc)
    going, _ = scene.lakes
    scene.write_much("more")
    going.run(lambda _: scene.is_held_up() and _waits_for(scene).startswith("second"))
    assert not going.has_all_of(scene.cluster)
    scene.all_have_all()


def _waits_for(scene: Scene) -> str:
    return scene.told().upstream[0].waits_for


@pytest.mark.parametrize("fc", [*EJECTS, *GOES_ON])
def test_the_others_go_on_without_a_stalled_consumer(make_scene: MakeScene, fc: str) -> None:
    scene = make_scene(fc)
    going, _ = scene.lakes
    scene.write_much("more")
    going.run_to(scene.cluster)
    ejections = scene.told().ejections
    assert (ejections > 0) is (fc in EJECTS)
    scene.write_much("most")
    going.run_to(scene.cluster)
    scene.all_have_all()


@pytest.mark.parametrize("fc", WAITS)
def test_a_consumer_that_is_cut_is_waited_for_no_more(make_scene: MakeScene, fc: str) -> None:
    """Where its silence would hold up all for a minute its end does not; it comes back later."""
    scene = make_scene(fc)
    going, gone = scene.lakes
    scene.write_much("more")
    going.run(lambda _: scene.is_held_up())
    gone.close()
    going.run_to(scene.cluster)
    assert scene.told().ejections == 0
    gone.connect(scene.seed)
    scene.all_have_all()


# --- the relay


@pytest.mark.parametrize(("fc", "times"), list(zip(ALL, [1, 1, 2], strict=True)))
def test_the_relay_is_killed(
    make_cluster: MakeCluster, tmp_path: Path, fc: str, times: int
) -> None:
    """In the middle of what it receives; the cluster does not wait for the dead one."""
    cluster = make_cluster(vbuckets=VBUCKETS)
    with ExitStack() as stack:
        relay = stack.enter_context(relaying(cluster, tmp_path, *options_of(fc)))
        scene = begun(stack, cluster, relay.seed)
        for turn in range(times):
            scene.write_much(f"turn{turn}")
            for lake in scene.lakes:
                lake.take_one(0.05)
            relay.kill()
            scene.write_much(f"away{turn}")
            for lake in scene.lakes:
                lake.close()
            relay = stack.enter_context(relaying(cluster, tmp_path, *options_of(fc)))
            for lake in scene.lakes:
                lake.connect(relay.seed)
            scene.all_have_all()
            scene.write_much(f"after{turn}")
            scene.all_have_all()


@pytest.mark.slow
@pytest.mark.parametrize("fc", ALL)
def test_the_relay_is_stalled(make_cluster: MakeCluster, tmp_path: Path, fc: str) -> None:
    """Until the cluster closes its connection, and longer than all timeouts; nobody is ejected."""
    cluster = make_cluster(vbuckets=VBUCKETS, idle_timeout_seconds=IDLE_SECONDS)
    with ExitStack() as stack:
        relay = stack.enter_context(relaying(cluster, tmp_path, *options_of(fc)))
        scene = begun(stack, cluster, relay.seed)
        scene.write_much("before")
        with _stopped(relay.process.pid):
            scene.write_much("meanwhile")
            for lake in scene.lakes:
                while lake.take_one(0.1):
                    pass
            assert not any(lake.has_all_of(cluster) for lake in scene.lakes)
            wait_for("it is dropped", lambda: not _connections(cluster), PATIENCE_SECONDS)
            sleep(STUCK_SECONDS)
        scene.all_have_all()
        scene.write_much("after")
        scene.all_have_all()
        assert scene.told().ejections == 0


def _connections(cluster: ProducerCluster) -> int:
    with cluster.bucket.lock:
        return len(cluster.bucket.dcp_connections)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# --- the cluster


@pytest.mark.parametrize(
    ("fc", "how"), list(zip(ALL, ["cut", "stalled", "cut in a snapshot"], strict=True))
)
def test_the_cluster_is_cut_or_stalled(make_scene: MakeScene, fc: str, how: str) -> None:
    """Consumers have what the relay has; their connections to it are not cut."""
    scene = make_scene(fc)
    if how == "cut in a snapshot":
        scene.cluster.snapshot_cut_after(20)
    scene.write_much("before")
    if how == "stalled":
        scene.cluster.hang_node(0)
        for lake in scene.lakes:
            while lake.take_one(0.1):
                pass
        scene.cluster.restore_node(0)
    elif how == "cut":
        scene.cluster.drop_connections()
    scene.all_have_all()
    scene.write_much("after")
    scene.all_have_all()


@pytest.mark.slow
@pytest.mark.parametrize(("fc", "times"), list(zip(ALL, [1, 1, 3], strict=True)))
def test_the_cluster_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fc: str, times: int
) -> None:
    """What its disk had not got is gone: relay and consumers go back with it, and lack nothing."""
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    words = ("--vbuckets", str(VBUCKETS), "--data", str(tmp_path / "cluster"), "--port")
    keys: list[bytes] = []
    with ExitStack() as stack:
        cluster = Serving(USER, *words, "0")
        stack.callback(lambda: cluster.kill())  # noqa: PLW0108  (whichever runs then)
        port = cluster.seeds[0].rpartition(":")[2]
        relay = stack.enter_context(relaying(cluster, tmp_path / "relay", *options_of(fc)))
        lakes = [
            stack.enter_context(closing(Lake(relay.seed, VBUCKETS, f"{n}#gtag=7"))) for n in "ab"
        ]
        for turn in range(times):
            with KvClient(cluster.seeds, USER, PASSWORD, "default") as client:
                for part in range(4):
                    fresh = [b"turn%d-%d-%d" % (turn, part, number) for number in range(60)]
                    client.set((key, b'{"of":"%s"}' % key * 9) for key in fresh)
                    keys += fresh
                    for lake in lakes:
                        lake.take_one(0.02)
            cluster.kill()
            with port_kept(int(port)):
                while any(lake.take_one(0.1) for lake in lakes):
                    pass
                cluster = Serving(USER, *words, port)
            with KvClient(cluster.seeds, USER, PASSWORD, "default") as client:
                client.set([(b"last", b"%d" % turn)])
                expected = client.get([*keys, b"last"])
            until = monotonic() + PATIENCE_SECONDS
            while not all(_documents(lake) == expected for lake in lakes):
                assert monotonic() < until, [len(_documents(lake)) for lake in lakes]
                for lake in lakes:
                    lake.take_one(0.05)


def _documents(lake: Lake) -> dict[bytes, bytes]:
    """Return what a lake's whole snapshots lead to; nothing is deleted here."""
    return {
        key: value
        for vbucket, rows in lake.rows.items()
        for seqno, _, key, _, value in rows
        if seqno <= max(lake.ends[vbucket], default=0)
    }

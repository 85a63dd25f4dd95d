"""Consumers that slow the cluster down, and those that do not: all strategies, real sockets."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from time import monotonic, sleep
from typing import Any
from urllib.request import Request, urlopen

import pytest

from dcp.cli.main import main
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.memory import relay_bytes
from dcp.relay.thread import Relay
from dcp.server.commands.memory_formula import Load
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, Status
from tests.client.drained import USERS, fill
from tests.producer.raw_client import RawClient
from tests.relay.following import wait_until_level
from tests.relay.lakes import PATIENCE_SECONDS, Lake, wait_for

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]
WINDOW_BYTES = 50_000
DOCUMENT_BYTES = 1_000


@pytest.fixture
def make_lake() -> Iterator[Callable[..., Lake]]:
    with ExitStack() as stack:

        def make(relay: Relay, name: str, **connection: Any) -> Lake:
            vbuckets = relay.bucket.settings.vbuckets
            lake = Lake(relay.seeds[0], vbuckets, name, window_bytes=10_000, **connection)
            return stack.enter_context(closing(lake))

        yield make


MakeLake = Callable[..., Lake]


def _relay(make_relay: MakeRelay, cluster: ProducerCluster, fc: str, **more: float) -> Relay:
    return make_relay(cluster, flow_spec=parse_flow_spec(fc), window_bytes=WINDOW_BYTES, **more)


def _outstanding(cluster: ProducerCluster) -> int:
    with cluster.bucket.lock:
        flows = cluster.bucket.counters.flows.values()
        return max((flow.outstanding_bytes for flow in flows), default=0)


def _is_blocked(cluster: ProducerCluster) -> bool:
    return _outstanding(cluster) >= WINDOW_BYTES


def _stays_level(cluster: ProducerCluster, relay: Relay) -> None:
    """More comes than any window holds, and the relay gets all of it."""
    fill(cluster, 400, DOCUMENT_BYTES, prefix=f"more-{monotonic()}")
    wait_until_level(cluster, relay)


def _waits_for(relay: Relay) -> str:
    return relay.figures().upstream[0].waits_for


def _settle(cluster: ProducerCluster, *lakes: Lake) -> None:
    """Let consumers have what there is, so that they count from here on."""
    fill(cluster, 8)
    for lake in lakes:
        lake.run_to(cluster)


def _one_is_stuck(
    make_cluster: MakeCluster, make_relay: MakeRelay, make_lake: MakeLake, documents: int
) -> tuple[ProducerCluster, Relay, Lake, Lake]:
    """Let one of two lakes take nothing, until the other has all."""
    cluster = make_cluster(vbuckets=2)
    relay = _relay(make_relay, cluster, "min,t:1s")
    stuck = make_lake(relay, "stuck")
    other = make_lake(relay, "other")
    _settle(cluster, stuck, other)
    fill(cluster, documents, DOCUMENT_BYTES, prefix="later")
    other.run_to(cluster)
    return cluster, relay, stuck, other


def test_one_that_is_stuck_is_waited_for_no_more(
    make_cluster: MakeCluster,
    make_relay: MakeRelay,
    make_lake: MakeLake,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, relay, stuck, other = _one_is_stuck(make_cluster, make_relay, make_lake, 400)
    wait_until_level(cluster, relay)
    assert relay.figures().ejections == 1
    # Its vbuckets may have been given up one long after the other: then the first one is told.
    told = re.compile(
        r"consumer stuck\S* is stuck: (1 vbucket no longer waits|2 vbuckets no longer wait)"
    )
    wait_for("it is told", lambda: told.search(caplog.text) is not None)
    # It comes back by moving, and not because something comes after a while.
    for number in range(4):
        sleep(1.2)
        fill(cluster, 4, DOCUMENT_BYTES, prefix=f"drop-{number}-")
        other.run_to(cluster)
        wait_for("all is consumed", lambda: relay.figures().unconsumed_bytes == 0)
    assert relay.figures().ejections == 1
    _stays_level(cluster, relay)
    stuck.run_to(cluster)  # nothing is lost for it
    other.run_to(cluster)
    # It has caught up, and counts again.
    wait_for("both count", lambda: _members(relay) == [2])
    fill(cluster, 400, DOCUMENT_BYTES, prefix="latest")
    other.run(lambda _: _is_blocked(cluster) and _waits_for(relay).startswith("stuck"))
    stuck.run_to(cluster)
    other.run_to(cluster)


def test_who_was_stuck_counts_again_though_nothing_more_comes(
    make_cluster: MakeCluster,
    make_relay: MakeRelay,
    make_lake: MakeLake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has caught up between two ticks, before the relay has noted any sign of life."""
    cluster, relay, stuck, _ = _one_is_stuck(make_cluster, make_relay, make_lake, 100)
    wait_for("one is given up", lambda: _members(relay) == [1])
    monkeypatch.setattr("dcp.relay.regulator.rest_seconds", lambda _: 3.0)
    sleep(1)  # from here on ticks are rare
    stuck.run_to(cluster)
    wait_for("both count", lambda: _members(relay) == [2])


def _members(relay: Relay) -> list[int]:
    """Return how many are in the vbuckets' groups: once each number."""
    return [each.receivers for each in relay.figures().groups]


def test_one_that_takes_a_little_is_not_stuck(
    make_cluster: MakeCluster, make_relay: MakeRelay, make_lake: MakeLake
) -> None:
    cluster = make_cluster(vbuckets=1)
    relay = _relay(make_relay, cluster, "min,t:2s", consumer_ack_seconds=5.0)
    slow = make_lake(relay, "slow", ack_fraction=0.9)  # so that only its timer acknowledges
    _settle(cluster, slow)
    fill(cluster, 300, DOCUMENT_BYTES, prefix="later")
    until = monotonic() + 16
    while monotonic() < until:
        slow.take_one(2)
        sleep(1)
    slow.run_to(cluster)
    assert relay.figures().ejections == 0


def test_a_group_is_waited_for(
    make_cluster: MakeCluster, make_relay: MakeRelay, make_lake: MakeLake
) -> None:
    """No stream is opened before two are there, and none stays when one of them leaves."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 100)
    relay = _relay(make_relay, cluster, "tagged,g:7/2,t:60s")
    first = make_lake(relay, "first#gtag=7")
    make_lake(relay, "nobody").take_one()
    one_of_two = "vbuckets 0-1: 1 of 2 receivers, no stream until they are there"
    wait_for("one is there", lambda: first.take_one(0.05) or one_of_two == _groups(relay))
    assert cluster.counters().items_sent == {}
    second = make_lake(relay, "second#gtag=7")
    wait_for("both are there", lambda: second.take_one(0.05) or _has_streams(relay))
    for lake in (first, second):
        lake.run_to(cluster)
    assert _groups(relay) == "vbuckets 0-1: 2 of 2 receivers"
    second.close()
    wait_for("the streams are closed", lambda: not _has_streams(relay))
    fill(cluster, 100, prefix="later")
    assert not first.take_one(0.3)
    second.connect(relay.seeds[0])
    second.run_to(cluster)
    first.run_to(cluster)


def _groups(relay: Relay) -> str:
    return "; ".join(map(str, relay.figures().groups))


def _has_streams(relay: Relay) -> bool:
    return any(link.streams for link in relay.figures().upstream)


def test_a_short_absence_closes_nothing(
    make_cluster: MakeCluster, make_relay: MakeRelay, make_lake: MakeLake
) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 100)
    relay = _relay(make_relay, cluster, "min,g:/1", hold_seconds=30.0)
    lake = make_lake(relay, "only")
    lake.run_to(cluster)
    opened = dict(cluster.counters().streams_opened)
    lake.close()
    wait_for("it is gone", lambda: relay.figures().groups[0].receivers == 0)
    fill(cluster, 400, DOCUMENT_BYTES, prefix="later")
    wait_for("the window is full", lambda: _is_blocked(cluster))
    lake.connect(relay.seeds[0])
    lake.run_to(cluster)
    assert cluster.counters().streams_opened == opened


def test_who_comes_too_early_counts(
    make_cluster: MakeCluster, make_relay: MakeRelay, make_lake: MakeLake
) -> None:
    """A consumer that is ahead of a new relay is one of those that the group waits for."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 100)
    first = _relay(make_relay, cluster, "max")
    lake = make_lake(first, "ahead#gtag=7")
    lake.run_to(cluster)
    lake.close()
    second = make_relay(
        cluster,
        data_folder=first.relay_settings.data_folder.parent / "second",
        flow_spec=parse_flow_spec("tagged,g:7/1,t:2s"),
    )
    lake.connect(second.seeds[0])
    fill(cluster, 100, prefix="later")
    lake.run_to(cluster)
    assert lake.rollbacks == {}


def test_tags_by_control(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    cluster = make_cluster(vbuckets=1)
    relay = _relay(make_relay, cluster, "tagged,g:-9/1,t:60s")
    with RawClient(relay.seeds[0]) as client:
        client.log_in().open_dcp(receiver_group_tag="-9")
        for value in (b"", b"x", b"1.5", b"9223372036854775808", b"0x7", b"\xff"):
            refused = client.call(m.DcpControl(b"receiver_group_tag", value), Opcode.DCP_CONTROL)
            assert refused.status == Status.EINVAL
        assert client.request_stream(0).status == Status.SUCCESS
        wait_for("the group is complete", lambda: relay.figures().groups[0].receivers == 1)
        told = json.loads(client.statistics("relay")["relay"])
        assert told["strategy"] == "tagged,g:-9/1,t:60s,rrwm:4"
        assert [each["vbuckets"] for each in told["groups"]] == ["0"]
        assert told["streams"] == 1
    with RawClient(cluster.seeds[0]) as client:
        client.log_in().open_dcp()
        refused = client.call(m.DcpControl(b"receiver_group_tag", b"7"), Opcode.DCP_CONTROL)
        assert refused.status == Status.EINVAL


def test_metrics_say_who_is_waited_for(
    make_cluster: MakeCluster,
    make_relay: MakeRelay,
    make_lake: MakeLake,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = make_cluster(vbuckets=2)
    relay = _relay(make_relay, cluster, "tagged,g:7/1,t:60s")
    slow, fast = make_lake(relay, "slow#gtag=7"), make_lake(relay, "fast#gtag=7")
    _settle(cluster, slow, fast)
    fill(cluster, 400, DOCUMENT_BYTES, prefix="later")
    fast.run(lambda _: _is_blocked(cluster) and _waits_for(relay).startswith("slow"))
    (user,) = USERS
    monkeypatch.setenv("DCPLAKE_PASSWORD", USERS[user])
    assert main(["top", "--relay", relay.http_seeds[0], "--user", user, "--metrics"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line[0] != "#"]
    told = {series: float(value) for series, value in (line.rsplit(" ", 1) for line in lines)}
    name, node = _waits_for(relay), cluster.seeds[0]
    assert told[f'relay_group_waits_for{{consumer="{name}",group="0"}}'] == 1
    assert told['relay_group_info{group="0",vbuckets="0-1"}'] == 1
    assert told['relay_group_receivers{group="0"}'] == 2
    assert told['relay_group_required{group="0"}'] == 1
    assert told["relay_consumers"] == 2
    assert told["relay_waits_for_disk"] == 0
    assert told["relay_resident_bytes"] > 20 * 2**20
    with relay.bucket.lock:
        indexes = [relay.bucket.vbuckets[vbucket].data.newest for vbucket in range(2)]
        keys = [each.key for index in indexes for each in index.versions]
        longest = max(map(len, keys))
    load = Load(len(keys), key_bytes=longest, connections=2, streams=4)
    most_bytes = relay_bytes(relay.relay_settings, load)
    bound_bytes = told["relay_memory_bound_bytes"]
    assert most_bytes - longest * len(keys) < bound_bytes <= most_bytes
    scraped, figures = (_scraped(relay, path, user) for path in ("metrics", "figures.json"))
    assert f'relay_group_waits_for{{consumer="{name}",group="0"}} 1.0' in scraped.splitlines()
    assert f'dcp_server_streams{{connection="{name}"}} 2.0' in scraped.splitlines()
    assert json.loads(figures)["relay"]["groups"][0]["waits_for"] == name
    names = [each["name"] for each in json.loads(figures)["connections"]]
    assert len(names) == 2 and name in names
    assert main(["top", "--relay", relay.http_seeds[0], "--user", user, "--once"]) == 0
    assert re.search(
        rf"^relay: RSS [\d,]+ of at most {bound_bytes / 2**20:,.0f} MiB$",
        capsys.readouterr().out,
        re.MULTILINE,
    )
    assert told[f'relay_upstream_waits_for{{consumer="{name}",node="{node}"}}'] == 1
    assert told[f'relay_upstream_window_bytes{{node="{node}"}}'] == WINDOW_BYTES
    assert told[f'relay_upstream_unacked_bytes{{node="{node}"}}'] >= WINDOW_BYTES
    assert told[f'dcp_server_outstanding_bytes{{connection="{name}"}}'] >= 10_000


def _scraped(relay: Relay, path: str, user: str) -> str:
    credentials = base64.b64encode(f"{user}:{USERS[user]}".encode()).decode()
    url = f"http://{relay.http_seeds[0]}/{path}"
    asked = Request(url, headers={"Authorization": f"Basic {credentials}"})
    with urlopen(asked, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())

"""The relay's bytes are freed once: a second release is counted and told, and changes nothing."""

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.cli.main import main
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.protocol.outgoing import Outgoing
from dcp.relay.regulator import Regulator
from dcp.relay.relay import Relay
from dcp.relay.upstream_window import UpstreamWindow
from tests.client.drained import USERS, fill, wait_for
from tests.producer.raw_client import RawClient
from tests.relay.lakes import PATIENCE_SECONDS, Lake

WINDOW_BYTES = 50_000
_free = Regulator._free


def _free_twice(regulator: Regulator, vbucket: int, frame_bytes: int) -> None:
    _free(regulator, vbucket, frame_bytes)
    _free(regulator, vbucket, frame_bytes)


def test_a_second_release_frees_nothing_and_is_told(
    make_cluster: Callable[..., ProducerCluster],
    make_relay: Callable[..., Relay],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of one vbucket all is released twice: neither it nor another one, which is held, gains."""
    monkeypatch.setattr(Regulator, "_free", _free_twice)
    cluster = make_cluster(vbuckets=2)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,t:60s"), window_bytes=WINDOW_BYTES)

    def is_held_as_the_gates_say() -> bool:
        with relay.bucket.lock:
            told = relay.snapshot()
            return told.held_bytes == sum(link.held_bytes for link in told.links)

    with closing(Lake(relay.seeds[0], 2, "fast")) as fast:
        with RawClient(relay.seeds[0]) as slow:
            slow.log_in().open_dcp(b"slow", window=2_000)
            slow.request_stream(0)
            fill(cluster, 40, 1_000)
            fast.run_to(cluster)
            wait_for(
                "a second release",
                lambda: relay.snapshot().second_releases > 0,
                PATIENCE_SECONDS,
            )
            wait_for("one vbucket is held", is_held_as_the_gates_say, PATIENCE_SECONDS)
            assert relay.snapshot().held_bytes > 10_000
        fill(cluster, 400, 1_000, prefix="later")  # many windows
        fast.run_to(cluster)
        wait_for("nothing is held", is_held_as_the_gates_say, PATIENCE_SECONDS)
        wait_for("all is free", lambda: relay.snapshot().held_bytes == 0, PATIENCE_SECONDS)
    with cluster.bucket.lock:
        assert sum(each.over_acked_bytes for each in cluster.bucket.counters.flows.values()) == 0
    assert "regulator failed" not in caplog.text
    errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(errors) == 1, "the first one is told"
    assert "release: found byte" in errors[0]
    (user,) = USERS
    monkeypatch.setenv("DCPLAKE_PASSWORD", USERS[user])
    found = relay.snapshot().second_releases
    assert main(["top", "--relay", relay.seeds[0], "--user", user, "--metrics"]) == 0
    told = dict(
        line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines() if line[0] != "#"
    )
    assert int(told["relay_second_releases_total{}"]) >= found > 1


def test_nothing_is_released_twice(
    make_cluster: Callable[..., ProducerCluster],
    make_relay: Callable[..., Relay],
) -> None:
    """Not over connections that are lost either: what streams held is void with them."""
    cluster = make_cluster(vbuckets=4)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,t:60s"), window_bytes=WINDOW_BYTES)
    with closing(Lake(relay.seeds[0], 4)) as lake:
        for round_number in range(3):
            cluster.snapshot_cut_after(20)
            fill(cluster, 200, 1_000, prefix=f"round-{round_number}")
            lake.run_to(cluster)
    with RawClient(relay.seeds[0]) as client:
        told = dict(client.log_in().statistics("relay"))
    assert told["relay:second_releases"] == "0"


VBUCKETS = st.integers(0, 2)
steps = st.lists(st.tuples(st.sampled_from(["lend", "withhold"]), VBUCKETS, st.integers(1, 90)))


@given(steps)
def test_a_vbucket_gives_back_what_it_was_lent_and_no_more(
    steps: list[tuple[str, int, int]],
) -> None:
    """Whatever is given back: no byte of another vbucket is freed, and none twice."""
    window = UpstreamWindow(100, Outgoing(), 0.0)
    lent, freed_bytes = Counter[int](), 0
    for what, vbucket, frame_bytes in steps:
        if what == "lend":
            window.receive(frame_bytes, 0.0)
            window.lend(vbucket, frame_bytes)
            lent[vbucket] += frame_bytes
            continue
        taken_bytes = min(frame_bytes, lent[vbucket])
        assert window.withhold(vbucket, frame_bytes) == frame_bytes - taken_bytes
        lent[vbucket] -= taken_bytes
        freed_bytes += taken_bytes
        window.release_withheld(0.0)
        assert window.held_bytes == sum(lent.values())
        assert window.acknowledged_bytes + window.unacked_bytes == freed_bytes + window.held_bytes

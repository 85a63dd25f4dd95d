"""The vbuckets that the regulator looks at, behind a relay whose group has a least size."""

from collections.abc import Callable
from contextlib import closing
from threading import Event
from time import sleep

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.receivers import Receivers
from dcp.relay.regulator import TICK_SECONDS, Regulator
from dcp.relay.thread import Relay
from tests.client.drained import fill, wait_for
from tests.relay.lakes import PATIENCE_SECONDS, Lake

VBUCKETS = 16
_look_at = Regulator._look_at


def test_what_nothing_happens_to_costs_nothing(
    make_cluster: Callable[..., ProducerCluster],
    make_relay: Callable[..., Relay],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Idle, nothing is looked at; after a write its vbucket, and all when a consumer is gone."""
    looked: list[int] = []

    def look_at(regulator: Regulator, vbucket: int) -> None:
        looked.append(vbucket)
        _look_at(regulator, vbucket)

    monkeypatch.setattr(Regulator, "_look_at", look_at)
    cluster = make_cluster(vbuckets=VBUCKETS)
    fill(cluster, 100)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,g:/2,t:60s"))

    def is_quiet() -> bool:
        looked.clear()
        sleep(5 * TICK_SECONDS)
        return not looked

    def groups() -> list[str]:
        return [str(each) for each in relay.figures().groups]

    with closing(Lake(relay.seeds[0], VBUCKETS, "stays")) as stays:
        with closing(Lake(relay.seeds[0], VBUCKETS, "goes")) as goes:
            while not (stays.has_all_of(cluster) and goes.has_all_of(cluster)):
                stays.take_one(0.02)
                goes.take_one(0.02)
            wait_for("nothing happens", is_quiet, PATIENCE_SECONDS)
            assert groups() == [f"vbuckets 0-{VBUCKETS - 1}: 2 of 2 receivers"]
            cluster.set(b"one", b"1")
            stays.run_to(cluster)
            goes.run_to(cluster)
            wait_for("it is looked at", lambda: bool(looked), PATIENCE_SECONDS)
            assert set(looked) == {cluster.vbucket_of(b"one")}
            wait_for("nothing more happens", is_quiet, PATIENCE_SECONDS)
        missed = [f"vbuckets 0-{VBUCKETS - 1}: 1 of 2 receivers, no stream until they are there"]
        wait_for("one lacks", lambda: groups() == missed, PATIENCE_SECONDS)
        wait_for("nothing happens again", is_quiet, PATIENCE_SECONDS)


def test_a_halt_within_a_pass_is_nobody_s_silence(
    make_cluster: Callable[..., ProducerCluster],
    make_relay: Callable[..., Relay],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever is stopped while he looks at a vbucket, loop and all, has heard nobody meanwhile."""
    halt_seconds, is_due = 1.5, Event()
    excused_ns: list[int] = []

    def look_at(regulator: Regulator, vbucket: int) -> None:
        if is_due.is_set():
            is_due.clear()
            sleep(halt_seconds)
        _look_at(regulator, vbucket)

    monkeypatch.setattr(Regulator, "_look_at", look_at)
    monkeypatch.setattr(Receivers, "was_away", lambda _, away_ns: excused_ns.append(away_ns))
    cluster = make_cluster(vbuckets=2)
    relay = make_relay(cluster)
    with closing(Lake(relay.seeds[0], 2)) as lake:
        fill(cluster, 20)
        lake.run_to(cluster)
        is_due.set()
        fill(cluster, 20, prefix="later")
        lake.run_to(cluster)
    wait_for("it was halted", lambda: not is_due.is_set(), PATIENCE_SECONDS)
    within_ns = range(int((halt_seconds - 0.1) * 1e9), int(60 * 1e9))
    wait_for("it is excused", lambda: any(ns in within_ns for ns in excused_ns), PATIENCE_SECONDS)

"""P1 to P6 with everything at once: a cluster that changes and fails while documents are written.

A continuous run reads three encrypted nodes by names that their certificates have, through proxies
that slow, swallow and cut. In an order that the seed says nodes come and go, are failed over with
writes that no replica has, crash, die, hang, show another authority's certificates, and have clocks
that are hours off, each while a round is under way. Then all is well again: the tables equal the
bucket, and each of their versions equals what the bucket held.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from time import sleep, time
from typing import Final

import pyarrow as pa
import pytest

from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.settings import Settings
from dcp.lake.rounds.observer import Observer, Wait
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run.driver import RunReport
from dcp.lake.run.replicate import run
from dcp.lake.store.lake_store import BatchFunction
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.lake_tables import replicas_in
from dcp.lake.tables.round_record import Outcome
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.refused_error import RefusedError
from dcp.threads import in_thread
from tests.client.drained import wait_for
from tests.lake import memory_store
from tests.lake.memory_store import run_task
from tests.lake.receiving import QUICK_SOURCE, lake_of, settings_for
from tests.lake.replicas import (
    require_every_version_exact,
    require_no_row_twice,
    rows_at,
    table_rows,
)
from tests.lake.swallowing_proxy import SwallowingProxy
from tests.producer.authority import Authority, ShownCertificate
from tests.seeds import seeds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NODES: Final = 3
VBUCKETS: Final = 12
COLLECTIONS: Final = ("_default._default", "shop.orders")
PROXY_HOST: Final = "127.0.0.2"
PATIENCE_SECONDS: Final = 240.0
SKEW_SECONDS: Final = 5 * 3600.0
CERTIFIED: Final = ("127.0.0.1", PROXY_HOST)
SECONDS_A_ROUND: Final = 1.2
"""What happens in a round happens within so long of its beginning."""
TASK_SECONDS: Final = 1.0
"""So long after its plan a task opens its streams, as on a cluster that starts tasks late."""


class NodeClock(threading.local):
    """The clock of the node that stores a document, in the thread that writes it."""

    ahead_seconds = 0.0

    def __call__(self) -> float:
        return time() + self.ahead_seconds


class Writer:
    """Creates, changes, expires and deletes documents of all collections until it is stopped."""

    def __init__(self, cluster: ProducerCluster, clock: NodeClock, seed: int) -> None:
        self.ahead_seconds: dict[int, float] = {}
        """Of nodes whose clock is off."""
        self._cluster, self._clock, self._random = cluster, clock, Random(seed)
        self._stop = threading.Event()
        self._writing: Future[int] = in_thread(self._write)

    def stop(self) -> int:
        """Return how many documents were written."""
        self._stop.set()
        return self._writing.result(PATIENCE_SECONDS)

    def _write(self) -> int:
        written = 0
        while not self._stop.wait(0.02):
            count = self._random.randrange(1, 6)
            if self._random.random() < 0.3:
                with self._cluster.batch():
                    if self._cluster.rebalance_state == "running":
                        continue  # a vbucket that is handed over takes none, and a batch waits not
                    self._write_some(5 * count)
            else:
                self._write_some(count)
            written += count
        return written

    def _write_some(self, count: int) -> None:
        for _ in range(count):
            key = b"key-%d" % self._random.randrange(400)
            collection = self._random.choice(COLLECTIONS)
            owner = self._cluster.vbucket_owner(self._cluster.vbucket_of(key))
            self._clock.ahead_seconds = self.ahead_seconds.get(owner, 0.0)
            kind = self._random.random()
            if kind < 0.2:
                with suppress(RefusedError):  # it is not there
                    self._cluster.delete(key, collection=collection)
            else:
                expiry = 1 if kind < 0.3 else 0
                value = b'{"n": %d}' % self._random.randrange(10**6)
                self._cluster.set(key, value, expiry, collection=collection)


class Watch(Observer):
    """Looks at each round that no vbucket is dropped in silence, and says when one begins."""

    def __init__(self, cluster: ProducerCluster) -> None:
        self.begun = self.applied_round = 0
        self.reports: list[RoundReport] = []
        self.applied_versions: list[AppliedVersion] = []
        self.failures: list[str] = []
        self._cluster = cluster
        self._planned: set[int] = set()
        self._left_out: set[int] = set()
        self._high = dict.fromkeys(range(VBUCKETS), 0)

    def planned(self, plan: RoundPlan, progress: object) -> None:
        self._planned = {stream.vbucket for stream in plan.streams}
        self._left_out = {left.vbucket for left in plan.left_out}
        told = self._planned | self._left_out
        for task in plan.tasks:
            for state in task.unstreamed:
                vbucket = state.vbucket
                high = min(self._high[vbucket], self._cluster.high_seqno(vbucket))
                if vbucket not in told and state.position.seqno < high:
                    self.failures.append(
                        f"round {plan.round}: vbucket {vbucket} is neither read nor left out, at "
                        f"seqno {state.position.seqno} of {high}"
                    )
        self.begun += 1

    def committed(self, report: RoundReport) -> None:
        told = {each.vbucket: each for each in report.vbuckets}
        told_of = {left.vbucket for left in report.left_out}
        lost = (told.keys() ^ told_of) ^ (self._planned | self._left_out)
        for vbucket in lost | (self._planned - told.keys()):
            self.failures.append(f"round {report.round}: vbucket {vbucket} has no outcome, or two")
        for each in report.vbuckets:
            if each.failed and not each.reason:
                self.failures.append(f"round {report.round}: {each}")
        self._high = {vb: self._cluster.high_seqno(vb) for vb in range(VBUCKETS)}
        self.reports.append(report)
        print(f"{time():.1f} {report}")

    def applied(self, version: AppliedVersion) -> None:
        self.applied_versions.append(version)
        self.applied_round = version.to_round
        print(f"{time():.1f} {version}")

    def waiting(self, seconds: float, wait: Wait) -> None:
        print(f"{time():.1f} waits {wait.reason}")


class Chaos:
    """A cluster behind proxies, whoever writes to it, and what happens to it."""

    def __init__(self, folder: Path, seed: int, stack: ExitStack) -> None:
        self.random = Random(seed)
        authority = Authority(folder)
        first = authority.issue(CERTIFIED)
        self._certificate = ShownCertificate(cert_file=first.cert_file, key_file=first.key_file)
        self._folder, self._trusted = folder, authority.ca_file
        clock = NodeClock()
        settings = ClusterSettings(
            nodes=NODES,
            vbuckets=VBUCKETS,
            seed=seed,
            replicas=1,
            checkpoint_items=50,
            tls=self._certificate,
            external_host=PROXY_HOST,
            clock=clock,
        )
        self.cluster = stack.enter_context(ProducerCluster(settings))
        self._stack = stack
        self.proxies = [self._proxy(node) for node in range(NODES)]
        self.cluster.create_scope("shop")
        self.cluster.create_collection("shop", "orders")
        self.writer = Writer(self.cluster, clock, seed)
        stack.callback(self.writer.stop)
        self.watch = Watch(self.cluster)
        self.running: Future[RunReport] | None = None

    def _proxy(self, node: int) -> SwallowingProxy:
        seed = self.cluster.tls_seeds[node]
        return self._stack.enter_context(SwallowingProxy(seed, {}, PROXY_HOST))

    def settings(self, folder: Path, *, is_patient: bool) -> Settings:
        """Return those of a run by the external addresses; one that is not patient gives up soon
        what it cannot have now.
        """
        seeds = ",".join(proxy.seed for proxy in self.proxies)
        source = {
            "seeds": tuple(f"couchbases://{seeds}?network=external".split(",")),
            "tls_ca_file": self._trusted,
        }
        if is_patient:
            return settings_for(self.cluster, folder, source=source)
        return settings_for(
            self.cluster,
            folder,
            source=source | QUICK_SOURCE,
            round={
                "minimum_interval_seconds": 2.0,
                "node_deadline_seconds": 4.0,
                "quiet_seconds": 0.5,
            },
        )

    def happen(self) -> None:
        """Let all happen, each in a round of its own."""
        events = [
            self.rebalance_in,
            self.rebalance_out,
            self.fail_over,
            self.kill,
            self.crash,
            self.cut,
            self.hang,
            self.slow,
            self.skew,
        ]
        self.random.shuffle(events)
        for event in events:
            self.next_round()
            sleep(self.random.random() * SECONDS_A_ROUND)
            print(f"{time():.1f} {event.__name__}")
            event()

    def next_round(self) -> None:
        begun = self.watch.begun
        self.wait_for("a round", lambda: self.watch.begun > begun)

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for what the run does, as long as it goes on."""
        running = self.running
        assert running is not None
        wait_for(what, lambda: condition() or running.done(), PATIENCE_SECONDS)
        if running.done():
            running.result()

    def members(self) -> list[int]:
        return [node for node, is_one in enumerate(self.cluster.bucket.map.members) if is_one]

    def a_member(self) -> int:
        return self.random.choice(self.members())

    def rebalance_in(self) -> None:
        self.proxies.append(self._proxy(self.cluster.add_node()))
        self.cluster.rebalance()

    def rebalance_out(self) -> None:
        self.cluster.rebalance(remove=self.a_member())

    def fail_over(self) -> None:
        """A node's last writes are on no other, and published."""
        self.cluster.pause_replication()
        begun = self.watch.begun
        self.wait_for("an apply", lambda: self.watch.applied_round > begun)
        node = self.a_member()
        self.cluster.failover(node)
        self.cluster.resume_replication()
        self.next_round()
        self.cluster.restore_node(node)
        self.cluster.rebalance()

    def kill(self) -> None:
        node = self.a_member()
        self.cluster.kill_node(node)
        self.next_round()
        self.cluster.restore_node(node)

    def crash(self) -> None:
        """It comes back at once, without what was not on its disk."""
        self.cluster.crash_restart(self.a_member(), lost_seqnos=self.random.randrange(20, 80))

    def cut(self) -> None:
        """In the middle of what they say; who comes back finds another authority's certificates."""
        authority = Authority(self._folder, "new")
        ours, new = Path(self._trusted), Path(authority.ca_file).read_bytes()
        ours.write_bytes(ours.read_bytes() + new)
        self.cluster.snapshot_cut_after(self.random.randrange(1, 20))
        self.next_round()
        self._certificate.show(authority.issue(CERTIFIED))
        ours.write_bytes(new)
        for proxy in self.proxies:
            proxy.cut()

    def hang(self) -> None:
        proxy = self.proxies[self.a_member()]
        proxy.swallows.set()
        self.next_round()
        proxy.swallows.clear()

    def slow(self) -> None:
        proxy = self.proxies[self.a_member()]
        proxy.pause_seconds = 0.02
        self.next_round()
        self.next_round()
        proxy.pause_seconds = 0.0

    def skew(self) -> None:
        """One clock is hours behind, and one hours ahead."""
        behind, *_, ahead = self.members()
        self.writer.ahead_seconds = {behind: -SKEW_SECONDS, ahead: SKEW_SECONDS}


def run_late(number: int, receive: BatchFunction) -> list[pa.RecordBatch]:
    sleep(TASK_SECONDS)
    return run_task(number, receive)


@pytest.mark.parametrize("seed", seeds(1, first=9000, soak_count=3))
@pytest.mark.usefixtures("lakes_in_memory")
def test_a_cluster_in_chaos_is_replicated_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(memory_store, "run_task", run_late)
    with ExitStack() as stack:
        chaos = Chaos(tmp_path, seed, stack)
        cluster, watch = chaos.cluster, chaos.watch
        settings = chaos.settings(tmp_path, is_patient=False)
        stop = threading.Event()
        chaos.running = running = in_thread(
            lambda: run(settings, once=False, observer=watch, stop=stop)
        )
        try:
            chaos.happen()
            written = chaos.writer.stop()
        finally:
            stop.set()
            running.result(PATIENCE_SECONDS)
        settings = chaos.settings(tmp_path, is_patient=True)
        run(settings, once=True, observer=watch)
        lake = lake_of(settings)
        states = states_at(lake, latest_round(lake))
        assert {vb: state.complete_seqno for vb, state in states.items()} == {
            vb: cluster.high_seqno(vb) for vb in range(VBUCKETS)
        }
        for replica in replicas_in(lake):
            newest = rows_at(cluster, states.values(), replica)
            assert table_rows(lake, None, replica) == newest, f"{replica.name} differs"
        versions = {
            replica.name: require_every_version_exact(lake, cluster, replica)
            for replica in replicas_in(lake)
        }
        require_no_row_twice(lake)
        print(f"seed {seed}: {written} writes, {len(watch.reports)} rounds, exact: {versions}")
        assert not watch.failures
        outcomes = {each.outcome for report in watch.reports for each in report.vbuckets}
        assert outcomes >= {Outcome.ROLLBACK, Outcome.STOPPED}
        assert any(each.undone for each in watch.applied_versions), "found no published row lost"
        cas = max(cas for rows in table_rows(lake, None).values() for _, cas, _ in rows.values())
        assert cas > (time() + SKEW_SECONDS / 2) * 1e9, "found no clock ahead"

"""A client that streams across forks and purges: complete snapshots are exact, always.

The client is the simplest that is right: it keeps the state at each snapshot end, goes back to the
newest at or below a rollback, and names the branch that its own accepted failover log gives. What
it holds is compared with the producer's record of that branch at that seqno.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.resume_rules import Rules, judge
from dcp.server.model.versions import Flavour
from dcp.server.streams.active_stream import ActiveStream, ActiveStreamPhase
from dcp.server.streams.dcp_options import StreamSettings
from dcp.types import FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import EndReason, Status, VbucketState
from tests.producer.resuming import resuming
from tests.seeds import seeds

KEYS = [b"a", b"b", b"c", b"d"]
MOST_REQUESTS = 30
HISTORIES = 50
"""How many are streamed in one test."""


@dataclass
class Client:
    """One vbucket as a consumer sees it."""

    cluster: ProducerCluster
    flavour: int
    seqno: int = 0
    snapshot: tuple[int, int] = (0, 0)
    log: FailoverLog | None = None
    held: dict[bytes, int] = field(default_factory=dict)
    complete: dict[int, dict[bytes, int]] = field(default_factory=lambda: {0: {}})
    stream: ActiveStream | None = None
    met: Counter[str] = field(default_factory=Counter)

    @property
    def complete_seqno(self) -> int:
        return max(self.complete)

    def connect(self) -> None:
        """Ask until the producer accepts; every rollback must lead below the one before."""
        vbucket = self.cluster.bucket.vbuckets[0]
        stream_settings = StreamSettings(self.flavour)
        for _ in range(MOST_REQUESTS):
            facts = vbucket.facts()
            verdict = judge(self._request(), facts, self.cluster.settings.rules)
            if verdict.status is Status.SUCCESS:
                self.log = vbucket.failover_log
                self.stream = ActiveStream(vbucket.data, 9, verdict, 0, stream_settings)
                return
            assert verdict.status is Status.ROLLBACK
            assert verdict.rollback_seqno is not None
            self._go_back(verdict.rollback_seqno)
        raise AssertionError(f"not accepted in {MOST_REQUESTS} requests")

    def _request(self) -> m.StreamRequest:
        if self.seqno == 0 or self.log is None:
            return resuming(0, 0, 0, 0)
        start, end = self.snapshot
        if self.seqno == self.complete_seqno:
            start = end = self.seqno
        uuid = self.log.uuid_at(self.seqno)
        return resuming(self.seqno, uuid, min(start, self.complete_seqno), end)

    def _go_back(self, seqno: int) -> None:
        assert seqno <= self.seqno
        self.met["rollback to 0" if seqno == 0 else "rollback"] += 1
        self.complete = {at: state for at, state in self.complete.items() if at <= seqno}
        self.seqno = self.complete_seqno
        self.held = dict(self.complete[self.seqno])

    def read(self, batches: int, room: int) -> None:
        """Take so many batches, or until nothing comes."""
        for _ in range(batches):
            if self.stream is None:
                self.connect()
            assert self.stream is not None
            batch = self.stream.next_batch(room, 2**40, 2**40)
            if batch is None:
                return
            block = FrameSplitter().feed(bytes(batch.data))
            for index in range(len(block)):
                self._take(decode(block.frame(index)))
            if self.stream.phase is ActiveStreamPhase.DEAD:
                self.stream = None

    def disconnect(self) -> None:
        """Let go of the stream."""
        if self.stream is not None:
            self.stream.end(EndReason.DISCONNECTED, announce=False)
            self.stream = None

    def lose_cursor(self) -> None:
        """Let the producer drop the stream's cursor, as when memory is short."""
        if self.stream is not None and self.stream.is_sending:
            self.cluster.bucket.vbuckets[0].data.checkpoints.remove(self.stream.cursor)
            self.stream.cursor_dropped()
            self.met["cursor dropped"] += 1

    def _take(self, body: m.Body) -> None:
        if isinstance(body, m.SnapshotMarker):
            assert self.seqno <= body.end
            self.snapshot = (body.start, body.end)
            return
        if isinstance(body, m.StreamEnd):
            assert body.reason == EndReason.ROLLBACK
            self.met["stream ended"] += 1
            return
        seqno = body.seqno if isinstance(body, m.SeqnoAdvanced) else 0
        if isinstance(body, m.Mutation | m.Deletion):
            seqno = body.by_seqno
            self.held.pop(body.key.removeprefix(b"\0"), None)
            if isinstance(body, m.Mutation):
                self.held[body.key.removeprefix(b"\0")] = seqno
        assert self.seqno < seqno <= self.snapshot[1]
        self.seqno = seqno
        if seqno == self.snapshot[1]:
            self._complete()

    def _complete(self) -> None:
        state = self.cluster.state_at(0, self.seqno)
        assert self.held == {key: document.seqno for key, document in state.items()}
        self.complete[self.seqno] = dict(self.held)

    def check_the_past(self) -> None:
        """All that it ever completed is what its branch held."""
        if self.log is None:
            return
        for seqno, held in self.complete.items():
            state = self.cluster.state_at(0, seqno, self.log.current_uuid)
            assert held == {key: document.seqno for key, document in state.items()}


def _random_step(random: Random) -> tuple[Any, ...]:
    writes = [(random.choice(KEYS), random.random() < 0.5) for _ in range(random.randint(1, 8))]
    purged_below = random.randint(0, 5)
    (step,) = random.choices(
        [
            ("write", writes),
            ("read", random.randint(1, 6), random.choice([1, 100, 2**30])),
            ("write and read", writes, random.randint(2, 8)),
            ("fork", random.choice(["crash", "crash", "state"]), random.randint(0, 6)),
            ("purge", purged_below),
            (random.choice(["disconnect", "drop cursor"]),),
        ],
        weights=[25, 20, 20, 10, 18, 12],
    )
    return step


def _stream_a_history(seed: int) -> Counter[str]:
    """Let one client follow one random history; return what it met."""
    random = Random(seed)
    rules: Rules = random.choice(["document", "server"])
    cluster = ProducerCluster(
        ClusterSettings(
            vbuckets=1,
            seed=seed,
            unpersisted_seqnos=random.randint(0, 4),
            checkpoint_items=random.choice([0, 3, 1000]),
            rules=rules,
            clock=lambda: 1.0,
        )
    )
    flavour = random.choice([int(Flavour.COLLECTIONS), 0])
    client = Client(cluster, flavour)
    for _ in range(random.randint(5, 60)):
        name, *how = _random_step(random)
        _do(cluster, client, name, how)
        client.check_the_past()
    for _ in range(MOST_REQUESTS):
        client.read(1000, 2**30)
    high = cluster.high_seqno(0)
    assert client.held == {key: each.seqno for key, each in cluster.state_at(0, high).items()}
    if flavour:  # else a client is not told where the newest item is a purged tombstone
        assert client.complete_seqno == high
    client.check_the_past()
    return client.met


@pytest.mark.parametrize("first_seed", [s * HISTORIES for s in seeds(4)])
def test_complete_snapshots_are_exact_on_every_branch(first_seed: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + HISTORIES):
        try:
            met += _stream_a_history(seed)
        except AssertionError as error:
            raise AssertionError(f"history of seed {seed}: {error}") from error
    assert met["rollback"] and met["rollback to 0"] and met["stream ended"]
    assert met["cursor dropped"]


def _do(cluster: ProducerCluster, client: Client, name: str, how: list[Any]) -> None:
    match name:
        case "write":
            _write(cluster, how[0])
        case "write and read":
            _write(cluster, how[0])
            client.read(how[1], 2**30)
        case "read":
            client.read(*how)
        case "disconnect":
            client.disconnect()
        case "drop cursor":
            client.lose_cursor()
        case "purge":
            cluster.purge_tombstones(0, max(0, cluster.high_seqno(0) - how[0]))
        case "fork":
            client.disconnect()
            _fork(cluster, *how)


def _write(cluster: ProducerCluster, changes: list[tuple[bytes, bool]]) -> None:
    for key, deletes in changes:
        try:
            cluster.delete(key) if deletes else cluster.set(key, b"{}")
        except RefusedError as error:
            assert error.status is Status.KEY_ENOENT


def _fork(cluster: ProducerCluster, how: str, lost: int) -> None:
    if how == "crash":
        cluster.crash_restart(0, None if lost == 0 else lost)
    else:
        cluster.set_vbucket_state(0, VbucketState.DEAD)
        cluster.set_vbucket_state(0, VbucketState.ACTIVE)

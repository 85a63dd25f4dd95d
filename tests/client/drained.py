"""A small application for the tests: applies what it is delivered, and checks the order."""

from collections.abc import Callable
from threading import Event as ThreadEvent
from time import monotonic
from typing import Protocol

from dcp.client.consumer_events import VbucketStopped
from dcp.client.delivery import Delivery
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.events import Event, Items, SnapshotCompleted, StreamOpened
from dcp.protocol.position import Position
from dcp.types import FailoverLog
from dcp.wire.vocabulary import Opcode

USERS = {"reader": "secret-of-reader"}
CREDENTIALS = Credentials("reader", Secret("secret-of-reader"))
PATIENCE_SECONDS = 90.0
"""How long anything may take, on a machine that is busy with other things as well."""


class Source(Protocol):
    """A connection or a consumer."""

    def next(self, timeout_seconds: float) -> Delivery | None: ...


class Drained:
    """What was delivered: seqnos by vbucket in order, documents, complete ends, other events."""

    def __init__(self) -> None:
        self.seqnos: dict[int, list[int]] = {}
        self.documents: dict[int, dict[bytes, tuple[int, int, bytes]]] = {}
        self.complete: dict[int, int] = {}
        self.positions: dict[int, Position] = {}
        self.events: list[Event] = []
        self.unacknowledged: list[Delivery] = []

    @property
    def rows(self) -> int:
        return sum(len(seqnos) for seqnos in self.seqnos.values())

    @property
    def stopped(self) -> dict[int, VbucketStopped]:
        return {e.vbucket: e for e in self.events if isinstance(e, VbucketStopped)}

    @property
    def logs(self) -> dict[int, FailoverLog]:
        """The failover logs that came with the newest accepted streams."""
        return {e.vbucket: e.failover_log for e in self.events if isinstance(e, StreamOpened)}

    @property
    def unreleased_bytes(self) -> int:
        return sum(delivery.frame_bytes for delivery in self.unacknowledged)

    def take(self, delivery: Delivery) -> None:
        for event in delivery.events:
            if isinstance(event, Items):
                self._take_items(event)
            elif isinstance(event, SnapshotCompleted):
                self.complete[event.vbucket] = event.seqno
            self.events.append(event)
        self.positions.update(delivery.positions)
        self.unacknowledged.append(delivery)

    def _take_items(self, items: Items) -> None:
        columns = items.columns
        keys, values = columns.key.to_pylist(), columns.value.to_pylist()
        for row in range(len(columns)):
            vbucket, seqno = int(columns.vbucket[row]), int(columns.seqno[row])
            seen = self.seqnos.setdefault(vbucket, [])
            assert not seen or seqno > seen[-1], f"vbucket {vbucket}: {seqno} after {seen[-1]}"
            seen.append(seqno)
            documents = self.documents.setdefault(vbucket, {})
            if columns.opcode[row] == Opcode.DCP_MUTATION:
                documents[keys[row]] = (seqno, int(columns.cas[row]), values[row])
            else:
                documents.pop(keys[row], None)

    def release_all(self) -> None:
        for delivery in self.unacknowledged:
            delivery.release()
        self.unacknowledged.clear()

    def run(
        self,
        source: Source,
        until: Callable[["Drained"], bool],
        *,
        timeout_seconds: float = PATIENCE_SECONDS,
        release: bool = True,
    ) -> "Drained":
        """Take deliveries until ``until`` holds; fail when that takes too long."""
        deadline = monotonic() + timeout_seconds
        while not until(self):
            left = deadline - monotonic()
            assert left > 0, f"not reached in {timeout_seconds} s: {self.rows} rows, {self.events}"
            delivery = source.next(min(left, 0.5))
            if delivery is not None:
                self.take(delivery)
                if release:
                    self.release_all()
        return self


def caught_up(cluster: ProducerCluster, *vbuckets: int) -> Callable[[Drained], bool]:
    """Return the condition that these vbuckets are complete at what the producer holds now."""
    wanted = {vbucket: cluster.high_seqno(vbucket) for vbucket in vbuckets or all_of(cluster)}
    return lambda drained: all(
        drained.complete.get(vbucket, 0) >= seqno for vbucket, seqno in wanted.items() if seqno
    )


def all_of(cluster: ProducerCluster) -> range:
    return range(cluster.settings.vbuckets)


def assert_same_state(cluster: ProducerCluster, drained: Drained, *vbuckets: int) -> None:
    """Compare with the producer's state at the complete seqno of each vbucket."""
    for vbucket in vbuckets or all_of(cluster):
        expected = cluster.state_at(vbucket, drained.complete.get(vbucket, 0))
        found = drained.documents.get(vbucket, {})
        assert found == {
            key: (each.seqno, each.cas, each.value) for key, each in expected.items()
        }, f"vbucket {vbucket}"


def fill(cluster: ProducerCluster, count: int, value_bytes: int = 20, prefix: str = "key") -> None:
    """Write ``count`` documents that streams see as one snapshot per vbucket."""
    with cluster.batch():
        for number in range(count):
            value = f'{{"n":{number}}}'.encode().ljust(value_bytes)
            cluster.set(f"{prefix}-{number}".encode(), value)


def wait_for(
    what: str, condition: Callable[[], bool], timeout_seconds: float = PATIENCE_SECONDS
) -> None:
    """Poll until ``condition`` holds; fail with ``what`` when it does not in time."""
    deadline = monotonic() + timeout_seconds
    tick = ThreadEvent()
    while not condition():
        assert monotonic() < deadline, f"{what}: not within {timeout_seconds} s"
        tick.wait(0.005)

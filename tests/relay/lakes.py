"""A consumer that goes back where it is told to, and can say what it holds: the relay's oracle."""

from collections.abc import Callable
from time import monotonic

from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.vbucket_track import StreamStart
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.credentials import Credentials
from dcp.protocol.events import FailoverLogReceived, Items, RollbackOrdered, SnapshotCompleted
from dcp.protocol.position import Position
from dcp.types import FailoverLog
from dcp.wire.vocabulary import Opcode
from tests.client.connecting import START
from tests.client.consuming import settings
from tests.client.drained import CREDENTIALS, all_of
from tests.client.drained import wait_for as wait_within

PATIENCE_SECONDS = 90.0
"""How long anything may take, on a machine that is busy with other things as well."""
Row = tuple[int, int, bytes, int, bytes]
"""Seqno, opcode, key, CAS, value."""


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    wait_within(what, condition, PATIENCE_SECONDS)


class Lake:
    """All rows of all vbuckets, in order; deliveries are its consumer's."""

    def __init__(
        self,
        seed: str,
        vbuckets: int,
        name: str = "lake",
        *,
        credentials: Credentials = CREDENTIALS,
        **connection: object,
    ) -> None:
        self.rows: dict[int, list[Row]] = {v: [] for v in range(vbuckets)}
        self.ends: dict[int, list[int]] = {v: [] for v in range(vbuckets)}
        self.positions: dict[int, Position] = {}
        self.rollbacks: dict[int, int] = {}
        self.unacknowledged: list[object] = []
        self._orders: dict[int, int] = {}
        self._went_back: set[int] = set()
        self._name, self._credentials, self._connection = name, credentials, connection
        self.connect(seed)

    def connect(self, seed: str) -> None:
        """Go on at a node, from where it stands."""
        self.seed = seed
        self._orders.clear()  # what was not carried out will be ordered again
        self._went_back.clear()
        address = NodeAddress.parse(seed)
        streams = [StreamStart(v, address, self.positions.get(v, START)) for v in self.rows]
        chosen = settings(node_deadline_seconds=PATIENCE_SECONDS, **self._connection)  # type: ignore[arg-type]
        self.consumer = Consumer(streams, [seed], chosen, self._credentials, self._name)

    def close(self) -> None:
        self.consumer.close()

    def take_one(self, timeout_seconds: float = 0.2, *, release: bool = True) -> bool:
        """Take one delivery, if one comes in time; begin anew at once where it went back."""
        delivery = self.consumer.next(timeout_seconds)
        if delivery is None:
            return False
        for event in delivery.events:
            if isinstance(event, Items):
                self._take(event)
            elif isinstance(event, SnapshotCompleted):
                self.ends[event.vbucket].append(event.seqno)
            elif isinstance(event, RollbackOrdered):
                self._orders[event.vbucket] = event.seqno
            elif isinstance(event, FailoverLogReceived) and event.vbucket in self._orders:
                assert event.failover_log is not None
                self._roll_back(event.vbucket, event.failover_log)
        self.positions.update(
            {v: p for v, p in delivery.positions.items() if v not in self._went_back}
        )
        if release:
            delivery.release()
        else:
            self.unacknowledged.append(delivery)
        if self._went_back:
            self.close()
            self.connect(self.seed)
        return True

    def _take(self, items: Items) -> None:
        columns = items.columns
        keys, values = columns.key.to_pylist(), columns.value.to_pylist()
        for row in range(len(columns)):
            seqno, opcode = int(columns.seqno[row]), int(columns.opcode[row])
            held = self.rows[int(columns.vbucket[row])]
            assert not held or seqno > held[-1][0], "a seqno came twice, or out of order"
            held.append((seqno, opcode, keys[row], int(columns.cas[row]), values[row]))

    def _roll_back(self, vbucket: int, log: FailoverLog) -> None:
        order = self._orders.pop(vbucket)
        self.rollbacks[vbucket] = order
        self._went_back.add(vbucket)
        end = max((end for end in self.ends[vbucket] if end <= order), default=0)
        self.ends[vbucket] = [each for each in self.ends[vbucket] if each <= end]
        self.rows[vbucket] = [row for row in self.rows[vbucket] if row[0] <= end]
        self.positions[vbucket] = Position.complete_at(log.uuid_at(end), end)

    def run(
        self, until: Callable[["Lake"], bool], timeout_seconds: float = PATIENCE_SECONDS
    ) -> "Lake":
        """Take deliveries until ``until`` holds."""
        deadline = monotonic() + timeout_seconds
        while not until(self):
            assert monotonic() < deadline, (
                f"not in {timeout_seconds} s; stands at "
                f"{ {v: (p.seqno, self.consumer.trouble(v)) for v, p in self.positions.items()} }"
            )
            self.take_one()
        return self

    def has_all_of(self, cluster: ProducerCluster) -> bool:
        return all(self._stands_at(cluster, v) for v in all_of(cluster))

    def _stands_at(self, cluster: ProducerCluster, vbucket: int) -> bool:
        """Whether it has all of a vbucket, and knows on which branch that is."""
        high = cluster.high_seqno(vbucket)
        end = self.ends[vbucket][-1] if self.ends[vbucket] else 0
        if high != end:
            return False
        current = cluster.failover_log(vbucket).current_uuid
        return not high or self.positions[vbucket].vb_uuid == current

    def run_to(self, cluster: ProducerCluster, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Take all that the cluster has, and compare."""
        self.run(lambda lake: lake.has_all_of(cluster), timeout_seconds)
        self.assert_same(cluster)

    def assert_same(self, cluster: ProducerCluster) -> None:
        """What the rows lead to is what the cluster had at each vbucket's newest complete seqno."""
        for vbucket in all_of(cluster):
            end = self.ends[vbucket][-1] if self.ends[vbucket] else 0
            held: dict[bytes, tuple[int, int, bytes]] = {}
            for seqno, opcode, key, cas, value in self.rows[vbucket]:
                if seqno > end:
                    continue
                if opcode == Opcode.DCP_MUTATION:
                    held[key] = seqno, cas, value
                else:
                    held.pop(key, None)
            expected = cluster.state_at(vbucket, end)
            assert held == {
                key: (each.seqno, each.cas, each.value) for key, each in expected.items()
            }, f"vbucket {vbucket} at seqno {end}"

"""A replication connection between two nodes without a socket: bytes move when a test says so."""

from dcp.producer.bucket import ProducerBucket
from dcp.producer.commands import COMMANDS
from dcp.producer.replication import replication_bootstrap
from dcp.protocol.liveness import LivenessSettings
from dcp.server.commands.session import Session
from dcp.server.replication.passive_connection import PassiveConnection
from dcp.wire.framing import FrameSplitter


class InProcessWire:
    """Feeds all replicas on ``target`` of vbuckets that ``active_node`` owns."""

    def __init__(self, bucket: ProducerBucket, active_node: int, target: int) -> None:
        self._bucket, self._target = bucket, target
        name = f"replication:{active_node}->{target}"
        self._session = Session(bucket, active_node, COMMANDS, 0.0)
        self._to_server, self._to_client = FrameSplitter(), FrameSplitter()
        self.connection = PassiveConnection(
            replication_bootstrap(bucket.name, name),
            bucket.users.node_credentials,
            nonce="nonce",
            now=0.0,
            window_bytes=4 * 1024 * 1024,
            liveness=LivenessSettings(),
        )
        owned = bucket.map.vbuckets_of(active_node)
        replicas = bucket.replicas.of_node(target)
        self.connection.streams.follow({v: replicas[v] for v in owned if v in replicas}, 0.0)

    def close(self) -> None:
        self.connection.streams.end()
        self._session.forget()

    def pump(self, rounds: int = 1_000_000, most_bytes: int = 1 << 20) -> None:
        """Move bytes to and fro, at most so often, until nothing moves."""
        for _ in range(rounds):
            requests = self._to_server.feed(self.connection.protocol.bytes_to_send())
            for index in range(len(requests)):
                self._session.feed(requests.frame(index), 0.0)
            answers = b"".join(self._session.output(most_bytes, 0.0))
            if not answers and not len(requests):
                if self.connection.streams.retry_at is None:
                    return
                self.connection.streams.retry(0.0)
            with self._bucket.lock:
                self.connection.feed(self._to_client.feed(answers), 0.0)
                for stream in self.connection.touched.values():
                    self._bucket.writes.received(self._target, stream.vbucket)
                    self.connection.acknowledge_prepares(stream)
                    self.connection.consumed(stream.take_bytes())
                self.connection.release(0.0)

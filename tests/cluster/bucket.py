"""A bucket of a cluster that may be anybody's: written over the network, keys of its own only."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count, islice
from random import Random
from secrets import token_hex

from dcp.cli.views.server_statistics import signed_in
from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.vbucket_track import StreamStart
from dcp.lake.config.settings_load import load_settings
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.producer.clients.kv_connection import KvConnection
from dcp.protocol.position import Position
from dcp.types import vbucket_of
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status
from tests.client.drained import PATIENCE_SECONDS, Drained


class Bucket:
    """The bucket that settings name: the environment's, with ``options`` as ``--set`` has them.

    All keys begin with ``prefix``, which no other run has. What is left of them is deleted at the
    end. Requests go without collection ids, which is the default collection.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options
        self.access = source_access(load_settings(overrides=options))
        self.connection = self.access.consumer.connection
        self.credentials = self.access.source.credentials()
        self.map = query_cluster(self.access).map
        self.prefix = f"dcplake-test-{token_hex(4)}-"
        self._open = ExitStack()
        self._nodes: dict[NodeAddress, KvConnection] = {}
        self._written: set[bytes] = set()

    @property
    def words(self) -> list[str]:
        """The options of a command."""
        return [
            word for name, value in self.options.items() for word in ("--set", f"{name}={value}")
        ]

    def key(self, name: str) -> bytes:
        return (self.prefix + name).encode()

    def keys_together(self, name: str, number: int) -> list[bytes]:
        """Return so many keys of one vbucket."""
        vbucket = self.vbucket(self.key(name))
        keys = (self.key(f"{name}-{each}") for each in count())
        return list(islice((key for key in keys if self.vbucket(key) == vbucket), number))

    def vbucket(self, key: bytes) -> int:
        return vbucket_of(key, self.map.vbucket_count)

    # --- KV commands

    def set(self, key: bytes, value: bytes, *, expiry: int = 0) -> int:
        """Store a document and return its CAS."""
        self._written.add(key)
        answer = self.call(key, m.Store(key, value, expiry=expiry), Opcode.SET)
        assert answer.status == Status.SUCCESS, answer
        return answer.cas

    def delete(self, key: bytes) -> None:
        answer = self.call(key, m.KeyOnly(key), Opcode.DELETE)
        assert answer.status == Status.SUCCESS, answer
        self._written.discard(key)

    def is_there(self, key: bytes) -> bool:
        answer = self.call(key, m.KeyOnly(key), Opcode.GET)
        assert answer.status in (Status.SUCCESS, Status.KEY_ENOENT), answer
        return answer.status == Status.SUCCESS

    def call(self, key: bytes, body: m.Body, opcode: Opcode) -> Frame:
        vbucket = self.vbucket(key)
        node = self.map.owner(vbucket)
        assert node is not None, f"vbucket {vbucket} has no node"
        if node not in self._nodes:
            signed = signed_in(str(node), self.connection, self.credentials, PATIENCE_SECONDS)
            self._nodes[node] = self._open.enter_context(signed)
        return self._nodes[node].call(encode(body, opcode, vbucket=vbucket))

    def close(self) -> None:
        """Delete what is left, and close the connections."""
        with self._open:
            for key in list(self._written):
                if self.is_there(key):
                    self.delete(key)

    # --- streams

    def now(self, *keys: bytes) -> list[StreamStart]:
        """Return streams of the keys' vbuckets from where they stand: none of what was before."""
        view = query_cluster(self.access)
        found = []
        for vbucket in {self.vbucket(key) for key in keys}:
            log, seqno = view.failover_logs[vbucket], view.high_seqnos[vbucket]
            position = Position.complete_at(log.current_uuid, seqno)
            found.append(StreamStart(vbucket, view.map.owner(vbucket), position))
        return found

    @contextmanager
    def streaming(self, starts: list[StreamStart], **connection: object) -> Iterator[Consumer]:
        changed = replace(self.connection, **connection)  # type: ignore[arg-type]  # settings by name
        consumer = replace(self.access.consumer, connection=changed)
        seeds = [str(node) for node in self.map.addresses]
        with Consumer(starts, seeds, consumer, self.credentials, "test", Random(5)) as opened:
            yield opened


def holds(vbucket: int, key: bytes, value: bytes | None) -> Callable[[Drained], bool]:
    """Return the condition that a key has a value (None: is gone) at a snapshot's end."""

    def reached(drained: Drained) -> bool:
        newest = max(drained.seqnos.get(vbucket, ()), default=0)
        found = drained.documents.get(vbucket, {}).get(key, (0, 0, None))[2]
        return newest > 0 and found == value and drained.complete.get(vbucket, 0) >= newest

    return reached

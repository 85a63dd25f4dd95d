"""A bucket of a cluster that may be anybody's: written over the network, keys of its own only."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import count, islice
from random import Random
from secrets import token_hex
from struct import pack
from typing import Final, NoReturn

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.consumer import Consumer
from dcp.client.kv.kv_connection import KvConnection, signed_in
from dcp.client.vbucket_track import StreamStart
from dcp.lake.config.settings_load import load_settings
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.events import Ready
from dcp.protocol.position import Position
from dcp.types import vbucket_of
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.leb128 import encode_leb128
from dcp.wire.vocabulary import Datatype, HelloFeature, Opcode, Status
from dcp.wire.xattr import join_xattrs
from tests.client.drained import PATIENCE_SECONDS, Drained
from tests.cluster.scopes import HttpScopes

FEATURES: Final = (
    HelloFeature.XATTR,
    HelloFeature.XERROR,
    HelloFeature.SELECT_BUCKET,
    HelloFeature.SNAPPY,
    HelloFeature.JSON,
    HelloFeature.COLLECTIONS,
)
SUBDOC_DICT_UPSERT: Final = 0xC8
XATTR_PATH: Final = 0x05
"""The path is that of an xattr, and is made where it is not (kv_engine ``PathFlag``)."""


class Bucket:
    """The bucket that settings name: the environment's, with ``options`` as ``--set`` has them.

    All keys, and scopes, begin with ``prefix``, which no other run has. What is left of them is
    deleted at the end. ``ours`` is the cluster where it is our own, None for any other.
    """

    def __init__(self, options: Mapping[str, str], ours: ProducerCluster | None) -> None:
        self.options = options
        self._ours = ours
        self.access = source_access(load_settings(overrides=options))
        self.connection = self.access.consumer.connection
        self.credentials = self.access.source.credentials()
        self.map = query_cluster(self.access).map
        self.prefix = f"dcplake-test-{token_hex(4)}-"
        self._open = ExitStack()
        self._nodes: dict[NodeAddress, KvConnection] = {}
        self._written: set[bytes] = set()
        self._scopes: set[str] = set()

    def skip(self, reason: str) -> NoReturn:
        """Skip what a cluster need not have, and ours has."""
        assert self._ours is None, reason
        pytest.skip(reason)

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

    def set(
        self, key: bytes, value: bytes, *, expiry: int = 0, datatype: int = 0, collection: int = 0
    ) -> int:
        """Store a document and return its CAS."""
        if not collection:  # the others go with their scopes
            self._written.add(key)
        body = m.Store(key, value, expiry=expiry)
        answer = self.call(key, body, Opcode.SET, datatype=datatype, collection=collection)
        assert answer.status == Status.SUCCESS, answer
        return answer.cas

    def set_with_xattrs(self, key: bytes, value: bytes, xattrs: Mapping[bytes, bytes]) -> None:
        """Store a document and its xattrs: one by one as sub-documents.

        Our producer, which has none, takes all in one value, as no other server does.
        """
        self.set(key, value)
        for name, content in xattrs.items():
            extras = pack(">HB", len(name), XATTR_PATH)
            body = m.Unknown(extras, key, name + content)
            answer = self.call(key, body, SUBDOC_DICT_UPSERT)
            if answer.status == Status.UNKNOWN_COMMAND and self._ours is not None:
                self.set(key, join_xattrs(xattrs.items(), value), datatype=Datatype.XATTR)
                return
            if answer.status == Status.EACCESS:
                self.skip(f"the user may not write the xattr {name.decode()}")
            assert answer.status == Status.SUCCESS, answer

    def delete(self, key: bytes) -> None:
        answer = self.call(key, m.KeyOnly(key), Opcode.DELETE)
        assert answer.status == Status.SUCCESS, answer
        self._written.discard(key)

    def is_there(self, key: bytes) -> bool:
        answer = self.call(key, m.KeyOnly(key), Opcode.GET)
        assert answer.status in (Status.SUCCESS, Status.KEY_ENOENT), answer
        return answer.status == Status.SUCCESS

    def call(
        self, key: bytes, body: m.Body, opcode: int, *, datatype: int = 0, collection: int = 0
    ) -> Frame:
        vbucket = self.vbucket(key)
        request = encode(body, opcode, vbucket=vbucket, datatype=datatype)
        request = request._replace(key=encode_leb128(collection) + key)
        return self.node(self.owner(vbucket)).call(request)

    def owner(self, vbucket: int) -> NodeAddress:
        node = self.map.owner(vbucket)
        assert node is not None, f"vbucket {vbucket} has no node"
        return node

    def node(self, node: NodeAddress) -> KvConnection:
        """Return the connection for all commands, whose keys begin with collection ids."""
        if node not in self._nodes:
            self._nodes[node] = self._open.enter_context(self.signed_in(node))
        return self._nodes[node]

    @contextmanager
    def signed_in(self, node: NodeAddress) -> Iterator[KvConnection]:
        """Give a connection of one's own."""
        signed = signed_in(str(node), self.connection, self.credentials, PATIENCE_SECONDS)
        with signed as connection:
            connection.call(encode(m.Hello(b"dcplake-test", FEATURES), Opcode.HELLO))
            yield connection

    @contextmanager
    def asking(
        self, vbucket: int, *, open_dcp: bool = False
    ) -> Iterator[tuple[NodeConnection, Ready]]:
        """Give a consumer's connection to a vbucket's node."""
        owner, name = self.owner(vbucket), f"{self.prefix}asks"
        asked = NodeConnection(owner, self.connection, self.credentials, name, open_dcp=open_dcp)
        ready = asked.open()
        with closing(asked):
            yield asked, ready

    def release(self) -> tuple[int, ...]:
        """Return the major and minor version of the nodes."""
        answer = self.node(self.map.addresses[0]).call(encode(m.Empty(), Opcode.VERSION))
        return tuple(int(part) for part in answer.value.split(b".")[:2])

    def close(self) -> None:
        """Delete what is left, and close the connections."""
        with self._open:
            for key in list(self._written):
                if self.is_there(key):
                    self.delete(key)
            for scope in list(self._scopes):
                self.drop_scope(scope)

    # --- scopes and collections

    @cached_property
    def scopes(self) -> ProducerCluster | HttpScopes:
        if self._ours is not None:
            return self._ours
        node = self.map.addresses[0]
        config = json.loads(self.node(node).cluster_config())
        [services] = [each["services"] for each in config["nodesExt"] if each.get("thisNode")]
        port = services["mgmt" if self.connection.tls is None else "mgmtSSL"]
        return HttpScopes(NodeAddress(node.host, port), self.connection, self.credentials)

    def create_scope(self, name: str) -> str:
        """Return the name with the prefix."""
        self.scopes.create_scope(self.prefix + name)
        self._scopes.add(self.prefix + name)
        return self.prefix + name

    def drop_scope(self, scope: str) -> None:
        self.scopes.drop_scope(scope)
        self._scopes.discard(scope)

    # --- streams

    def now(self, *keys: bytes) -> list[StreamStart]:
        """Return streams of the keys' vbuckets from where they stand: none of what was before."""
        probed = query_cluster(self.access)
        found = []
        for vbucket in {self.vbucket(key) for key in keys}:
            log, seqno = probed.failover_logs[vbucket], probed.high_seqnos[vbucket]
            position = Position.complete_at(log.current_uuid, seqno)
            found.append(StreamStart(vbucket, probed.map.owner(vbucket), position))
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

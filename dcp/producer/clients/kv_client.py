"""A small KV client that loads and changes documents: cluster map and pipelining, nothing else.

Requests are sent to the nodes that hold their vbuckets, many before the first answer is read. A
vbucket that has moved (NOT_MY_VBUCKET) is looked up again; temporary refusals are tried again.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Self

from dcp.errors import (
    DcplakeError,
    NodeUnavailableError,
    RemoteProtocolError,
    SourceError,
)
from dcp.producer.clients.kv_connection import KvConnection
from dcp.protocol.credentials import Secret
from dcp.protocol.refusals import describe_refusal, raise_refusal
from dcp.protocol.responses import opcode_name
from dcp.seeds import parse_seed
from dcp.types import vbucket_of
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.json_tree import json_tree
from dcp.wire.leb128 import encode_leb128
from dcp.wire.vocabulary import Opcode, Status

BATCH_REQUESTS: Final = 512
BATCH_BYTES: Final = 8 * 1024 * 1024
_TRIES: Final = 8
_AGAIN: Final = frozenset(
    {
        Status.NOT_MY_VBUCKET,
        Status.ETMPFAIL,
        Status.EBUSY,
        Status.ENOMEM,
        Status.SYNC_WRITE_IN_PROGRESS,
        Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS,
    }
)
_FOUND: Final = frozenset({Status.SUCCESS})
_FOUND_OR_NOT: Final = frozenset({Status.SUCCESS, Status.KEY_ENOENT})


class Request(NamedTuple):
    """One command on one document; its vbucket is looked up when it is sent."""

    key: bytes
    body: m.Body
    opcode: Opcode

    @property
    def payload_bytes(self) -> int:
        """The length of the document in the request."""
        return len(self.body.value) if isinstance(self.body, m.Store) else 0


class KvClient:
    """KV commands on many documents at once. Not for several threads."""

    def __init__(
        self,
        seeds: Sequence[str],
        user: str,
        password: str,
        bucket: str,
        timeout_seconds: float = 30.0,
        *,
        collection: str = "",
    ) -> None:
        """Connect to the first seed that answers, and learn the cluster map from it.

        ``collection`` is the path ``scope.collection`` of all documents; empty is the default one.

        Raises:
            ConfigError: a seed is no ``host:port``.
            NodeUnavailableError: no seed can be reached.
            AuthenticationError: user or password refused.
            BucketError: no such bucket or collection, or no access to it.
        """
        self._user, self._password, self._bucket = user, Secret(password), bucket
        self._timeout_seconds = timeout_seconds
        self._connections: dict[tuple[str, int], KvConnection] = {}
        self._owners: list[tuple[str, int]] = []
        self._collection = collection
        self._key_prefix = b""
        self._seeds = [parse_seed(seed) for seed in seeds]
        self._learn_map()
        if collection:
            self._learn_prefix()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def set(
        self, documents: Iterable[tuple[bytes, bytes]], *, expiry: int = 0, flags: int = 0
    ) -> int:
        """Store (key, value) pairs; return how many."""
        requests = (
            Request(key, m.Store(key, value, flags, expiry), Opcode.SET) for key, value in documents
        )
        return sum(1 for _ in self._run(requests, _FOUND))

    def delete(self, keys: Iterable[bytes]) -> int:
        """Delete documents; return how many there were."""
        return self._count(Request(key, m.KeyOnly(key), Opcode.DELETE) for key in keys)

    def touch(self, keys: Iterable[bytes], expiry: int) -> int:
        """Give documents a new expiry; return how many there were."""
        return self._count(Request(key, m.Touch(key, expiry), Opcode.TOUCH) for key in keys)

    def get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of the documents that exist."""
        requests = (Request(key, m.KeyOnly(key), Opcode.GET) for key in keys)
        answers = self._run(requests, _FOUND_OR_NOT)
        return {key: answer.value for key, answer in answers if answer.status == Status.SUCCESS}

    def _count(self, requests: Iterable[Request]) -> int:
        answers = self._run(requests, _FOUND_OR_NOT)
        return sum(answer.status == Status.SUCCESS for _, answer in answers)

    def _run(
        self, requests: Iterable[Request], expected: frozenset[Status]
    ) -> Iterator[tuple[bytes, Frame]]:
        for batch in _batches(requests):
            for key, answer in self._run_batch(batch):
                if answer.status not in expected:
                    names = " or ".join(status.name for status in sorted(expected))
                    raise SourceError(
                        f"{opcode_name(answer.opcode)} of {key!r}: found "
                        f"{describe_refusal(answer)}, expected {names}"
                    )
                yield key, answer

    def _run_batch(self, batch: Sequence[Request]) -> list[tuple[bytes, Frame]]:
        done: list[tuple[bytes, Frame]] = []
        for attempt in range(_TRIES):
            answers = self._exchange(batch)
            done += [(request.key, a) for request, a in answers if a.status not in _AGAIN]
            batch = [request for request, a in answers if a.status in _AGAIN]
            if not batch:
                return done
            time.sleep(0.05 * attempt)
            self._learn_map()
        raise SourceError(
            f"KV commands on {len(batch)} keys (first {batch[0].key!r}): refused {_TRIES} times"
        )

    def _exchange(self, batch: Sequence[Request]) -> list[tuple[Request, Frame]]:
        """Send a batch to its nodes and return each request with its answer, in order of keys."""
        by_node: defaultdict[tuple[str, int], list[tuple[int, Frame]]] = defaultdict(list)
        for index, request in enumerate(batch):
            vbucket = vbucket_of(request.key, len(self._owners))
            frame = encode(request.body, request.opcode, vbucket=vbucket)
            if self._key_prefix:
                frame = replace(frame, key=self._key_prefix + frame.key)
            by_node[self._owners[vbucket]].append((index, frame))
        for address, frames in by_node.items():
            self._connection(address).send([frame for _, frame in frames])
        answers: dict[int, Frame] = {}
        for address, frames in by_node.items():
            received = self._connection(address).receive(len(frames))
            answers.update(zip((index for index, _ in frames), received, strict=True))
        return [(request, answers[index]) for index, request in enumerate(batch)]

    def _connection(self, address: tuple[str, int]) -> KvConnection:
        if address not in self._connections:
            connection = KvConnection(*address, self._timeout_seconds)
            try:
                connection.log_in(
                    self._user,
                    self._password.reveal(),
                    self._bucket,
                    collections=bool(self._collection),
                )
            except DcplakeError:
                connection.close()
                raise
            self._connections[address] = connection
        return self._connections[address]

    def _learn_prefix(self) -> None:
        connection = next(iter(self._connections.values()))
        try:
            self._key_prefix = encode_leb128(connection.collection_id(self._collection))
        except DcplakeError:
            self.close()
            raise

    def _learn_map(self) -> None:
        """Ask the seeds for the map, then the nodes of the newest one."""
        failures: list[SourceError] = []
        for address in dict.fromkeys([*self._seeds, *self._owners]):
            try:
                config = self._connection(address).cluster_config()
            except SourceError as error:
                failures.append(error)
                broken = self._connections.pop(address, None)
                if broken is not None:
                    broken.close()
            else:
                self._owners = _owners(config, address[0])
                return
        raise_refusal(failures)
        told = "; ".join(map(str, failures)) or "no seeds"
        raise NodeUnavailableError(f"no KV node answers: {told}")


def _batches(requests: Iterable[Request]) -> Iterator[list[Request]]:
    batch: list[Request] = []
    payload_bytes = 0
    for request in requests:
        batch.append(request)
        payload_bytes += request.payload_bytes
        if len(batch) == BATCH_REQUESTS or payload_bytes >= BATCH_BYTES:
            yield batch
            batch, payload_bytes = [], 0
    if batch:
        yield batch


def _owners(config: bytes, seed_host: str) -> list[tuple[str, int]]:
    """Return the address of each vbucket's node from the cluster map."""
    try:
        tree = json_tree(config)
        nodes: Sequence[Mapping[str, object]] = tree["nodesExt"]
        addresses = []
        for node in nodes:
            services = node["services"]
            if not isinstance(services, Mapping):
                raise TypeError("services is no object")
            addresses.append((str(node.get("hostname", seed_host)), int(services["kv"])))
        return [addresses[row[0]] for row in tree["vBucketServerMap"]["vBucketMap"]]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise RemoteProtocolError(f"cluster map: malformed: {error!r}") from error

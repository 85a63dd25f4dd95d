"""A small KV client that loads and changes documents, with a cluster map and pipelining."""

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Self

from dcp.client.kv.kv_connection import KvConnection
from dcp.errors import (
    DcplakeError,
    NodeUnavailableError,
    RemoteProtocolError,
    SourceError,
)
from dcp.protocol.credentials import Secret
from dcp.protocol.refusals import describe_refusal, raise_refusal
from dcp.seeds import parse_seed
from dcp.types import vbucket_of
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.json_tree import json_tree
from dcp.wire.leb128 import encode_leb128
from dcp.wire.vocabulary import Opcode, Status, opcode_name

BATCH_REQUESTS: Final = 1024
BATCH_BYTES: Final = 8 * 1024 * 1024
BATCHES_AHEAD: Final = 2
"""Batches of writes that may be unanswered: so client and nodes work at the same time."""
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
    """One command on one document."""

    key: bytes
    body: m.Body
    opcode: Opcode

    @property
    def payload_bytes(self) -> int:
        return len(self.body.value) if isinstance(self.body, m.Store) else 0


_Batch = dict[bytes, Request]
"""Requests by key, in their order."""
_Sent = tuple[_Batch, Mapping[tuple[str, int], Sequence[int]]]
"""A batch that was sent, and the requests that each node got: indices in the batch, in order."""
_Answered = tuple[Request, Frame]


class KvClient:
    """KV commands on many documents at once. Use it in one thread.

    It looks up the map again for a vbucket that has moved, and repeats temporary refusals.
    """

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
        """Connect to the first seed that answers, and take the cluster map from it.

        ``collection`` is the path ``scope.collection`` of all documents; empty: the default
        collection.

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
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def set(
        self, documents: Iterable[tuple[bytes, bytes]], *, expiry: int = 0, flags: int = 0
    ) -> int:
        requests = (
            Request(key, m.Store(key, value, flags, expiry), Opcode.SET) for key, value in documents
        )
        return sum(1 for _ in self._run(requests, _FOUND, BATCHES_AHEAD))

    def delete(self, keys: Iterable[bytes]) -> int:
        """Delete documents; return how many existed."""
        return self._count(Request(key, m.KeyOnly(key), Opcode.DELETE) for key in keys)

    def touch(self, keys: Iterable[bytes], expiry: int) -> int:
        """Give documents a new expiry; return how many existed."""
        return self._count(Request(key, m.Touch(key, expiry), Opcode.TOUCH) for key in keys)

    def get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of the documents that exist."""
        requests = (Request(key, m.KeyOnly(key), Opcode.GET) for key in keys)
        answers = self._run(requests, _FOUND_OR_NOT, 1)
        return {key: answer.value for key, answer in answers if answer.status == Status.SUCCESS}

    def _count(self, requests: Iterable[Request]) -> int:
        answers = self._run(requests, _FOUND_OR_NOT, BATCHES_AHEAD)
        return sum(answer.status == Status.SUCCESS for _, answer in answers)

    def _run(
        self, requests: Iterable[Request], expected: frozenset[Status], most_ahead: int
    ) -> Iterator[tuple[bytes, Frame]]:
        """Yield each request's key and answer, with up to ``most_ahead`` unanswered batches.

        If ``requests`` raises, the earlier requests are sent and answered first.
        """
        under_way: deque[_Sent] = deque()
        is_finished = False
        try:
            for batch in _batches(requests):
                # No two unanswered requests share a key: otherwise a repeated one could overwrite a
                # newer write.
                while under_way and (
                    not batch
                    or len(under_way) >= most_ahead
                    or any(not batch.keys().isdisjoint(sent) for sent, _ in under_way)
                ):
                    yield from _checked(self._answers(under_way), expected)
                if batch:
                    under_way.append(self._send(batch))
            is_finished = True
        finally:
            if not is_finished:  # unread answers would go to the next command
                self.close()

    def _answers(self, under_way: deque[_Sent]) -> list[_Answered]:
        """Return the answers to the oldest batch, or to all if a request must be repeated."""
        answers = self._receive(under_way.popleft())
        if not any(answer.status in _AGAIN for _, answer in answers):
            return answers
        while under_way:
            answers += self._receive(under_way.popleft())
        done: list[_Answered] = []
        refused: list[Request] = []
        for tried in range(1, _TRIES + 1):
            done += [each for each in answers if each[1].status not in _AGAIN]
            refused = [request for request, answer in answers if answer.status in _AGAIN]
            if not refused:
                return done
            if tried < _TRIES:
                # The first repetition only needs the new map.
                time.sleep(0.05 * (tried - 1))
                self._learn_map()
                again = filter(None, _batches(refused))
                answers = [each for batch in again for each in self._receive(self._send(batch))]
        raise SourceError(
            f"KV commands on {len(refused)} keys (first {refused[0].key!r}): refused {_TRIES} times"
        )

    def _send(self, batch: _Batch) -> _Sent:
        frames: defaultdict[tuple[str, int], list[Frame]] = defaultdict(list)
        indices: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for index, request in enumerate(batch.values()):
            vbucket = vbucket_of(request.key, len(self._owners))
            frame = encode(request.body, request.opcode, vbucket=vbucket)
            if self._key_prefix:
                frame = frame._replace(key=self._key_prefix + frame.key)
            address = self._owners[vbucket]
            frames[address].append(frame)
            indices[address].append(index)
        # One write per node for the whole batch.
        for address, of_node in frames.items():
            self._connection(address).send(of_node)
        return batch, indices

    def _receive(self, sent: _Sent) -> list[_Answered]:
        batch, of_nodes = sent
        answers: dict[int, Frame] = {}
        for address, indices in of_nodes.items():
            received = self._connection(address).receive(len(indices))
            answers.update(zip(indices, received, strict=True))
        return [(request, answers[index]) for index, request in enumerate(batch.values())]

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
        failures: list[SourceError] = []
        # Each address once, seeds first.
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
        reasons = "; ".join(map(str, failures)) or "no seeds"
        raise NodeUnavailableError(f"no KV node answers: {reasons}")


def _batches(requests: Iterable[Request]) -> Iterator[_Batch]:
    """Yield requests in batches without repeated keys, then an empty batch.

    If ``requests`` raises, the begun batch and the empty one come first.
    """
    batch: _Batch = {}
    payload_bytes = 0
    try:
        for request in requests:
            if request.key in batch:
                yield batch
                batch, payload_bytes = {}, 0
            batch[request.key] = request
            payload_bytes += request.payload_bytes
            if len(batch) == BATCH_REQUESTS or payload_bytes >= BATCH_BYTES:
                yield batch
                batch, payload_bytes = {}, 0
    except Exception:
        yield batch
        yield {}
        raise
    yield batch
    yield {}


def _checked(
    answers: Iterable[_Answered], expected: frozenset[Status]
) -> Iterator[tuple[bytes, Frame]]:
    for request, answer in answers:
        if answer.status not in expected:
            names = " or ".join(status.name for status in sorted(expected))
            raise SourceError(
                f"{opcode_name(answer.opcode)} of {request.key!r}: found "
                f"{describe_refusal(answer)}, expected {names}"
            )
        yield request.key, answer


def _owners(config: bytes, seed_host: str) -> list[tuple[str, int]]:
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

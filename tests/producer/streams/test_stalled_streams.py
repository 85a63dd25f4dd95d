"""Streams that wait in the middle of a snapshot from memory: what they hold is in checkpoints.

So it is counted, and when it goes the stream goes on from disk; against a naive model.
"""

import gc
from dataclasses import dataclass, field
from random import Random

import pytest

from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.document_writer import DocumentWriter, checked
from dcp.server.checkpoints.checkpoint_memory import recover
from dcp.server.model.manifest import FIRST
from dcp.server.model.resume_rules import Verdict
from dcp.server.model.stream_filter import EVERYTHING, LEGACY, FilterKind, StreamFilter
from dcp.server.model.versions import Flavour, Version
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.dcp_options import StreamSettings
from dcp.server.vbucket.documents import DocumentStore
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.framing import FrameSplitter
from dcp.wire.system_event import CollectionBegun
from dcp.wire.vocabulary import SnapshotFlag, Status
from tests.seeds import seeds

OTHER = 8
FILTERS = {
    "everything": (EVERYTHING, {0, OTHER}),
    "default": (StreamFilter(FilterKind.COLLECTIONS, frozenset({0})), {0}),
    "scope": (StreamFilter(FilterKind.SCOPE, frozenset({0}), 0), {0, OTHER}),
    "legacy": (LEGACY, {0}),
}
Key = tuple[int, bytes]


def _begun_vbucket(checkpoint_items: int) -> DocumentWriter:
    """Seqno 1 is a document, 2 the beginning of another collection of the default scope."""
    settings = ClusterSettings(checkpoint_items=checkpoint_items)
    data = VbucketData(0, MemoryFile(), settings)
    store = DocumentWriter(DocumentStore(data))
    store.store(b"first", checked(b"{}"), 1.0)
    begun = CollectionBegun(1, 0, OTHER, b"other", None)
    store.documents.emit([(begun, FIRST.after(begun))])
    store.data.flush_batch()
    return store


def _stream(data: VbucketData, wanted: StreamFilter, name: str = "one") -> ActiveStream:
    flavour = 0 if wanted.kind is FilterKind.LEGACY else int(Flavour.COLLECTIONS)
    verdict = Verdict(Status.SUCCESS, None, 0, END_OF_TIME, 0)
    return ActiveStream(data, 7, verdict, 0, StreamSettings(flavour, cursor=name), wanted)


@dataclass
class Client:
    """Takes one message at a time, and knows what it holds; ``lossy``: since compaction."""

    stream: ActiveStream
    collections: set[int]
    marker: m.SnapshotMarker = field(default_factory=lambda: m.SnapshotMarker(0, 0, 0))
    at: int = 0
    holds: dict[Key, int] = field(default_factory=dict)
    is_lossy: bool = False

    def take(self, most_items: int = 1) -> bool:
        batch = self.stream.next_batch(1_000_000, 1_000_000, most_items)
        if batch is None:
            return False
        block = FrameSplitter().feed(bytes(batch.data))
        for index in range(len(block)):
            self._take(decode(block.frame(index)))
        return True

    def _take(self, body: m.Body) -> None:
        match body:
            case m.SnapshotMarker():
                if self.at < self.marker.end:
                    assert self.is_lossy
                    assert body.flags & SnapshotFlag.DISK
                    assert body.start <= self.marker.start
                assert body.end > self.at
                self.marker = body
            case m.SeqnoAdvanced(seqno):
                self._reach(seqno)
            case m.SystemEvent():
                self._reach(body.by_seqno)
            case m.Mutation() | m.Deletion():
                self._reach(body.by_seqno)
                key = self._key_of(body.key)
                self.holds.pop(key, None)
                if isinstance(body, m.Mutation):
                    self.holds[key] = body.by_seqno
            case _:
                raise AssertionError(body)

    def _key_of(self, key: bytes) -> Key:
        return (0, key) if key[0] not in (0, OTHER) else (key[0], key[1:])  # with a prefix or not

    def _reach(self, seqno: int) -> None:
        assert max(self.at + 1, self.marker.start) <= seqno <= self.marker.end
        self.at = seqno

    def check(self, history: list[tuple[int, Key, bool]]) -> bool:
        """At the end of a snapshot it holds what there was then."""
        if self.at < self.marker.end:
            return False
        held: dict[Key, int] = {}
        for seqno, key, is_deletion in history:
            if seqno <= self.at and key[0] in self.collections:
                held.pop(key, None)
                if not is_deletion:
                    held[key] = seqno
        assert self.holds == held
        return True


@pytest.mark.parametrize("name", list(FILTERS))
@pytest.mark.parametrize("seed", seeds(25))
def test_whatever_becomes_of_memory(name: str, seed: int) -> None:
    """Each snapshot is a state that there was, to its end, unless compaction took a part of it."""
    random = Random(seed)
    store = _begun_vbucket(random.choice([2, 5, 1000]))
    data = store.data
    wanted, collections = FILTERS[name]
    client = Client(_stream(data, wanted), collections)
    history: list[tuple[int, Key, bool]] = [(1, (0, b"first"), False)]
    weights = [8, 8, random.choice([0, 1, 4]), random.choice([0, 1])]
    for step in random.choices(["write", "take", "drop", "compact"], weights, k=150):
        print(step)
        if step == "write":
            for _ in range(random.randint(1, 6)):
                collection, key = random.choice([0, 0, OTHER]), random.choice([b"a", b"b", b"c"])
                existing = data.newest.of_key(key, collection)
                if existing is not None and existing.is_mutation and random.random() < 0.3:
                    version = store.delete(key, 1.0, collection=collection)
                else:
                    version = store.store(key, checked(b"{}"), 1.0, collection=collection)
                history.append((version.seqno, (collection, key), version.is_deleted))
            data.flush_batch()
        elif step == "take":
            client.take(random.randint(1, 3))
            client.check(history)
        elif step == "drop":
            if client.stream.cursor in recover([data.checkpoints], 1).dropped.get(0, ()):
                client.stream.cursor_dropped()
        else:
            data.persistence.purge(0)
            client.is_lossy = True
    while client.take(3):
        client.check(history)
    assert client.check(history)
    assert client.at >= max(seqno for seqno, key, _ in history if key[0] in collections)


def test_what_stalled_streams_wait_for_is_counted() -> None:
    """40 of them, each at another checkpoint: no version is alive that checkpoints do not count."""
    store = _begun_vbucket(1000)
    data = store.data
    streams: list[ActiveStream] = []
    value = b"x" * 10_000
    for number in range(40):
        for key in range(5):
            store.store(b"k%d" % key, checked(value), 1.0)
        data.flush_batch()
        streams.append(_stream(data, EVERYTHING, f"client {number}"))
        while (batch := streams[-1].next_batch(1, 1, 1)) is not None and len(batch.seqnos) < 1:
            pass
    newest = {id(each) for each in data.newest.versions}
    alive = [each for each in gc.get_objects() if type(each) is Version and each.value == value]
    older_bytes = sum(each.size_bytes for each in alive if id(each) not in newest)
    assert older_bytes <= data.checkpoints.memory_bytes
    dropped = recover([data.checkpoints], 1).dropped[0]
    for stream in streams:
        if stream.cursor in dropped:
            stream.cursor_dropped()
    del alive
    alive = [each for each in gc.get_objects() if type(each) is Version and each.value == value]
    older_bytes = sum(each.size_bytes for each in alive if id(each) not in newest)
    assert older_bytes <= data.checkpoints.memory_bytes < 5 * 12_000
    del alive
    for stream in streams:
        client = Client(stream, {0, OTHER})
        client.marker, client.at = m.SnapshotMarker(0, 2**63, 0), 0
        while (batch := stream.next_batch(1_000_000, 1_000_000, 1000)) is not None:
            assert batch.data
        assert stream.sent_seqno == data.high_seqno

"""The rest of a dropped or flushed collection on disk, against a naive list of all versions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.versions import Content, Version
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.storage.disk_scan import Scan
from dcp.server.storage.stored_items import versions_of
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire import messages as m
from dcp.wire.system_event import CollectionFlushed
from dcp.wire.vocabulary import Opcode, StreamFlag
from tests.producer.disk_items import read_all
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
Step = tuple[Any, ...]
"""The name of a method of Driven, and its arguments."""
KEYS = tuple(b"k%d" % number for number in range(4))
COLLECTIONS = (0, 8)


@dataclass
class Model:
    """Every item there ever was on this branch, and to which seqnos there is no way back."""

    items: list[Version] = field(default_factory=list)
    compacted: set[int] = field(default_factory=set)

    def end_of(self, item: Version, up_to: int) -> int | None:
        """The seqno of what made an end of an item, if that came up to a seqno."""
        for later in self.items[item.seqno : up_to]:
            is_same = (later.collection, later.key) == (item.collection, item.key)
            if is_same or (later.event and not item.event and later.collection == item.collection):
                return later.seqno
        return None

    def held(self, seqno: int) -> list[int]:
        return [item.seqno for item in self.items[:seqno] if self.end_of(item, seqno) is None]

    def compact(self, persisted: int) -> None:
        for item in self.items[:persisted]:
            end = self.end_of(item, persisted)
            self.compacted |= set() if end is None else set(range(item.seqno, end))

    def cut(self, seqno: int) -> int:
        left = 0 if seqno in self.compacted else seqno
        self.items = self.items[:left]
        self.compacted = {each for each in self.compacted if each <= left} if left else set()
        return left


class Driven:
    """The data of a vbucket, and its model; scans on the way must show what they began with."""

    def __init__(self) -> None:
        self.file, self.model = MemoryFile(), Model()
        self.data = self._open()
        self.scans: list[tuple[Scan, list[int]]] = []

    def _open(self) -> VbucketData:
        return VbucketData(0, self.file, ClusterSettings(), writes_behind=True)

    def write(self, what: str, collection: int, key: bytes) -> None:
        seqno = self.data.high_seqno + 1
        if what == "flush":
            version = Version.of_event(0, CollectionFlushed(1, collection), seqno=seqno)
        else:
            opcode = Opcode.DCP_MUTATION if what == "set" else Opcode.DCP_DELETION
            content = Content(b"%d" % seqno, opcode=int(opcode))
            version = Version(0, key, content, seqno=seqno, rev=1, cas=seqno, collection=collection)
        self.data.append(version)
        self.model.items.append(version)

    def flush_batch(self) -> None:
        self.data.flush_batch()

    def to_disk(self) -> None:
        self.data.flush_batch()
        self.data.persistence.flush()

    def compact(self) -> None:
        stale = self.model.compacted.copy()
        self.data.persistence.purge(0)
        self.model.compact(self.data.disk.persisted_seqno)
        event(f"compaction dropped something: {self.model.compacted != stale}")

    def scan(self) -> None:
        self.scans.append((self.data.disk.scan(0), self.model.held(self.data.disk.persisted_seqno)))

    def cut(self, back: int) -> None:
        self.data.flush_batch()
        wanted = self.data.disk.batch_end_at(max(self.data.high_seqno - back, 0))
        left = self.model.cut(wanted)
        event("cut to 0" if wanted and not left else "cut")
        assert self.data.cut(wanted) == left

    def reopen(self) -> None:
        self.to_disk()
        self.data.close()
        self.data = self._open()
        self.data.reopen(0)

    def check(self) -> None:
        model, persisted = self.model, self.data.disk.persisted_seqno
        assert self.data.high_seqno == len(model.items)
        with self.data.disk.scan(0) as scan:
            assert _seqnos(scan) == model.held(persisted)
        held = set(model.held(len(model.items)))
        current = [v for v in model.items if v.seqno in held and v.is_mutation]
        counts = {c: sum(v.collection == c for v in current) for c in COLLECTIONS}
        assert self.data.newest.document_counts() == {
            c: count for c, count in counts.items() if count
        }
        for collection in COLLECTIONS:
            for key in KEYS:
                newest = self.data.newest.of_key(key, collection)
                expected = [v.seqno for v in model.items if v.seqno in held and v.key == key]
                expected = [s for s in expected if model.items[s - 1].collection == collection]
                assert ([] if newest is None else [newest.seqno]) == expected

    def finish(self) -> None:
        for scan, shown in self.scans:
            assert [seqno for seqno, _ in read_all(scan)] == shown
        self.to_disk()
        before = self.model.held(len(self.model.items))
        self.compact()
        with self.data.disk.scan(0) as scan:
            frames = scan.read(1 << 30)
            versions = [] if frames is None else versions_of(frames)
        assert [version.seqno for version in versions] == before
        assert [v.value for v in versions] == [self.model.items[s - 1].value for s in before]


def _seqnos(scan: Scan) -> list[int]:
    return [seqno for seqno, _ in read_all(scan)]


_SET: Step = ("write", "set", 0, KEYS[0])
_FLUSH: Step = ("write", "flush", 0, KEYS[0])
writes = st.tuples(
    st.just("write"),
    st.sampled_from(["set", "set", "delete", "flush"]),
    st.sampled_from(COLLECTIONS),
    st.sampled_from(KEYS),
)
steps = st.lists(
    st.one_of(
        writes,
        writes,
        st.tuples(st.sampled_from(["flush_batch", "to_disk", "compact", "scan", "reopen"])),
        st.tuples(st.just("cut"), st.integers(0, 6)),
    ),
    max_size=30,
)


@example([_SET, ("flush_batch",), _FLUSH, ("to_disk",), ("cut", 1)])
@example([_SET, ("to_disk",), _FLUSH, _SET, _FLUSH, ("flush_batch",), _SET, ("to_disk",)])
@example([_SET, ("to_disk",), _FLUSH, ("to_disk",), ("compact",), ("cut", 1)])
@given(steps)
def test_the_disk_shows_what_collections_hold(steps: list[Step]) -> None:
    driven = Driven()
    for name, *arguments in steps:
        getattr(driven, name)(*arguments)
        driven.check()
    driven.finish()


@pytest.mark.parametrize("goes", ["drop", "flush"])
def test_compaction_drops_what_a_collection_left(
    cluster: ProducerCluster, connect: Connect, goes: str
) -> None:
    """The file is as small as if it had never been; a stream is told of the event alone."""
    number = cluster.create_collection("", "a")
    data = cluster.bucket.vbuckets[0].data
    cluster.purge_tombstones(0, 0)
    empty_bytes = data.disk.size_bytes
    for key in range(100):
        cluster.set(b"k%d" % key, b"v" * 100, collection=number)
    if goes == "drop":
        cluster.drop_collection("", "a")
    else:
        cluster.flush_collection("", "a")
    assert data.disk.size_bytes > empty_bytes + 100 * 100
    cluster.purge_tombstones(0, 0)
    assert data.disk.size_bytes < empty_bytes + 100
    client = connect(cluster).log_in().open_dcp()
    client.request_stream(0, flags=int(StreamFlag.DISK_ONLY))
    messages = client.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert [type(each) for each in messages] == [m.SnapshotMarker, m.SystemEvent, m.StreamEnd]

"""Streams from disk and memory against a naive model, for arbitrary writes."""

from dataclasses import dataclass
from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.document_writer import DocumentWriter, checked
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.resume_rules import Verdict
from dcp.server.model.stream_filter import EVERYTHING
from dcp.server.model.versions import Flavour
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.streams.active_stream import ActiveStream, ActiveStreamPhase
from dcp.server.streams.dcp_options import StreamSettings
from dcp.server.streams.snapshots import DiskItems
from dcp.server.vbucket.documents import DocumentStore
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Status

KEYS = [b"a", b"b", b"c", b"d", b"e"]
Write = tuple[bytes, bool]
writes = st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=40)
FLAVOUR = int(Flavour.COLLECTIONS)


@dataclass
class Model:
    """What happened, as (seqno, key, is a deletion), and nothing clever."""

    events: list[tuple[int, bytes, bool]]

    def state(self, seqno: int) -> dict[bytes, int]:
        held: dict[bytes, int] = {}
        for at, key, deleted in self.events:
            if at <= seqno:
                held.pop(key, None)
                if not deleted:
                    held[key] = at
        return held

    def snapshot(self, after: int, end: int) -> list[int]:
        newest = {key: at for at, key, _ in self.events if after < at <= end}
        return sorted(newest.values())


def _built(
    base: int, steps: list[Write], checkpoint_items: int = 1000
) -> tuple[DocumentWriter, Model]:
    settings = ClusterSettings(checkpoint_items=checkpoint_items)
    data = VbucketData(0, MemoryFile(), settings, base_seqno=base)
    model = Model([])
    store = DocumentWriter(DocumentStore(data))
    for key, deleted in steps:
        _write(store, model, key, deleted)
    data.flush_batch()
    return store, model


def _disk_items(store: DocumentWriter, after: int) -> DiskItems:
    scan = store.data.disk.scan(after)
    return DiskItems(scan, FLAVOUR, EVERYTHING)


def _write(store: DocumentWriter, model: Model, key: bytes, deleted: bool) -> None:
    try:
        version = store.delete(key, 1.0) if deleted else store.store(key, checked(b"{}"), 1.0)
    except RefusedError as error:
        assert error.status is Status.KEY_ENOENT
        assert deleted
        assert key not in model.state(END_OF_TIME)
    else:
        model.events.append((version.seqno, key, deleted))


@given(st.sampled_from([0, 7, 2**63]), writes, st.data())
def test_a_disk_snapshot_holds_each_key_once(
    base: int, steps: list[Write], data: st.DataObject
) -> None:
    store, model = _built(base, steps)
    high = store.data.high_seqno
    after = data.draw(st.integers(base, high))
    disk_items = _disk_items(store, after)
    seqnos: list[int] = []
    while (chunk := disk_items.next_chunk(data.draw(st.integers(1, 300)))) is not None:
        while not chunk.is_empty:
            taken = chunk.take(1, 2**40, 2**40, opaque=0xABCD1234)
            block = FrameSplitter().feed(bytes(taken.data))
            assert [block.frame(i).opaque for i in range(len(block))] == [0xABCD1234]
            body = decode(block.frame(0))
            assert isinstance(body, m.Mutation | m.Deletion)
            assert [body.by_seqno] == taken.seqnos.tolist()
            seqnos.append(body.by_seqno)
    disk_items.close()
    assert seqnos == model.snapshot(after, high)


turns = st.lists(
    st.tuples(st.booleans(), st.integers(1, 500), st.integers(1, 5)), min_size=1, max_size=20
)


@given(writes, turns, st.sampled_from([1, 5, 1000]))
def test_a_stream_leads_from_state_to_state(
    steps: list[Write], schedule: list[tuple[bool, int, int]], checkpoint_items: int
) -> None:
    """Writes go on while it streams; at every snapshot end the client has the state at that end."""
    store, model = _built(0, steps[: len(steps) // 2], checkpoint_items)
    later = steps[len(steps) // 2 :]
    stream = ActiveStream(store.data, 9, Verdict(Status.SUCCESS), 0, StreamSettings(FLAVOUR))
    held: dict[bytes, int] = {}
    last, marker, seen = 0, m.SnapshotMarker(0, 0, 0), set[bytes]()
    for writes_now, room, most_items in cycle(schedule):
        if later and writes_now:
            _write(store, model, *later.pop(0))
            store.data.flush_batch()
        batch = stream.next_batch(room, 2**40, most_items)
        if batch is None:
            if not later:
                break
            _write(store, model, *later.pop(0))
            store.data.flush_batch()
            continue
        block = FrameSplitter().feed(bytes(batch.data))
        for index in range(len(block)):
            body = decode(block.frame(index))
            if isinstance(body, m.SnapshotMarker):
                assert last == marker.end
                assert marker.end < body.end
                marker, seen = body, set()
                continue
            assert isinstance(body, m.Mutation | m.Deletion)
            assert last < body.by_seqno <= marker.end
            assert marker.start <= body.by_seqno
            key = body.key.removeprefix(b"\0")
            assert key not in seen
            seen.add(key)
            last = body.by_seqno
            held.pop(key, None)
            if isinstance(body, m.Mutation):
                held[key] = last
        if last == marker.end:
            assert held == model.state(last)
            assert not stream.is_inside_snapshot
    assert last == store.data.high_seqno
    assert stream.phase is ActiveStreamPhase.IN_MEMORY


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.data())
def test_batches_keep_to_the_window_message_by_message(
    sizes: list[int], data: st.DataObject
) -> None:
    store, _ = _built(0, [])
    for index, size in enumerate(sizes):
        store.store(b"k%03d" % index, checked(b"x" * size), 1.0)
    lengths = [55 + 1 + 4 + size for size in sizes]
    store.data.flush_batch()
    disk_items = _disk_items(store, 0)
    chunk = disk_items.next_chunk(2**40)
    assert chunk is not None
    disk_items.close()
    first = 0
    while not chunk.is_empty:
        room = data.draw(st.integers(1, 1500))
        most = data.draw(st.integers(1, 1500))
        items = data.draw(st.integers(1, 6))
        taken = chunk.take(room, most, items, 1)
        sent = 0
        allowed = 0
        for length in lengths[first:]:
            fits = sent + length <= most or allowed == 0
            if sent >= room or not fits or allowed == items:
                break
            sent += length
            allowed += 1
        assert (len(taken.data), len(taken.seqnos)) == (sent, allowed)
        first += allowed

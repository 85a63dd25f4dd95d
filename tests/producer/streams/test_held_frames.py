"""Streams hold no frames between two batches, however many streams there are."""

import tracemalloc

import pytest

from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.document_writer import DocumentWriter, checked
from dcp.server.model.resume_rules import Verdict
from dcp.server.model.stream_filter import StreamFilter
from dcp.server.model.versions import Flavour
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.dcp_options import StreamSettings
from dcp.server.vbucket.documents import DocumentStore
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.types import END_OF_TIME
from dcp.wire.framing import FrameSplitter
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype, Status

STREAMS = 40
DOCUMENTS = 400
BATCH_BYTES = 64 * 1024
HELD_BYTES = 6 * 1024
"""Of a stream: itself, its scan, and no tenth of a batch."""


def _store(value: bytes, datatype: int, checkpoint_items: int) -> DocumentWriter:
    settings = ClusterSettings(checkpoint_items=checkpoint_items)
    data = VbucketData(0, MemoryFile(), settings)
    store = DocumentWriter(DocumentStore(data))
    for number in range(DOCUMENTS):
        store.store(b"k%d" % number, checked(value, datatype), 1.0)
    store.data.flush_batch()
    if checkpoint_items == 1:
        store.data.checkpoints.expel()
    return store


def _stream(store: DocumentWriter, number: int) -> ActiveStream:
    settings = StreamSettings(int(Flavour.COLLECTIONS), cursor=f"c{number}")
    verdict = Verdict(Status.SUCCESS, end=END_OF_TIME)
    wanted = StreamFilter(stream_id=number + 1)
    return ActiveStream(store.data, number + 1, verdict, 0, settings, wanted)


@pytest.mark.parametrize("checkpoint_items", [1, 10_000], ids=["disk", "memory"])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_streams_with_ids_hold_no_frames_between_two_batches(
    checkpoint_items: int, is_compressed: bool
) -> None:
    value, datatype = b"x" * 1000, 0
    if is_compressed:
        value, datatype = deflate(value), int(Datatype.SNAPPY)
    store = _store(value, datatype, checkpoint_items)
    seqnos = list(range(1, DOCUMENTS + 1))
    streams = [_stream(store, number) for number in range(STREAMS)]
    streams[0].next_batch(1 << 30, BATCH_BYTES, 1 << 30)  # what is made once for all
    streams[0].next_batch(1 << 30, BATCH_BYTES, 1 << 30)
    tracemalloc.start()
    try:
        batch = None
        before, _ = tracemalloc.get_traced_memory()
        for stream in streams[1:]:
            for _ in range(3):
                batch = stream.next_batch(1 << 30, BATCH_BYTES, 1 << 30)
                assert batch is not None
                assert len(batch.data) <= BATCH_BYTES
        batch = None
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / (STREAMS - 1) < HELD_BYTES
    assert all(0 < stream.sent_seqno < DOCUMENTS for stream in streams)

    found: list[int] = []
    stream = _stream(store, STREAMS)
    while (part := stream.next_batch(1 << 30, BATCH_BYTES, 1 << 30)) is not None:
        assert all(magic == 0x08 for magic in FrameSplitter().feed(bytes(part.data)).magics)
        found += part.seqnos.tolist()
    assert found == seqnos

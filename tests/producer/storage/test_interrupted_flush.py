"""Failures while batches are made ready or written lose none of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.versions import Content, Version
from dcp.server.storage.disk_batch import DiskBatch
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.storage.disk_log import DiskLog
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.storage.saved_vbucket import SavedVbucket
from dcp.server.vbucket import newest_versions
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.system_event import CollectionFlushed
from dcp.wire.vocabulary import Opcode, VbucketState
from tests.producer.disk_items import read_all

COLLECTION = 8
SAVED = SavedVbucket(VbucketState.ACTIVE, FailoverLog((FailoverEntry(1, 0),)))


class _Place(NamedTuple):
    """Something that a flush calls, which may fail."""

    owner: Any
    name: str


PLACES = {
    "an item is encoded": _Place(newest_versions, "stored_item"),
    "the state is encoded": _Place(SavedVbucket, "encode"),
    "the store looks at the batch": _Place(VbucketStore, "begin"),
    "the batch gets its place": _Place(DiskLog, "begin"),
    "the batch is encoded": _Place(DiskBatch, "encode"),
    "the file is written": _Place(MemoryFile, "append"),
}
FAILURES = (ValueError("no such thing"), MemoryError(), OSError("disk full"))


@contextmanager
def _failing(place: str, failure: BaseException, nth: int = 1) -> Iterator[None]:
    """Let the nth call of what stands at a place fail."""
    owner, name = PLACES[place]
    real, left = getattr(owner, name), nth

    def failing(*arguments: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            raise failure
        return real(*arguments, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, failing)
        yield


def _new(file: MemoryFile) -> VbucketData:
    data = VbucketData(0, file, ClusterSettings(), writes_behind=True)
    data.persistence.state.state_at = lambda _: SAVED
    return data


def _write(data: VbucketData, batches: list[list[str]]) -> None:
    for batch in batches:
        for key in batch:
            seqno = data.high_seqno + 1
            if key == "flushed":
                data.append(Version.of_event(0, CollectionFlushed(1, COLLECTION), seqno=seqno))
                continue
            opcode = Opcode.DCP_DELETION if key == "gone" else Opcode.DCP_MUTATION
            content = Content(b"%d" % seqno, opcode=int(opcode))
            named = {"seqno": seqno, "rev": 1, "cas": seqno, "collection": COLLECTION}
            data.append(Version(0, key.encode(), content, **named))
        data.flush_batch()


def _told(data: VbucketData) -> list[object]:
    shown = read_all(data.disk.scan(0))
    return [
        shown,
        data.persistence.unwritten_bytes,
        data.disk.persisted_seqno,
        data.newest.document_counts(),
    ]


@st.composite
def _batches(draw: st.DrawFn) -> list[list[str]]:
    keys = st.sampled_from(["a", "b", "gone", "flushed"])
    return draw(st.lists(st.lists(keys, min_size=1, max_size=4), min_size=1, max_size=5))


@given(
    written=_batches(),
    waiting=_batches(),
    place=st.sampled_from(sorted(PLACES)),
    nth=st.integers(1, 4),
    failure=st.sampled_from(FAILURES),
)
def test_what_waits_goes_on_waiting_and_the_next_try_works(
    written: list[list[str]],
    waiting: list[list[str]],
    place: str,
    nth: int,
    failure: BaseException,
) -> None:
    file, undisturbed = MemoryFile(), _new(MemoryFile())
    data = _new(file)
    for each in (data, undisturbed):
        _write(each, written)
        each.persistence.flush()
        _write(each, waiting)
    before = _told(data)
    with _failing(place, failure, nth):
        try:
            data.persistence.flush()
        except type(failure):
            assert _told(data) == before
    data.persistence.flush()
    undisturbed.persistence.flush()
    assert _told(data) == _told(undisturbed)
    again = _new(file)
    again.reopen(0)
    assert _told(again) == _told(undisturbed)


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_compaction_that_fails_keeps_nothing_from_the_disk(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its failure is, it is given up, and said with a trace where it is none of a disk."""
    data = _new(MemoryFile())
    _write(data, [["a"], ["a"]])
    data.persistence.flush()
    pending = data.persistence.begin_compaction(leaves_nothing=True)
    assert pending is not None
    _write(data, [["b"]])
    with _failing("the batch is encoded", failure), pytest.raises(type(failure)):
        pending.run()
    data.persistence.finish_flush(pending)
    data.persistence.flush()
    assert data.disk.persisted_seqno == 3
    (record,) = caplog.records
    assert "cannot compact the disk log, which stays as it is" in record.getMessage()
    assert (record.exc_info is None) == isinstance(failure, OSError)
    assert data.persistence.begin_compaction(leaves_nothing=True) is not None


def test_a_cut_that_the_disk_refuses_loses_nothing() -> None:
    """What waits above it is still written by the next flush: no hole below the persisted seqno."""
    data = _new(MemoryFile())
    _write(data, [["a"], ["b"]])
    data.persistence.flush()
    _write(data, [["c"]])
    before = _told(data)
    with (
        _failing("the file is written", OSError("disk full")),
        pytest.raises(OSError, match="full"),
    ):
        data.cut(1)
    assert _told(data) == before
    _write(data, [["d"]])
    data.persistence.flush()
    assert data.disk.persisted_seqno == 4
    assert [seqno for seqno, _ in read_all(data.disk.scan(0))] == [1, 2, 3, 4]
    assert data.cut(1) == 1
    assert [seqno for seqno, _ in read_all(data.disk.scan(0))] == [1]

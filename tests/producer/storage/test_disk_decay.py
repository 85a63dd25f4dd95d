"""A disk that damages what it holds while the producer runs: what is read is right, or an error."""

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.writes.document_writer import CheckedValue
from dcp.server.storage.disk_batch import DiskFormatError
from dcp.server.storage.disk_file import MemoryFile, OsFile
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.storage.frame_crcs import RunningCrcs
from dcp.wire import messages as m
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype, EndReason, HelloFeature, Opcode, Status, StreamFlag
from tests.producer.disk_items import frame, item, read_all
from tests.producer.kept_clusters import NEVER, crash_of, flush_all
from tests.producer.raw_client import FEATURES, RawClient

Connect = Callable[..., RawClient]
Open = Callable[..., ProducerCluster]
Found = dict[int, bytes]
DISK_ONLY = int(StreamFlag.DISK_ONLY)


def _written(file: OsFile) -> VbucketStore:
    """Batches of several items, some replaced in the same batch or in a later one."""
    store = VbucketStore(file, 0)
    store.write([item(seqno, size=9) for seqno in (1, 2, 3, 4)], b"state")
    store.write([item(5, 2), item(6, 5), item(8, size=300)], b"")
    store.write([item(9, 3, deleted_at=7), item(10)], b"another")
    return store


def _reopened(file: OsFile) -> VbucketStore:
    _written(file).close()
    return VbucketStore(file, 0)


def _cut(file: OsFile) -> VbucketStore:
    store = _written(file)
    store.cut(5)
    store.write([item(7, 1), item(8)], b"")
    return store


def _compacted(file: OsFile) -> VbucketStore:
    store = _written(file)
    store.compact()
    store.write([item(11, 10), item(12)], b"")
    return store


HISTORIES = [_reopened, _cut, _compacted]


def _by_scan(store: VbucketStore, most_bytes: int, *, each_key_once: bool) -> Found:
    return dict(read_all(store.scan(0, each_key_once=each_key_once), most_bytes))


def _by_seqno(store: VbucketStore, seqnos: Sequence[int]) -> Found:
    """What point reads find, and the frames of a scan in another order; they are the same."""
    found = {seqno: store.read(seqno) or b"" for seqno in seqnos}
    with store.scan(0, each_key_once=True) as scan:
        frames = scan.frames(seqnos)
        bounds = pairwise(frames.ends.tolist())
        assert [bytes(frames.data[start:end]) for start, end in bounds] == list(found.values())
    return found


def _or_error(read: Callable[[], Found]) -> Found | None:
    try:
        return read()
    except OSError as error:
        assert "vb_0.log: the frame of seqno" in str(error)
        return None


@pytest.mark.parametrize("history", HISTORIES)
def test_any_byte_of_a_disk_log_may_change_and_no_wrong_one_is_read(
    history: Callable[[OsFile], VbucketStore], tmp_path: Path
) -> None:
    """And a change of what is read is never passed over, nor written anew by compaction."""
    path = tmp_path / "vb_0.log"
    store = history(OsFile(path))
    whole = path.read_bytes()
    live_seqnos = list(_by_scan(store, 1 << 20, each_key_once=True))[::-1]
    readers: list[Callable[[], Found]] = [
        lambda: _by_scan(store, 1, each_key_once=True),
        lambda: _by_scan(store, 1 << 20, each_key_once=True),
        lambda: _by_scan(store, 1 << 20, each_key_once=False),
        lambda: _by_seqno(store, live_seqnos),
    ]
    right = [read() for read in readers]
    current = {
        place
        for each in right[0].values()
        for place in range(whole.rindex(each), whole.rindex(each) + len(each))
    }
    failed = 0
    for place in range(0, len(whole), 7):  # all bytes of all would take a minute
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        found = [_or_error(read) for read in readers]
        assert all(each in (expected, None) for each, expected in zip(found, right, strict=True))
        is_current = place in current
        assert [found[0] is None, found[1] is None, found[3] is None] == [is_current] * 3
        if is_current:
            failed += 1
            with pytest.raises(OSError, match=f"at byte .*{path.name}|{path.name}.*at"):
                store.compact()
            assert path.read_bytes() == damaged
    assert failed > 3
    path.write_bytes(whole)
    assert [read() for read in readers] == right
    store.compact()
    assert readers[0]() == right[0]


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 30)), st.integers(0, 2**32 - 1))
def test_the_crc_behind_each_frame_does_not_depend_on_the_parts(
    frames: list[bytes], cuts: list[int], begin: int
) -> None:
    crcs = RunningCrcs(np.array([len(each) for each in frames], np.uint64), begin)
    whole, place = b"".join(frames), 0
    for size in [*cuts, len(whole)]:
        crcs.add(whole[place : place + size])
        place += size
    ends = [sum(map(len, frames[: row + 1])) for row in range(len(frames))]
    assert crcs.behind.tolist() == [crc32(whole[:end], begin) for end in ends]


def test_a_disk_log_in_memory_is_read_without_a_check() -> None:
    file = MemoryFile()
    store = VbucketStore(file, 0)
    store.write([item(1), item(2)], b"")
    assert _by_seqno(store, [2, 1]) == {each: frame(item(each)) for each in (1, 2)}
    assert not VbucketStore(file, 0).scan(0, each_key_once=True)._columns.crcs_behind.any()


# --- in a cluster that runs

DAMAGES = {  # counted from the frame's beginning, which is 24 + 31 bytes before the key
    "opcode: a deletion": (1, Opcode.DCP_DELETION),
    "opcode: none": (1, 0x99),
    "key length": (3, 0xFF),
    "datatype": (5, 0x07),
    "key": (24 + 31 + 2, ord("9")),
    "value: its length when it is inflated": (24 + 31 + 4, 0xFF),
}
PLAIN = (HelloFeature.XERROR, HelloFeature.SELECT_BUCKET, HelloFeature.COLLECTIONS)


def _damage(folder: Path, key: bytes, offset: int, byte: int) -> int:
    """Change a byte of a document's frame; return where the frame begins."""
    disk_log = folder / "vb_0.log"
    data = bytearray(disk_log.read_bytes())
    start = data.index(b"\0" + key) - 24 - 31
    assert data[start + offset] != byte
    data[start + offset] = byte
    disk_log.write_bytes(data)
    return start


def _fill(cluster: ProducerCluster) -> None:
    for number in range(10, 50):
        value = deflate(b'{"n":%d}' % number + b" " * 200)
        cluster.set(b"k%d" % number, value, datatype=int(Datatype.SNAPPY))
    flush_all(cluster)


@pytest.mark.parametrize(
    "features", [(*FEATURES, HelloFeature.SNAPPY), PLAIN], ids=["everything", "no snappy"]
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_stream_of_what_is_damaged_ends_and_no_other(
    make_cluster: Open,
    connect: Connect,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    damage: str,
    features: tuple[HelloFeature, ...],
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=NEVER)
    _fill(cluster)
    start = _damage(folder, b"k20", *DAMAGES[damage])
    dcp = connect(cluster).log_in(features).open_dcp()
    assert dcp.request_stream(0, flags=DISK_ONLY).status == Status.SUCCESS
    told = dcp.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert told[-1] == m.StreamEnd(EndReason.BACKFILL_FAILED)
    seqnos = [body.by_seqno for body in told if isinstance(body, m.Mutation)]
    assert seqnos == list(range(1, len(seqnos) + 1))
    assert len(seqnos) + 2 == len(told) <= 12
    expected = f"ends with BACKFILL_FAILED behind seqno {len(seqnos)}: {folder / 'vb_0.log'}: "
    expected += f"the frame of seqno 11 at byte {start} is damaged: found CRC 0x"
    assert expected in caplog.text
    uuid = cluster.failover_log(0).current_uuid
    answer = dcp.request_stream(0, 30, vb_uuid=uuid, flags=DISK_ONLY)
    assert answer.status == Status.SUCCESS
    told = dcp.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert told[-1] == m.StreamEnd(EndReason.OK)
    assert [body.by_seqno for body in told if isinstance(body, m.Mutation)] == list(range(31, 41))


def test_compaction_and_a_restart_refuse_what_is_damaged(open_cluster: Open, folder: Path) -> None:
    cluster = open_cluster(folder)
    _fill(cluster)
    cluster.delete(b"k49")
    flush_all(cluster)
    start = _damage(folder, b"k20", *DAMAGES["key"])
    disk_log = folder / "vb_0.log"
    before = disk_log.read_bytes()
    with pytest.raises(OSError, match=f"vb_0.log: .* seqno 11 at byte {start}"):
        cluster.purge_tombstones(0)
    assert disk_log.read_bytes() == before
    cluster.set(b"later", b"1")
    flush_all(cluster)
    assert cluster.get(b"later").value == b"1"
    with pytest.raises(DiskFormatError, match=r"vb_0\.log: the batch at byte 40 is damaged: found"):
        open_cluster(crash_of(cluster, folder, "crashed"))


def test_going_back_to_what_is_damaged_is_refused_before_anything_is_lost(
    open_cluster: Open, folder: Path
) -> None:
    cluster = open_cluster(folder)
    _fill(cluster)
    data = cluster.bucket.vbuckets[0].data
    _damage(folder, b"k20", *DAMAGES["value: its length when it is inflated"])
    with pytest.raises(OSError, match=r"the frame of seqno 11 .* is damaged"):
        data.cut(30)
    assert data.high_seqno == data.disk.persisted_seqno == 40
    assert cluster.get(b"k20").seqno == 11


@pytest.mark.parametrize("flags", [0, DISK_ONLY], ids=["memory", "disk"])
def test_a_value_that_cannot_be_inflated_ends_its_stream_alone(
    make_cluster: Open,
    connect: Connect,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    flags: int,
) -> None:
    """No client can store it; another cluster may have sent it to a relay, an old log hold it."""
    cluster = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=NEVER)
    with monkeypatch.context() as patched:
        patched.setattr("dcp.producer.cluster.checked", CheckedValue)
        cluster.set(b"k", b"\xff\xff\xff\x0f\xff", datatype=int(Datatype.SNAPPY))
    flush_all(cluster)
    dcp = connect(cluster).log_in(PLAIN).open_dcp()
    assert dcp.request_stream(0, flags=flags).status == Status.SUCCESS
    told = dcp.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert told[-1] == m.StreamEnd(EndReason.BACKFILL_FAILED)
    assert "ends with BACKFILL_FAILED behind seqno 0" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING
    assert dcp.call(m.Empty(), Opcode.NOOP).status == Status.SUCCESS

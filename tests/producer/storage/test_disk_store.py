"""The disk of a vbucket by examples that its model (``test_disk_model.py``) does not have."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dcp.server.storage.disk_batch import DiskFormatError
from dcp.server.storage.disk_file import Data, DiskFile, MemoryFile, OsFile
from dcp.server.storage.disk_store import StoredItem, VbucketStore
from tests.producer.disk_items import (
    frame,
    item,
    items,
    read_all,
    seqnos_of,
    snapshots_of,
    told,
)


@pytest.fixture(params=["disk", "memory"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> DiskFile:
    return OsFile(tmp_path / "0.vb") if request.param == "disk" else MemoryFile()


@pytest.fixture
def store(file: DiskFile) -> VbucketStore:
    return VbucketStore(file, 0)


def write_runs(store: VbucketStore, *bounds: tuple[int, int]) -> None:
    for first, last in bounds:
        store.write(items(range(first, last + 1)), b"state %d" % last)


# --- disk snapshots (DCP concepts document)


def test_a_scan_beyond_the_disk(store: VbucketStore) -> None:
    write_runs(store, (1, 3))
    assert read_all(store.scan(7, each_key_once=True)) == []
    with pytest.raises(ValueError, match="scan to seqno 4, expected at most 3"):
        store.scan(0, each_key_once=True, end_seqno=4)


# --- frames


def test_a_read_returns_about_the_bytes_that_were_asked_for(store: VbucketStore) -> None:
    store.write([item(i, size=100) for i in range(1, 20)], b"")
    store.write([item(20, size=1000), item(21, size=10)], b"")
    scan = store.scan(0, each_key_once=False)
    with scan:
        for most, seqnos in [(1, [1]), (103, [2]), (308, [3, 4]), (309, [5, 6, 7])]:
            frames = scan.read(most)
            assert frames is not None
            assert frames.seqnos.tolist() == seqnos
        frames = scan.read(10**6)
        assert frames is not None
        assert frames.seqnos.tolist() == list(range(8, 22))
        assert scan.read(1) is None
        assert scan.read(1) is None
    with pytest.raises(ValueError, match="scan of seqnos 0 to 21: read after it was closed"):
        scan.read(1)


@pytest.mark.parametrize("size", [1, 40_000, 100_000])
def test_gaps_are_left_out_be_they_small_or_large(store: VbucketStore, size: int) -> None:
    store.write([item(i, size=size) for i in range(1, 9)], b"")
    store.write([item(9, replaces=2), item(10, replaces=3), item(11, replaces=6)], b"s" * size)
    with store.scan(0, each_key_once=True) as scan:
        frames = scan.read(10**7)
    assert frames is not None
    current = [item(i, size=size) for i in (1, 4, 5, 7, 8)] + [item(i) for i in (9, 10, 11)]
    assert bytes(frames.data) == b"".join(frame(i) for i in current)
    assert frames.seqnos.tolist() == [i.seqno for i in current]


def test_a_scan_of_very_many_items(store: VbucketStore) -> None:
    count = 20_000
    store.write(items(range(1, count + 1)), b"")
    replaced = range(1, count - 5, 2)
    store.write([item(count + 1 + i, replaces=old) for i, old in enumerate(replaced)], b"")
    expected = sorted(set(range(1, count + 1 + len(replaced))) - set(replaced))
    assert [s for s, _ in read_all(store.scan(0, each_key_once=True), 10**7)] == expected
    assert [int(s) for frames in store.warm_up() for s in frames.seqnos] == expected


# --- what cannot be written


@pytest.mark.parametrize(
    ("batch", "end", "message"),
    [
        ([item(10)], None, "vbucket 0: found seqno 10, expected more than 10"),
        ([item(12), item(11)], None, "found seqno 11 after 12"),
        ([item(11), item(11)], None, "found seqno 11 after 11"),
        ([item(11), item(12)], 11, "found seqno 12, expected at most snapshot end 11"),
        ([item(2**64 - 1)], None, f"and less than {2**64 - 1}"),
        ([], 9, "found snapshot end 9, expected 10 or more"),
        ([item(11, replaces=2)], None, "seqno 11 replaces seqno 2, expected the newest version"),
        ([item(11, replaces=7)], None, "seqno 11 replaces seqno 7"),
        ([item(11, replaces=11)], None, "seqno 11 replaces seqno 11"),
        ([item(11, replaces=12), item(12)], None, "seqno 11 replaces seqno 12"),
        ([item(11, replaces=3), item(12, replaces=3)], None, "seqno 12 replaces seqno 3"),
        ([item(11, deleted_at=2**32 - 1)], None, "delete time"),
    ],
)
def test_items_that_do_not_follow_are_refused(
    store: VbucketStore, batch: list[StoredItem], end: int | None, message: str
) -> None:
    store.write(items([2, 3]), b"")
    store.write([item(10, replaces=2)], b"")
    before = told(store)
    with pytest.raises(ValueError, match=message):
        store.write(batch, b"never", snapshot_end=end)
    assert told(store) == before


def test_the_first_item_cannot_replace_another(store: VbucketStore) -> None:
    with pytest.raises(ValueError, match="seqno 2 replaces seqno 1"):
        store.write([item(2, replaces=1)], b"")


def test_a_closed_store_is_not_used(store: VbucketStore) -> None:
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: store.write([], b""),
        lambda: store.scan(0, each_key_once=True),
        lambda: store.read(1),
        lambda: store.cut(0),
        store.compact,
    ]
    for use in uses:
        with pytest.raises(ValueError, match="vbucket 0: the store is closed"):
            use()


# --- tombstones


def test_nothing_is_kept_of_keys_that_were_purged(store: VbucketStore) -> None:
    fresh = VbucketStore(MemoryFile(), 0)
    store.write([item(1), item(2, replaces=1, deleted_at=1), item(3)], b"")
    fresh.write([item(3)], b"")
    store.compact(purge_up_to_seqno=2)
    assert store.size_bytes == fresh.size_bytes


@pytest.mark.parametrize(
    ("before", "seqno"), [(0, 1), (10, 1), (11, 3), (20, 3), (21, 3), (30, 3), (31, 6), (2**40, 6)]
)
def test_how_far_tombstones_are_old_enough(store: VbucketStore, before: int, seqno: int) -> None:
    store.write([item(1), item(2, deleted_at=10), item(3, deleted_at=99)], b"")
    store.write([item(4, deleted_at=30), item(5, deleted_at=20), item(6, replaces=3)], b"")
    assert store.purgeable_seqno(before) == seqno


# --- going back


def rewritten(store: VbucketStore) -> None:
    """Keys A: 1, 4, 8; B: 2; C: 3, deleted at 6; D: 5, 7. Disk snapshots 1-3, 4-6, 7-8."""
    store.write(items([1, 2, 3]), b"")
    store.write([item(4, replaces=1), item(5), item(6, replaces=3, deleted_at=9)], b"")
    store.write([item(7, replaces=5), item(8, replaces=4)], b"")


def test_a_cut_at_the_end_or_above_loses_nothing(store: VbucketStore) -> None:
    rewritten(store)
    before = told(store)
    assert [store.cut(8), store.cut(9)] == [8, 8]
    assert told(store) == before


@pytest.mark.parametrize("seqno", [5, 8])
def test_a_cut_may_bring_a_state_of_its_own(
    file: DiskFile, store: VbucketStore, seqno: int
) -> None:
    rewritten(store)
    store.write([], b"old")
    assert store.cut(seqno, state=b"new branch") == seqno
    again = VbucketStore(file, 0)
    assert (again.state, again.persisted_seqno) == (b"new branch", seqno)


def test_an_emptied_store_begins_anew(file: DiskFile, store: VbucketStore) -> None:
    store.write([item(1), item(2, deleted_at=1), item(3, replaces=1)], b"kept")
    store.compact(purge_up_to_seqno=2)
    assert store.cut(1) == 0
    assert (store.purge_seqno, store.state) == (0, b"kept")
    write_runs(store, (1, 2))
    again = VbucketStore(file, 0)
    assert again.cut(1) == 1
    assert seqnos_of(again) == [1]


def test_an_empty_store_has_no_file(file: DiskFile, store: VbucketStore) -> None:
    assert (store.cut(3), store.compact(), file.size_bytes) == (0, 0, 0)
    assert told(store) == (b"", 0, 0, 0, 0, 0, [], [], [])
    assert store.purgeable_seqno(1) == 0


# --- the file


def test_no_descriptor_is_held_but_for_scans_of_a_replaced_file(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- pathlib would open one more

    before = descriptors()
    store = VbucketStore(OsFile(tmp_path / "0.vb"), 0)
    rewritten(store)
    scans = [store.scan(0, each_key_once=False) for _ in range(3)]
    assert descriptors() == before
    store.compact()
    assert descriptors() == before + 1
    for scan in scans:
        assert len(read_all(scan)) == 8
        scan.close()
    assert descriptors() == before


@pytest.mark.parametrize(
    ("place", "byte", "message"),
    [
        (0, b"X", "found magic b'XCPDISK"),
        (8, b"\x01", "found format version 1, expected 4"),
        (16, b"\x07", "found header CRC"),
        (32, b"\0", "found header CRC"),
    ],
)
def test_a_file_that_is_no_disk_log_of_ours_is_an_error(
    tmp_path: Path, place: int, byte: bytes, message: str
) -> None:
    path = tmp_path / "0.vb"
    VbucketStore(OsFile(path), 0).write(items([1]), b"")
    data = path.read_bytes()
    path.write_bytes(data[:place] + byte + data[place + 1 :])
    with pytest.raises(DiskFormatError, match=message):
        VbucketStore(OsFile(path), 0)
    assert path.stat().st_size == len(data)


def test_the_file_of_another_vbucket_is_an_error(file: DiskFile, store: VbucketStore) -> None:
    store.write(items([1]), b"")
    with pytest.raises(DiskFormatError, match="found vbucket 0, expected 1"):
        VbucketStore(file, 1)


def test_reading_beyond_the_end_of_a_file_is_an_error(file: DiskFile, store: VbucketStore) -> None:
    store.write([], b"")
    size = file.size_bytes
    with pytest.raises(OSError, match=f"found {size - 40} bytes at 40, expected {size}"):
        file.read(40, size)


class FullDisk(MemoryFile):
    """A disk that fills up after some parts of what is written."""

    parts_left: int | None = None

    def append(self, offset: int, parts: Iterable[Data]) -> None:
        super().append(offset, self._until_full(parts))

    def replace(self, parts: Iterable[Data]) -> None:
        super().replace(self._until_full(parts))

    def _until_full(self, parts: Iterable[Data]) -> Iterable[Data]:
        for part in parts:
            if self.parts_left == 0:
                raise OSError("disk full")
            if self.parts_left is not None:
                self.parts_left -= 1
            yield part


@pytest.mark.parametrize("parts", range(4))
def test_a_full_disk_leaves_the_store_as_it_was(parts: int) -> None:
    disk = FullDisk()
    store = VbucketStore(disk, 0)
    rewritten(store)
    before = told(store)
    with store.scan(0, each_key_once=False) as scan:
        for operation in (
            lambda: store.write(items([9]), b"x"),
            store.compact,
            lambda: store.cut(4),
        ):
            disk.parts_left = parts
            with pytest.raises(OSError, match="disk full"):
                operation()
            disk.parts_left = None
            assert told(store) == before
        write_runs(store, (9, 12))
        assert store.cut(10) == 10
        store.compact()
        assert len(read_all(scan)) == 8
    again = VbucketStore(disk, 0)
    assert told(again) == told(store)
    assert seqnos_of(again) == [2, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("good_syncs", [0, 1])  # the second one is the folder's
def test_a_compaction_that_fails_leaves_one_file_and_a_store_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good_syncs: int
) -> None:
    file = OsFile(tmp_path / "0.vb")
    store = VbucketStore(file, 0)
    rewritten(store)
    before = told(store)
    syncs = iter([None] * good_syncs)

    def failing(_: int) -> None:
        if next(syncs, "none left"):
            raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="disk full"):
            store.compact()
    assert (told(store) == before) == (good_syncs == 0)
    assert [path.name for path in tmp_path.iterdir()] == ["0.vb"]
    write_runs(store, (9, 12))
    assert seqnos_of(store) == [2, 6, 7, 8, 9, 10, 11, 12]
    assert told(VbucketStore(file, 0)) == told(store)


def test_a_scan_outlives_its_store(file: DiskFile, store: VbucketStore) -> None:
    rewritten(store)
    scan = store.scan(0, each_key_once=False)
    store.close()
    VbucketStore(file, 0).compact()
    assert [seqno for seqno, _ in read_all(scan)] == list(range(1, 9))


# --- several disk snapshots in one batch, and batches that another thread writes


def test_disk_snapshots_of_one_batch_are_apart(file: DiskFile, store: VbucketStore) -> None:
    store.write(items([1]), b"")
    pending = store.begin([*items([2, 3]), item(4, replaces=2)], b"state", [2, 3])
    before = told(store)
    pending.run()
    assert told(store) == before
    pending.finish()
    for each in (store, VbucketStore(file, 0)):
        assert [snapshot.end for snapshot in snapshots_of(each)] == [1, 2, 3, 4]
        assert each.state == b"state"
    assert store.cut(3) == 3
    assert seqnos_of(store) == [1, 2, 3]


@pytest.mark.parametrize("ends", [[1], [3], [4], [2, 2], [3, 2]])
def test_ends_of_disk_snapshots_that_do_not_ascend(store: VbucketStore, ends: list[int]) -> None:
    store.write(items([1]), b"")
    with pytest.raises(ValueError, match=r"found snapshot ends \[.*expected some that ascend"):
        store.begin(items([2, 3]), b"", ends)
    store.write(items([2]), b"")


def test_nothing_else_is_written_while_a_batch_is(store: VbucketStore) -> None:
    store.write(items([1]), b"")
    pending = store.begin(items([2]), b"")
    changes: list[Callable[[], object]] = [
        lambda: store.write([], b""),
        lambda: store.cut(0),
        store.compact,
        lambda: store.begin(items([2]), b""),
    ]
    for change in changes:
        with pytest.raises(ValueError, match="a batch is being written: finish it first"):
            change()
    pending.finish()
    assert seqnos_of(store) == [1, 2]

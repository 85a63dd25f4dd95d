"""The disk of a vbucket after crashes and on bad disks: what was whole is there, nothing else."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dcp.server.storage.disk_batch import FILE_HEADER_BYTES, DiskFormatError
from dcp.server.storage.disk_file import Data, MemoryFile, OsFile
from dcp.server.storage.disk_store import VbucketStore
from tests.producer.disk_items import item, items, seqnos_of, told

Step = Callable[[VbucketStore], object]
STEPS: list[Step] = [
    lambda store: store.write(items([1, 2]), b"first"),
    lambda store: store.write([item(3, replaces=1), item(4, deleted_at=7)], b"second"),
    lambda store: store.write([], b"state only"),
    lambda store: store.cut(3),
    lambda store: store.write([item(4, replaces=2), item(6)], b"", snapshot_end=8),
]
EMPTY = told(VbucketStore(MemoryFile(), 0))


class CrashError(Exception):
    """The process ends here."""


@dataclass(frozen=True)
class WrittenFile:
    """A file and what a store tells that is opened with its first so many bytes."""

    data: bytes
    told_at: dict[int, tuple[object, ...]]


@pytest.fixture(params=[False, True], ids=["as written", "compacted first"])
def disk_log(request: pytest.FixtureRequest, tmp_path: Path) -> WrittenFile:
    path = tmp_path / "written.vb"
    store = VbucketStore(OsFile(path), 0)
    steps = STEPS
    if request.param:
        for step in STEPS[:2]:
            step(store)
        store.compact(purge_up_to_seqno=3)
        steps = [lambda store: store.write([], b"state"), lambda store: store.cut(3), STEPS[-1]]
    else:
        store.write([], b"")
    told_at = {}
    for step in steps:
        step(store)
        told_at[store.size_bytes] = told(store)
    return WrittenFile(path.read_bytes(), told_at)


def in_memory(data: bytes) -> MemoryFile:
    file = MemoryFile()
    file.replace([data])
    return file


def test_a_truncated_disk_log_holds_its_whole_batches(disk_log: WrittenFile) -> None:
    for size in range(min(disk_log.told_at), len(disk_log.data) + 1):
        file = in_memory(disk_log.data[:size])
        store = VbucketStore(file, 0)
        whole = max(end for end in disk_log.told_at if end <= size)
        assert told(store) == disk_log.told_at[whole]
        assert file.size_bytes == whole
        store.write(items([store.persisted_seqno + 1]), b"goes on")
        assert told(VbucketStore(file, 0)) == told(store)


def test_a_flipped_bit_loses_the_last_batch_or_is_refused(disk_log: WrittenFile) -> None:
    ends = sorted(disk_log.told_at)
    for place in range(ends[0], len(disk_log.data)):
        data = bytearray(disk_log.data)
        data[place] ^= 1 << place % 8
        file = in_memory(bytes(data))
        if place < ends[-2]:
            with pytest.raises(DiskFormatError, match="is damaged: found"):
                VbucketStore(file, 0)
            continue
        store = VbucketStore(file, 0)
        whole = max(end for end in ends if end <= place)
        assert told(store) == disk_log.told_at[whole]
        assert file.size_bytes == whole


@pytest.mark.parametrize("size", [1, FILE_HEADER_BYTES - 1])
def test_less_than_a_file_header_is_no_disk_log(tmp_path: Path, size: int) -> None:
    path = tmp_path / "0.vb"
    path.write_bytes(b"\0" * size)
    with pytest.raises(
        DiskFormatError, match=f"found {size} bytes, expected 40 or more: no disk log"
    ):
        VbucketStore(OsFile(path), 0)


def test_a_batch_in_another_place_is_no_batch(tmp_path: Path) -> None:
    """What a disk kept of an earlier file must not be taken for a batch of this one."""
    path = tmp_path / "0.vb"
    store = VbucketStore(OsFile(path), 0)
    STEPS[0](store)
    first = store.size_bytes
    STEPS[2](store)
    expected, data = told(store), path.read_bytes()
    path.write_bytes(data + data[first:])
    assert told(VbucketStore(OsFile(path), 0)) == expected
    assert path.stat().st_size == len(data)
    path.write_bytes(data[:first])
    store = VbucketStore(OsFile(path), 0)
    store.compact()
    compacted = told(store)
    assert store.size_bytes == first
    path.write_bytes(path.read_bytes() + data[first:])  # of the generation before
    assert told(VbucketStore(OsFile(path), 0)) == compacted


class TornFile(MemoryFile):
    """A disk that loses power: of what is written then, some bytes are kept."""

    bytes_left: int | None = None

    def append(self, offset: int, parts: Iterable[Data]) -> None:
        data = b"".join(parts)
        if self.bytes_left is None:
            super().append(offset, [data])
        else:
            super().append(offset, [data[: self.bytes_left]])
            raise CrashError

    def replace(self, parts: Iterable[Data]) -> None:
        data = b"".join(parts)
        if self.bytes_left is not None:
            raise CrashError
        super().replace([data])


@pytest.mark.parametrize("torn", range(len(STEPS)))
def test_what_is_not_synced_is_there_whole_or_not_at_all(torn: int) -> None:
    """And what was synced before is never touched: a step is what it was, or done."""
    kept, is_done = 0, False
    while not is_done:
        disk = TornFile()
        store = VbucketStore(disk, 0)
        for step in STEPS[:torn]:
            step(store)
        before = told(store)
        if not torn:
            store.write([], b"")  # makes the file
            before = told(store)
        disk.bytes_left = kept
        with pytest.raises(CrashError):
            STEPS[torn](store)
        disk.bytes_left = None
        again = VbucketStore(disk, 0)
        if told(again) != before:
            STEPS[torn](store)
            assert told(again) == told(store)
            is_done = True
        kept += 1
    assert kept > FILE_HEADER_BYTES


@dataclass
class Disk:
    """What a process asked of the disk, in order; after ``steps_left`` of it, it crashes."""

    done: list[str]
    steps_left: int = 1000

    def step(self, name: str) -> None:
        if not self.steps_left:
            raise CrashError
        self.steps_left -= 1
        self.done.append(name)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk([])
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 -- as written there
        disk.step(f"sync {path.name} {path.stat().st_size if path.is_file() else ''}".strip())
        fsync(descriptor)

    def watched_replace(path: Path, target: Path) -> Path:
        disk.step(f"rename {path.name} to {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    return disk


def test_everything_is_synced_before_it_is_acknowledged(tmp_path: Path, disk: Disk) -> None:
    store = VbucketStore(OsFile(tmp_path / "0.vb"), 0)

    def replaced(size: int) -> list[str]:
        return [f"sync 0.vb.new {size}", "rename 0.vb.new to 0.vb", f"sync {tmp_path.name}"]

    for number, step in enumerate(STEPS):
        disk.done.clear()
        step(store)
        made = replaced(FILE_HEADER_BYTES) if number == 0 else []
        assert disk.done == [*made, f"sync 0.vb {store.size_bytes}"]
    disk.done.clear()
    store.compact()
    assert disk.done == replaced(store.size_bytes)


@pytest.mark.parametrize("steps", range(4))
def test_a_crash_in_a_compaction_leaves_the_old_disk_log_or_the_new(
    tmp_path: Path, disk: Disk, steps: int
) -> None:
    path = tmp_path / "0.vb"
    store = VbucketStore(OsFile(path), 0)
    for step in STEPS:
        step(store)
    old = told(store)
    with store.scan(0, each_key_once=False):
        disk.steps_left = steps
        if steps < 3:
            with pytest.raises(CrashError):
                store.compact(purge_up_to_seqno=4)
        else:
            store.compact(purge_up_to_seqno=4)
    disk.steps_left = 1000
    again = VbucketStore(OsFile(path), 0)
    assert [found.name for found in tmp_path.iterdir()] == ["0.vb"]
    if steps < 2:
        assert told(again) == old
        again.compact(purge_up_to_seqno=4)
    assert seqnos_of(again, each_key_once=False) == [3, 4, 6]
    assert told(VbucketStore(OsFile(path), 0)) == told(again)


@pytest.mark.parametrize("steps", range(4))
def test_a_crash_while_the_file_is_made(tmp_path: Path, disk: Disk, steps: int) -> None:
    store = VbucketStore(OsFile(tmp_path / "0.vb"), 0)
    disk.steps_left = steps
    with pytest.raises(CrashError):
        STEPS[0](store)
    disk.steps_left = 1000
    again = VbucketStore(OsFile(tmp_path / "0.vb"), 0)
    if again.persisted_seqno == 0:
        STEPS[0](again)
    assert seqnos_of(again) == [1, 2]

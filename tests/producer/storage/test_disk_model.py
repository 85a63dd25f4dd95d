"""The disk of a vbucket against a model that is a list of versions, searched naively."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from dcp.server.storage.disk_file import DiskFile, MemoryFile, OsFile
from dcp.server.storage.disk_ranges import CompactedRanges
from dcp.server.storage.disk_scan import Scan
from dcp.server.storage.disk_store import StoredItem, VbucketStore
from dcp.types import SnapshotRange
from tests.producer.disk_items import frame, item, read_all, snapshots_of

KEYS = range(7)
ENDED_BY = {5: {0, 1, 2}, 6: {2, 3, 4}}
"""Keys of events, and the keys of the documents that each makes an end of."""
PREPARE, COMMIT = 4, 3
"""What has the one key is completed by the next that has the other."""


@dataclass(frozen=True)
class Version:
    seqno: int
    key: int
    frame: bytes
    deleted_at: int | None


@dataclass
class Model:
    """Every version that the store has, by seqno."""

    versions: list[Version] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    compacted: set[int] = field(default_factory=set)
    purge_seqno: int = 0
    state: bytes = b""
    frame_bytes: int = 0

    @property
    def high(self) -> int:
        return self.ends[-1] if self.ends else 0

    def next_of(self, version: Version, end: int) -> Version | None:
        """The version that replaced this one, up to a seqno."""
        key = version.key
        ending = {key, *(event for event, ended in ENDED_BY.items() if key in ended)}
        later = (v for v in self.versions if v.key in ending and version.seqno < v.seqno)
        return next((v for v in later if v.seqno <= end), None)

    def shown(self, after: int, end: int, each_key_once: bool) -> list[tuple[int, bytes]]:
        return [
            (v.seqno, v.frame)
            for v in self.versions
            if after < v.seqno <= end and not (each_key_once and self.next_of(v, end))
        ]

    def cut(self, seqno: int) -> None:
        if seqno in self.compacted or seqno < self.purge_seqno:
            seqno = 0
        if seqno == 0:
            self.compacted, self.purge_seqno = set(), 0
        self.versions = [v for v in self.versions if v.seqno <= seqno]
        self.ends = [end for end in self.ends if end < seqno] + [seqno] * (seqno > 0)
        self.compacted = {each for each in self.compacted if each <= seqno}

    def completion_of(self, version: Version) -> Version | None:
        """What completed a prepare, if this is one and it was."""
        later = (v for v in self.versions if v.key == COMMIT and version.seqno < v.seqno)
        return next(later, None) if version.key == PREPARE else None

    def compact(self, up_to: int) -> int:
        current: list[Version] = []
        purged: list[Version] = []
        for version in self.versions:
            newer = self.next_of(version, self.high)
            if newer:
                self.compacted |= set(range(version.seqno, newer.seqno))
            elif (
                version.deleted_at is not None
                and version.seqno <= up_to
                and version != self.versions[-1]
            ):
                purged.append(version)
            elif done := self.completion_of(version):
                self.compacted |= set(range(version.seqno, done.seqno))
            else:
                current.append(version)
        self.versions, self.ends = current, [self.high] if self.ends else []
        self.purge_seqno = max([self.purge_seqno, *(v.seqno for v in purged)])
        self.frame_bytes = sum(len(v.frame) for v in current)
        return len(purged)


class Driven:
    """A store, its model, and scans that were opened on the way with what they must show."""

    def __init__(self, file: DiskFile, base: int) -> None:
        self.file = file
        self.store = VbucketStore(file, 7)
        self.model = Model()
        self.scans: list[tuple[Scan, list[tuple[int, bytes]]]] = []
        self.newest: dict[int, int] = {}
        self.base = base
        if base:
            self.store.write([], b"", snapshot_end=base)
            self.model.ends = [base]

    def write(self, writes: list[tuple[int, int, int | None]], beyond: int) -> None:
        """Write keys at seqnos so much higher each, with a delete time or none."""
        model, batch, seqno = self.model, list[StoredItem](), self.model.high
        for key, step, deleted_at in writes:
            seqno += step
            # Last seqnos, though they may be of tombstones that were purged.
            ended = {key} | ENDED_BY.get(key, set())
            prepared = self.newest.get(PREPARE, 0) if key == COMMIT else 0
            completes = prepared if prepared > self.newest.get(COMMIT, 0) else 0
            replaces = [self.newest.pop(each) for each in ended & self.newest.keys()]
            stored = item(
                seqno, replaces, completes=completes, deleted_at=deleted_at, size=step * 9
            )
            self.newest[key] = seqno
            batch.append(stored)
            model.versions.append(Version(seqno, key, frame(stored), deleted_at))
            model.frame_bytes += len(frame(stored))
        model.state = b"%d" % (seqno + beyond)
        end = seqno + beyond if beyond else None
        self.store.write(batch, model.state, snapshot_end=end)
        if seqno + beyond > model.high:
            model.ends.append(seqno + beyond)

    def cut(self, back: int) -> None:
        seqno = max(self.model.high - back, 0)
        if seqno < self.model.high:
            self.model.cut(seqno)
            event("cut to 0" if not self.model.high else "cut")
        current = (v for v in self.model.versions if not self.model.next_of(v, seqno))
        self.newest = {v.key: v.seqno for v in current}
        assert self.store.cut(seqno) == self.model.high

    def compact(self, back: int) -> None:
        up_to = max(self.model.high - back, 0)
        before = self.store.size_bytes
        purged = self.store.compact(purge_up_to_seqno=up_to)
        assert purged == self.model.compact(up_to)
        if self.newest.get(PREPARE) not in [v.seqno for v in self.model.versions]:
            self.newest.pop(PREPARE, None)
        assert self.store.size_bytes <= before
        event(f"compacted with {len(self.scans) > 0} scans")

    def open_scan(self, after_back: int, end_back: int | None, each_key_once: bool) -> None:
        high = self.model.high
        after, end = max(high - after_back, 0), max(high - (end_back or 0), 0)
        scan = self.store.scan(
            after, each_key_once=each_key_once, end_seqno=None if end_back is None else end
        )
        shown = self.model.shown(after, end, each_key_once)
        assert (scan.start_seqno, scan.end_seqno) == (after, end)
        assert scan.item_count == len(shown)
        self.scans.append((scan, shown))

    def read_scan(self, which: int, most_bytes: int) -> None:
        if self.scans:
            scan, left = self.scans[which % len(self.scans)]
            frames = scan.read(most_bytes)
            for seqno in [] if frames is None else frames.seqnos.tolist():
                assert left.pop(0)[0] == seqno

    def close_scan(self, which: int) -> None:
        if self.scans:
            scan, left = self.scans.pop(which % len(self.scans))
            assert read_all(scan) == left

    def reopen(self) -> None:
        self.store.close()
        self.store = VbucketStore(self.file, 7)

    def check(self) -> None:
        store, model = self.store, self.model
        current = model.shown(0, model.high, True)
        assert (store.persisted_seqno, store.purge_seqno) == (model.high, model.purge_seqno)
        assert store.history_start_seqno == max([model.purge_seqno, *model.compacted]) + 1
        assert store.state == model.state
        assert store.item_count == len(current)
        assert store.replaced_bytes == model.frame_bytes - sum(len(data) for _, data in current)
        assert store.size_bytes == self.file.size_bytes
        starts = [1, *(end + 1 for end in model.ends)]
        assert snapshots_of(store) == [
            SnapshotRange(start, end) for start, end in zip(starts, model.ends, strict=False)
        ]
        held = {v.seqno: v.frame for v in model.versions}
        for seqno in range(max(model.high - 12, 0), model.high + 2):
            assert store.read(seqno) == held.get(seqno)
        for each_key_once in (False, True):
            shown = model.shown(self.base, model.high, each_key_once)
            assert read_all(store.scan(self.base, each_key_once=each_key_once)) == shown


back = st.integers(0, 30)
writes = st.tuples(
    st.just("write"),
    st.lists(
        st.tuples(st.sampled_from(KEYS), st.integers(1, 3), st.none() | st.integers(0, 2**32 - 2)),
        max_size=8,
    ),
    st.sampled_from([0, 0, 0, 2]),
)
step = st.one_of(
    writes,
    writes,
    st.tuples(st.just("cut"), back),
    st.tuples(st.just("compact"), back),
    st.tuples(st.just("open_scan"), back, st.none() | st.integers(0, 9), st.booleans()),
    st.tuples(st.just("read_scan"), st.integers(0, 5), st.integers(1, 60)),
    st.tuples(st.just("close_scan"), st.integers(0, 5)),
    st.tuples(st.just("reopen")),
)


def drive(file: DiskFile, base: int, steps: list[tuple[str, ...]]) -> None:
    driven = Driven(file, base)
    for name, *arguments in steps:
        getattr(driven, name)(*arguments)
        driven.check()
    driven.reopen()
    driven.check()
    while driven.scans:
        driven.close_scan(0)


ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=6)


@given(ranges, ranges, st.integers(0, 40))
def test_compacted_ranges_are_a_set_of_seqnos(
    first: list[tuple[int, int]], more: list[tuple[int, int]], seqno: int
) -> None:
    compacted, model = CompactedRanges(), set[int]()
    for part in (first, more):
        starts = np.array([start for start, _ in part], np.uint64)
        compacted = compacted.merged(
            starts, starts + np.array([size for _, size in part], np.uint64)
        )
        model |= {at for start, size in part for at in range(start, start + size)}

    def held(ranges: CompactedRanges) -> set[int]:
        return {at for at in range(50) if ranges.covers(at)}

    assert held(compacted) == model
    assert all(compacted.starts[1:] > compacted.ends[:-1])
    if seqno not in model:
        assert held(compacted.cut(seqno)) == {at for at in model if at < seqno}
        assert held(compacted.above(seqno)) == {at for at in model if at > seqno}


bases = st.sampled_from([0, 1000, 2**63])


@given(bases, st.lists(step, min_size=15, max_size=30))
def test_a_store_is_what_a_list_of_versions_is(base: int, steps: list[tuple[str, ...]]) -> None:
    drive(MemoryFile(), base, steps)


@given(bases, st.lists(step, max_size=12))
def test_so_it_is_on_disk(base: int, steps: list[tuple[str, ...]]) -> None:
    with TemporaryDirectory() as folder:
        drive(OsFile(Path(folder) / "7.vb"), base, steps)

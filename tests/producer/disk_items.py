"""Items for the tests of the disk: made from a few words, read back as seqnos and frames."""

from collections.abc import Iterable, Sequence

from dcp.server.storage.disk_scan import Scan
from dcp.server.storage.disk_store import StoredItem, VbucketStore
from dcp.types import SnapshotRange


def item(
    seqno: int,
    replaces: int | Sequence[int] = (),
    *,
    completes: int = 0,
    deleted_at: int | None = None,
    size: int = 0,
) -> StoredItem:
    """A document, or with ``deleted_at`` a tombstone; its frame tells its seqno."""
    value = b"v" * (size or seqno % 7)
    replaced = [replaces] if isinstance(replaces, int) else replaces
    return StoredItem(
        seqno, b"<%d>" % seqno, value, replaced, completes, deleted_at is not None, deleted_at or 0
    )


def items(seqnos: Iterable[int]) -> list[StoredItem]:
    """Documents of keys that none had before."""
    return [item(seqno) for seqno in seqnos]


def frame(stored: StoredItem) -> bytes:
    return stored.head + stored.value


def read_all(scan: Scan, most_bytes: int = 50) -> list[tuple[int, bytes]]:
    """What is left of a scan: seqnos and frames. The scan is closed then."""
    found: list[tuple[int, bytes]] = []
    with scan:
        while (frames := scan.read(most_bytes)) is not None:
            assert frames.ends[0] == 0
            assert frames.ends[-1] == len(frames.data)
            bounds = frames.ends.tolist()
            for seqno, start, end in zip(frames.seqnos.tolist(), bounds, bounds[1:], strict=False):
                found.append((seqno, bytes(frames.data[start:end])))
    return found


def seqnos_of(store: VbucketStore, after: int = 0, *, each_key_once: bool = True) -> list[int]:
    """The seqnos that a scan shows."""
    return [seqno for seqno, _ in read_all(store.scan(after, each_key_once=each_key_once))]


def snapshots_of(store: VbucketStore) -> list[SnapshotRange]:
    """All disk snapshots, in order."""
    found, end = list[SnapshotRange](), store.persisted_seqno
    while end:
        found.append(store.snapshot_at(end))
        assert found[-1].end == end
        end = found[-1].start - 1
    return found[::-1]


def told(store: VbucketStore) -> tuple[object, ...]:
    """Everything that a store says, frames included."""
    return (
        store.state,
        store.persisted_seqno,
        store.purge_seqno,
        store.item_count,
        store.size_bytes,
        store.replaced_bytes,
        snapshots_of(store),
        read_all(store.scan(0, each_key_once=False)),
        read_all(store.scan(0, each_key_once=True)),
    )

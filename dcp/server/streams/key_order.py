"""Reads the items of a disk snapshot in key order, for out-of-order snapshots.

The disk log is in seqno order, so one pass over the scan collects all keys first, in several turns.
They stay in memory while the snapshot is sent. Then frames are read from anywhere, as many at once
as may be sent. Events precede documents, as in kv_engine's index by key
(``docs/dcp/documentation/commands/oso_snapshot.md``).
"""

from collections import deque
from collections.abc import Iterator
from heapq import merge
from typing import Final

from dcp.server.model.key_quota import KeyQuota
from dcp.server.model.stream_filter import StreamFilter
from dcp.server.storage.disk_ranges import U64s
from dcp.server.storage.disk_scan import Scan
from dcp.server.streams.chunks import Chunk, no_frames
from dcp.server.streams.filtered_frames import FilteredKey
from dcp.server.streams.snapshots import TURN_BYTES, DiskItems

_READ_BYTES: Final = 512 * 1024


class KeyOrderItems:
    """The items of a scan that pass the filter, in key order."""

    def __init__(self, scan: Scan, items: DiskItems, quota: KeyQuota) -> None:
        """``items`` has the filter. The scan must be unread."""
        self._quota, self._keys = quota, scan.item_count
        # Nobody knows yet how many keys the filter passes, so all items of the scan count.
        quota.add(self._keys)
        self._scan = scan
        self._items = items
        self._sorted: list[list[FilteredKey]] = []
        self._left: Iterator[FilteredKey] | None = None
        self._put_back: deque[int] = deque()
        self.last_seqno = 0
        """The highest seqno that passes the filter; valid after all keys were read."""

    @property
    def filter(self) -> StreamFilter:
        return self._items.filter

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        """Return about ``most_bytes`` of frames; empty chunks while it reads the keys."""
        if self._left is None:
            self._left = self._read_keys()
            if self._left is None:
                return no_frames()
        seqnos: list[int] = []
        size = 0
        while (not seqnos or size < most_bytes) and (seqno := self._next_seqno()) is not None:
            seqnos.append(seqno)
            size += self._scan.frame_bytes(seqno)
        if not seqnos:
            return None
        return self._items.chunk_of_filtered(self._scan.frames(seqnos))

    def put_back(self, seqnos: U64s) -> None:
        """Let the last items come again, before all others."""
        self._put_back.extendleft(reversed(seqnos.tolist()))

    def _next_seqno(self) -> int | None:
        if self._put_back:
            return self._put_back.popleft()
        passed = next(self._left, None) if self._left is not None else None
        return None if passed is None else passed.seqno

    def _read_keys(self) -> Iterator[FilteredKey] | None:
        """Read one turn's part of the keys; after the last part return all in order, else None."""
        found: list[FilteredKey] = []
        read_bytes = 0
        while read_bytes < TURN_BYTES:
            frames = self._scan.read(_READ_BYTES)
            if frames is None:
                self._hold(sum(map(len, self._sorted)) + len(found))
                return merge(*self._sorted, sorted(found))
            read_bytes += len(frames.data)
            passed = self._items.filtered_keys(frames)
            found += passed
            self.last_seqno = passed[-1].seqno if passed else self.last_seqno
        self._sorted.append(sorted(found))
        return None

    def _hold(self, keys: int) -> None:
        self._quota.add(keys - self._keys)
        self._keys = keys

    def close(self) -> None:
        self._hold(0)
        self._scan.close()

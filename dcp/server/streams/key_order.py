"""Reads the items of a disk snapshot in key order, for out-of-order snapshots.

The log is in seqno order, so one pass over the scan collects all keys first, in several turns. They
stay in memory while the snapshot is sent. Then frames are read from anywhere, as many at once as
may be sent. Events precede documents, as in kv_engine's index by key
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
from dcp.server.streams.shown_frames import ShownKey
from dcp.server.streams.snapshots import TURN_BYTES, DiskItems

_READ_BYTES: Final = 512 * 1024


class KeyOrderItems:
    """The items of a scan that the stream shows, in key order."""

    def __init__(self, scan: Scan, items: DiskItems, quota: KeyQuota) -> None:
        """``items`` decides what is shown. The scan must be unread."""
        self._quota, self._keys = quota, scan.item_count
        # Nobody knows yet how many keys the filter passes, so all items of the scan count.
        quota.add(self._keys)
        self._scan = scan
        self._items = items
        self._sorted: list[list[ShownKey]] = []
        self._left: Iterator[ShownKey] | None = None
        self._put_back: deque[int] = deque()
        self.last_seqno = 0
        """The highest seqno that is shown; valid after all keys were read."""

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
        return self._items.chunk_of_shown(self._scan.frames(seqnos))

    def put_back(self, seqnos: U64s) -> None:
        """Let the last items come again, before all others."""
        self._put_back.extendleft(reversed(seqnos.tolist()))

    def _next_seqno(self) -> int | None:
        if self._put_back:
            return self._put_back.popleft()
        shown = next(self._left, None) if self._left is not None else None
        return None if shown is None else shown.seqno

    def _read_keys(self) -> Iterator[ShownKey] | None:
        """Read one turn's part of the keys; after the last part return all in order, else None."""
        found: list[ShownKey] = []
        read_bytes = 0
        while read_bytes < TURN_BYTES:
            frames = self._scan.read(_READ_BYTES)
            if frames is None:
                self._hold(sum(map(len, self._sorted)) + len(found))
                return merge(*self._sorted, sorted(found))
            read_bytes += len(frames.data)
            shown = self._items.shown_keys(frames)
            found += shown
            self.last_seqno = shown[-1].seqno if shown else self.last_seqno
        self._sorted.append(sorted(found))
        return None

    def _hold(self, keys: int) -> None:
        self._quota.add(keys - self._keys)
        self._keys = keys

    def close(self) -> None:
        self._hold(0)
        self._scan.close()

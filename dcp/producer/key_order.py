"""The items of a disk snapshot in the order of their keys, for out-of-order snapshots.

The log is in seqno order: it is read through once for the keys of what is shown, which are held
while the snapshot is sent, and then a frame at a time. Events come before documents, as they do in
kv_engine's index by key (``docs/dcp/documentation/commands/oso_snapshot.md``).
"""

from typing import Final

from dcp.producer.disk_scan import Scan
from dcp.producer.snapshots import Chunk, DiskItems, chunk_of
from dcp.producer.stored_items import version_of
from dcp.producer.stream_filter import StreamFilter
from dcp.producer.versions import Version

_READ_BYTES: Final = 512 * 1024


class KeyOrderItems:
    """What of a scan is shown, by key. ``filter`` is the one that stands behind all of it."""

    def __init__(self, scan: Scan, items: DiskItems) -> None:
        """``items`` says what is shown of the scan; nothing of that was read yet."""
        self._scan = scan
        self._flavour = items.flavour
        found: list[tuple[bool, bytes, int]] = []
        while (frames := scan.read(_READ_BYTES)) is not None:
            found += [
                (version.event is None, version.key, version.seqno)
                for version in items.shown(frames)
            ]
        found.sort()
        self.filter: StreamFilter = items.filter
        self.last_seqno = max((seqno for _, _, seqno in found), default=0)
        self._seqnos = [seqno for _, _, seqno in found]
        self._next = 0

    def next_chunk(self, most_bytes: int) -> Chunk | None:
        """Read the next frames, until they are ``most_bytes``."""
        versions: list[Version] = []
        size = 0
        while self._next < len(self._seqnos) and (not versions or size < most_bytes):
            frame = self._scan.frame(self._seqnos[self._next])
            versions.append(version_of(frame))
            size += len(frame)
            self._next += 1
        return chunk_of(versions, self._flavour) if versions else None

    def close(self) -> None:
        """Let go of the disk snapshot."""
        self._scan.close()

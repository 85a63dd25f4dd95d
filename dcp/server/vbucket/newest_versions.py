"""The newest version of every key of a vbucket, with values read back from disk."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dcp.server.model.manifest import DEFAULT_ID
from dcp.server.model.versions import Version
from dcp.server.storage.disk_store import StoredItem, VbucketStore
from dcp.server.storage.legacy_end import LegacyEnd
from dcp.server.storage.stored_items import stored_item, version_of
from dcp.server.vbucket.key_index import KeyIndex
from dcp.server.vbucket.stored_version import StoredVersion


class NewestVersions:
    """A ``KeyIndex``, and the values that are only on disk."""

    def __init__(self, vbucket: int, store: VbucketStore, *, keeps_values: bool) -> None:
        """``keeps_values``: keep values in memory after they are on disk."""
        self._vbucket = vbucket
        self._store = store
        self._keeps_values = keeps_values
        self.keys = KeyIndex(keeps_values=keeps_values)

    # --- versions by key

    def of_key(self, key: bytes, collection: int = DEFAULT_ID) -> Version | None:
        return self.keys.newest(key, collection)

    def with_value(self, version: Version) -> Version:
        """Return the version with its value, which may have to be read from disk.

        Raises OSError if the file cannot be read.
        """
        if not isinstance(version, StoredVersion):
            return version
        frame = self._store.read(version.seqno)
        if frame is None:
            raise AssertionError(f"vbucket {self._vbucket}: seqno {version.seqno} is not on disk")
        return version_of(frame)

    def document_counts(self) -> Counter[int]:
        """Return the number of live documents by collection; empty collections are left out."""
        return +self.keys.live

    # --- writes and flushes

    def note(self, version: Version) -> None:
        self.keys.note(version)

    @contextmanager
    def storing(self, versions: Sequence[Version]) -> Iterator[list[StoredItem]]:
        """Yield the disk items of ``versions`` in order; if the block fails, none counts as
        written.
        """
        items: list[StoredItem] = []
        with self.keys.storing(versions):
            for version in versions:
                completes = self.keys.prepare_completed_by(version)
                items.append(stored_item(version, self.keys.stored(version), completes))
            yield items

    # --- cuts and compaction

    def begin_anew(self) -> None:
        """Forget all versions; the caller reads them from disk again (``note_read``)."""
        self.keys = KeyIndex(keeps_values=self._keeps_values)

    def note_read(self, version: Version) -> None:
        self.keys.note_stored(version)

    def forget_compacted(self, persisted_seqno: int) -> None:
        self.keys.forget_tombstones(self._store.purge_seqno)
        self.keys.forget_prepares(
            persisted_seqno, lambda seqno: self._store.count(seqno - 1, seqno) > 0
        )

    def stored_end(self) -> LegacyEnd:
        return LegacyEnd(*self.keys.stored_high_seqnos(DEFAULT_ID))

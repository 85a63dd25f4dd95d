"""Decides when a vbucket's log is compacted, and handles writes that fail.

A batch of items that cannot be written stays begun, and is tried again; a compaction is given up
(``pending_write.py`` has the whole way of both).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from dcp.server.storage.disk_store import StoredItem, VbucketStore
from dcp.server.storage.pending_write import PendingWrite

_LOG = logging.getLogger(__name__)
_LEAST_STALE_BYTES: Final = 8 * 1024 * 1024


class DiskWriter:
    """Writes the log of ``store``."""

    def __init__(self, store: VbucketStore, vbucket: int) -> None:
        self._store = store
        self._vbucket = vbucket
        self._cannot_compact = False
        self.pending: PendingWrite | None = None
        """The write that is begun and not finished."""

    def begin_batch(
        self, items: Sequence[StoredItem], state: bytes, inner_ends: Sequence[int]
    ) -> None:
        """Begin to write items and the state, as ``VbucketStore.begin``; nothing may be pending."""
        self.pending = self._store.begin(items, state, inner_ends)

    def begin_compaction(
        self, purge_before_seconds: int, state: Callable[[], bytes], *, leaves_nothing: bool
    ) -> None:
        """Begin to write the log anew if that pays; nothing may be pending.

        Half of a file that is not small must be no frames that stay: versions that were replaced or
        lost, tombstones that will go (those of the seqnos up to which each was deleted before a
        time), and what surrounds frames in small batches. With ``leaves_nothing`` any such version
        is enough, while no scan reads the file: for a scan that goes on the whole file is kept, so
        then only what pays for that.
        """
        store = self._store
        purged = store.purgeable_seqno(purge_before_seconds)
        goes = store.stale_bytes + store.purgeable_bytes(purged)
        if goes and (self._pays_for(goes) or (leaves_nothing and not store.is_scanned)):
            self.pending = store.begin_compaction(purged, state())
            self._cannot_compact = False

    @property
    def is_mostly_stale(self) -> bool:
        """True if compaction pays, tombstones apart: known without a look at the items.

        Not after one that could not be written: that would be tried with every flush.
        """
        stale = self._store.stale_bytes
        return stale > 0 and self._pays_for(stale) and not self._cannot_compact

    def _pays_for(self, goes_bytes: int) -> bool:
        store = self._store
        least = max(_LEAST_STALE_BYTES, store.size_bytes // 2)
        return goes_bytes + store.overhead_bytes >= least

    def finish(self) -> bool:
        """Wait until what is pending is on disk, or given up; whether the log was written anew.

        Raises:
            OSError: a batch cannot be written; it is still pending.
        """
        if self.pending is None:
            return False
        generation = self._store.generation
        try:
            self.pending.finish()
        except Exception as error:
            if not self.pending.is_optional:
                raise
            text = "vbucket %d: cannot compact, it goes on without: %s"
            is_known = isinstance(error, OSError)
            _LOG.warning(text, self._vbucket, error, exc_info=None if is_known else error)
            self.pending.give_up()
            self._cannot_compact = True
        self.pending = None
        return self._store.generation != generation

    def abandon(self) -> None:
        """Never write what is pending, if that was not done."""
        if self.pending is not None:
            self.pending.abandon()
            self.pending = None

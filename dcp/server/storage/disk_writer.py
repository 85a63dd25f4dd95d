"""Decides when a vbucket's disk log is compacted, and handles failed writes.

A batch of items that failed stays pending for the next attempt; a failed compaction is given up
(see ``pending_write.py``).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from dcp.server.storage.disk_store import StoredItem, VbucketStore
from dcp.server.storage.pending_write import PendingWrite

_LOGGER = logging.getLogger(__name__)
_LEAST_REPLACED_BYTES: Final = 8 * 1024 * 1024
"""Below this a compaction costs more than it saves."""


class DiskWriter:
    def __init__(self, store: VbucketStore, vbucket: int) -> None:
        self._store = store
        self._vbucket = vbucket
        self._cannot_compact = False
        """True after a compaction failed: otherwise every flush would try again."""
        self.pending: PendingWrite | None = None
        """The write that is begun but not finished."""

    def begin_batch(
        self, items: Sequence[StoredItem], state: bytes, inner_ends: Sequence[int]
    ) -> None:
        self.pending = self._store.begin(items, state, inner_ends)

    def begin_compaction(
        self, purge_before_seconds: int, state: Callable[[], bytes], *, leaves_nothing: bool
    ) -> None:
        """Begin a compaction if it pays off; nothing may be pending.

        It pays off if half of a large disk log can go: replaced and lost versions, tombstones
        deleted before ``purge_before_seconds``, and the overhead of small batches. With
        ``leaves_nothing`` one such version is enough, unless a scan is open.
        """
        store = self._store
        purged = store.purgeable_seqno(purge_before_seconds)
        goes = store.replaced_bytes + store.purgeable_bytes(purged)
        # An open scan keeps the whole old file, so a rewrite for a few bytes would only cost space.
        if goes and (self._pays_for(goes) or (leaves_nothing and not store.is_scanned)):
            self.pending = store.begin_compaction(purged, state())
            self._cannot_compact = False

    @property
    def is_mostly_replaced(self) -> bool:
        """True if compaction pays off without purging tombstones; the check reads no items.

        It stays False after a compaction failed, until the next successful start of one.
        """
        replaced = self._store.replaced_bytes
        return replaced > 0 and self._pays_for(replaced) and not self._cannot_compact

    def _pays_for(self, goes_bytes: int) -> bool:
        store = self._store
        least = max(_LEAST_REPLACED_BYTES, store.size_bytes // 2)
        return goes_bytes + store.overhead_bytes >= least

    def finish(self) -> bool:
        """Wait for the pending write; return True if it was a compaction that succeeded.

        Raises OSError if a batch of items cannot be written; it then stays pending.
        """
        if self.pending is None:
            return False
        generation = self._store.generation
        try:
            self.pending.finish()
        except Exception as error:
            if not self.pending.is_optional:
                raise
            text = "vbucket %d: cannot compact the disk log, which stays as it is: %s"
            # A full disk is no fault of the code; any other error is, so log its traceback.
            is_known = isinstance(error, OSError)
            _LOGGER.warning(text, self._vbucket, error, exc_info=None if is_known else error)
            self.pending.give_up()
            self._cannot_compact = True
        self.pending = None
        return self._store.generation != generation

    def abandon(self) -> None:
        if self.pending is not None:
            self.pending.abandon()
            self.pending = None

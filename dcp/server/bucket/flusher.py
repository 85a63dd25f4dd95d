"""Writes vbuckets to disk in the background, sooner when much data is pending.

A batch is prepared and finished under the bucket's lock, but written without, in a thread. Forks,
purges and closing wait for a running write, with the lock held.

A writer far ahead of the disk flushes by itself, which bounds the memory. If the disk fails, writes
are refused (kv_engine ``engines/ep/src/ep_engine.cc``, memoryCondition), and replicas receive at
most a window (``replicator.py``). A disk log that fails blocks only its own vbucket, until much
data waits for such disk logs.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import Final

from dcp.server.bucket.compactor import write_off_lock
from dcp.server.model.listeners import Listeners
from dcp.server.vbucket.vbucket_states import Vbucket

_LOGGER = logging.getLogger(__name__)
HURRY_SHARE: Final = 1 / 32
"""Share of the checkpoint quota whose pending writes start a flush at once."""
MOST_SHARE: Final = 1 / 4
"""Share of the quota at which writers wait for the disk: no pending checkpoint can be freed."""
REFUSED_SHARE: Final = 3 / 8
"""Share of the quota, pending for failing disk logs, at which all writes are refused."""
_LONGEST_RETRY_SECONDS: Final = 1.0


class Flusher:
    """Flushes pending writes to disk; all but ``run`` and ``close`` needs the bucket's lock."""

    def __init__(
        self,
        lock: RLock,
        seconds: float,
        quota_bytes: int,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seconds`` pass between two turns, unless much data is pending.

        ``clock`` returns seconds since 1970.
        """
        self._monotonic = monotonic
        self._clock = clock
        self._lock = lock
        self._seconds = seconds
        self._hurry_bytes = quota_bytes * HURRY_SHARE
        self._most_bytes = quota_bytes * MOST_SHARE
        self._refused_bytes = quota_bytes * REFUSED_SHARE
        self._pending: dict[Vbucket, int] = {}
        self.pending_bytes = 0
        self.on_written: Listeners[[Vbucket]] = Listeners()
        """Called with each vbucket that was written, under the lock, in any thread."""
        self._is_stuck = False
        self._failing: dict[Vbucket, tuple[str, float]] = {}
        """The last error of each vbucket that cannot be written, and the monotonic time of it."""
        self._writing: Vbucket | None = None
        """The vbucket being written in the background; None if it was forgotten meanwhile."""
        self._hurry: Callable[[], object] = lambda: None
        self._thread = ThreadPoolExecutor(1, "dcp-server-disk")

    def note(self, vbucket: Vbucket) -> None:
        """Count the pending bytes of a vbucket again, after a write to memory or to disk."""
        now = vbucket.data.persistence.unwritten_bytes
        self.pending_bytes += now - self._pending.pop(vbucket, 0)
        if now:
            self._pending[vbucket] = now
        self._note_room()

    def forget(self, vbucket: Vbucket) -> None:
        """Write nothing more of a vbucket, and ignore the result of a running write."""
        self.pending_bytes -= self._pending.pop(vbucket, 0)
        self._failing.pop(vbucket, None)
        if self._writing is vbucket:
            self._writing = None
        self._note_room()

    @property
    def failures(self) -> dict[int, str]:
        """Last error of each vbucket that cannot be written, by number."""
        return {vbucket.id: why for vbucket, (why, _) in self._failing.items()}

    @property
    def _broken_pending_bytes(self) -> int:
        return sum(self._pending.get(vbucket, 0) for vbucket in self._failing)

    def _note_room(self) -> None:
        # From here on a refusal is news again, and worth a log line.
        if self._broken_pending_bytes < self._most_bytes:
            self._is_stuck = False

    def keep_up(self) -> None:
        """Start a flush if much is pending; if too much is pending, write it in this call.

        Call it after writes: a failing disk then refuses the next write instead of this one.
        """
        if self.pending_bytes >= self._hurry_bytes:
            self._hurry()
        self.make_room()

    @property
    def has_room(self) -> bool:
        return self.pending_bytes < self._most_bytes

    def make_room(self) -> bool:
        """Write pending data if there is too much; return ``has_room`` afterwards."""
        if not self.has_room:
            for vbucket in list(self._pending):
                self._try(vbucket)
        return self.has_room

    def require_room(self, vbucket: Vbucket) -> None:
        """Make room for a write to ``vbucket``, or refuse the write.

        Raises:
            OSError: too much data waits for failing disk logs; the message is the disk log's error.
        """
        if self.pending_bytes < self._most_bytes:
            return
        self.make_room()
        fails = vbucket in self._failing
        # A vbucket with a healthy disk log is refused later than one whose disk log fails.
        if self._broken_pending_bytes < (self._most_bytes if fails else self._refused_bytes):
            return
        broken = vbucket if fails else next(iter(self._failing))
        why, _ = self._failing[broken]
        if not self._is_stuck:  # one log line for many refused writes
            text = "vbucket %d: cannot write to disk, writes to vbucket %d are refused: %s"
            _LOGGER.warning(text, broken.id, vbucket.id, why)
        self._is_stuck = True
        raise OSError(why)

    def _try(self, vbucket: Vbucket) -> None:
        retry_seconds = min(self._seconds, _LONGEST_RETRY_SECONDS)
        # Every write comes here while the disk fails; a failing disk log is tried only at
        # intervals.
        if vbucket in self._failing:
            _, tried_at = self._failing[vbucket]
            if self._monotonic() - tried_at < retry_seconds:
                return
        try:
            vbucket.data.persistence.flush()
        except OSError as error:
            self._note_outcome(vbucket, error)
            return
        self._note_outcome(vbucket, None)
        self.note(vbucket)
        self.on_written(vbucket)

    async def run(self) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        # Writers in other threads call it, too.
        self._hurry = partial(loop.call_soon_threadsafe, woken.set)
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds):
                        await woken.wait()
                woken.clear()
                with self._lock:
                    pending = list(self._pending)
                for vbucket in pending:
                    await self._write(vbucket)
        finally:
            with self._lock:
                self._hurry = lambda: None

    async def _write(self, vbucket: Vbucket) -> None:
        with self._lock:
            if vbucket not in self._pending:  # another writer flushed it, or it was forgotten
                return
            self._writing = vbucket
        begin_compaction = partial(vbucket.begin_compaction, self._clock(), in_passing=True)
        failure: Exception | None = None
        persistence = vbucket.data.persistence
        try:
            # A disk log that is mostly replaced versions is compacted right after its flush.
            for begin in (persistence.begin_flush, begin_compaction):
                await write_off_lock(begin, persistence, self._lock, self._thread)
        except Exception as error:  # one broken vbucket must not stop the others' writes
            failure = error
        with self._lock:
            if self._writing is vbucket:
                self._note_outcome(vbucket, failure)
            if vbucket in self._pending:
                self.note(vbucket)
                self.on_written(vbucket)

    def _note_outcome(self, vbucket: Vbucket, failure: Exception | None) -> None:
        """Log that a vbucket cannot be written, or can again, once for each change."""
        if failure is None:
            if vbucket in self._failing:
                _LOGGER.warning("vbucket %d: writes reach the disk again", vbucket.id)
            self._failing.pop(vbucket, None)
            return
        if vbucket not in self._failing:
            text = "vbucket %d: cannot write to disk; the flusher tries again: %s"
            is_known = isinstance(failure, OSError)
            _LOGGER.warning(text, vbucket.id, failure, exc_info=None if is_known else failure)
        self._failing[vbucket] = str(failure), self._monotonic()

    def close(self) -> None:
        self._thread.shutdown()

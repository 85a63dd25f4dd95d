"""Writes behind: what vbuckets got goes to disk a little later, many batches of writes in one.

The bucket's lock is held while a write is prepared and when it is done, never while it runs: it
runs in a thread of its own, and streams and commands go on meanwhile. What cannot wait (a fork, a
purge, the end) waits for the write that runs, lock held. So does a writer who is far ahead of the
disk: he writes himself, which is what bounds the memory. Where the disk takes nothing he is
refused before he wrote (kv_engine ``engines/ep/src/ep_engine.cc``, memoryCondition), and copies
receive no more than a window (``replication.py``).
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import Final

from dcp.producer.compactor import write_off_lock
from dcp.producer.vbucket import Vbucket

_LOG = logging.getLogger(__name__)
HURRY_SHARE: Final = 1 / 32
"""Pending writes of so much of the checkpoint quota are written without waiting for their turn."""
MOST_SHARE: Final = 1 / 4
"""With so much of it pending, whoever writes waits for the disk: no checkpoint of it can go."""


class Flusher:
    """What is not on disk yet; all but ``run`` and ``close`` is called with the lock held."""

    def __init__(
        self,
        lock: RLock,
        seconds: float,
        quota_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        """``seconds`` pass between two turns, unless much of the checkpoint quota is pending.

        ``clock`` returns seconds since 1970.
        """
        self._clock = clock
        self._lock = lock
        self._seconds = seconds
        self._hurry_bytes = quota_bytes * HURRY_SHARE
        self._most_bytes = quota_bytes * MOST_SHARE
        self._pending: dict[Vbucket, int] = {}
        self.pending_bytes = 0
        self.on_written: Callable[[Vbucket], object] = lambda _: None
        """Called with what was written, under the lock, in any thread."""
        self._is_stuck = False
        self._failing: dict[Vbucket, str] = {}
        self._writing: Vbucket | None = None
        """What the background writes now, unless it was forgotten meanwhile."""
        self._hurry: Callable[[], object] = lambda: None
        self._thread = ThreadPoolExecutor(1, "dcp-producer-disk")

    def note(self, vbucket: Vbucket) -> None:
        """Look at a vbucket, or a copy, that was written to, or whose batches were written."""
        now = vbucket.data.persistence.unwritten_bytes
        self.pending_bytes += now - self._pending.pop(vbucket, 0)
        if now:
            self._pending[vbucket] = now
        self._note_room()

    def forget(self, vbucket: Vbucket) -> None:
        """Write nothing of it any more; what is being written of it concerns nobody."""
        self.pending_bytes -= self._pending.pop(vbucket, 0)
        self._failing.pop(vbucket, None)
        if self._writing is vbucket:
            self._writing = None
        self._note_room()

    @property
    def failures(self) -> dict[int, str]:
        """What cannot be written when it was last tried, by vbucket, and why."""
        return {vbucket.id: why for vbucket, why in self._failing.items()}

    def _note_room(self) -> None:
        """Say it again when none may write again, whoever made room."""
        if self.pending_bytes < self._most_bytes:
            self._is_stuck = False

    def keep_up(self) -> None:
        """Have much that is pending written now; if it is too much, write it here if that can be.

        To be called after writes: what cannot go to disk then keeps the next one out.
        """
        if self.pending_bytes >= self._hurry_bytes:
            self._hurry()
        self.make_room()

    @property
    def has_room(self) -> bool:
        """Whether little enough is pending for another write."""
        return self.pending_bytes < self._most_bytes

    def make_room(self) -> bool:
        """Do what ``require_room`` does; whether there is room then."""
        with suppress(OSError):
            self.require_room()
            return True
        return False

    def require_room(self) -> None:
        """Write what is pending if it is too much; to be called before a write.

        Raises:
            OSError: a file cannot be written; what is pending stays so.
        """
        if self.pending_bytes < self._most_bytes:
            return
        for vbucket in list(self._pending):
            try:
                vbucket.data.persistence.flush()
            except OSError as error:
                if not self._is_stuck:  # once, not with each write that is refused
                    text = "vbucket %d: cannot write to disk, none may write: %s"
                    _LOG.warning(text, vbucket.id, error)
                self._is_stuck = True
                raise
            self.note(vbucket)
            self.on_written(vbucket)
        self._is_stuck = False

    async def run(self) -> None:
        """Write what is pending, turn after turn, until cancelled."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
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
            if vbucket not in self._pending:  # somebody else wrote it, or it is gone
                return
            self._writing = vbucket
        begin_compaction = partial(vbucket.begin_compaction, self._clock(), in_passing=True)
        failure: Exception | None = None
        persistence = vbucket.data.persistence
        try:
            for begin in (persistence.begin_flush, begin_compaction):
                await write_off_lock(begin, persistence, self._lock, self._thread)
        except Exception as error:  # whatever it is: the others must get to disk
            failure = error
        with self._lock:
            if self._writing is vbucket:
                self._note_outcome(vbucket, failure)
            if vbucket in self._pending:
                self.note(vbucket)
                self.on_written(vbucket)

    def _note_outcome(self, vbucket: Vbucket, failure: Exception | None) -> None:
        """Say of a vbucket that it cannot be written, or can again: once, not with each turn."""
        if failure is None:
            if vbucket in self._failing:
                _LOG.warning("vbucket %d: it is written to disk again", vbucket.id)
            self._failing.pop(vbucket, None)
            return
        if vbucket not in self._failing:
            text = "vbucket %d: cannot write to disk; it is tried again: %s"
            is_known = isinstance(failure, OSError)
            _LOG.warning(text, vbucket.id, failure, exc_info=None if is_known else failure)
        self._failing[vbucket] = str(failure)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown()

"""Schedules the flushes of a bucket's vbuckets: often, or sooner when much is pending.

The bucket's lock is held while a write is prepared and when it is done, never while it runs: it
runs in a thread of its own, and streams and commands go on meanwhile. What cannot wait (a fork, a
purge, the end) waits for the write that runs, lock held. So does a writer who is far ahead of the
disk: it flushes itself, which is what bounds the memory. Where the disk takes nothing it is
refused before it wrote (kv_engine ``engines/ep/src/ep_engine.cc``, memoryCondition), and copies
receive no more than a window (``replication.py``). A log that cannot be written keeps only its own
vbucket's writers out, and copies, as long as no more than that waits for it.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Final

from dcp.server.bucket.compactor import write_off_lock
from dcp.server.model.listeners import Listeners
from dcp.server.vbucket.vbucket import Vbucket

_LOG = logging.getLogger(__name__)
HURRY_SHARE: Final = 1 / 32
"""Pending writes of so much of the checkpoint quota are written without waiting for their turn."""
MOST_SHARE: Final = 1 / 4
"""With so much of it pending, whoever writes waits for the disk: no checkpoint of it can go."""
REFUSED_SHARE: Final = 3 / 8
"""With so much of it pending for logs that cannot be written, none may write, to whatever log."""
_LONGEST_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Failure:
    """The last failure to write a log, and its time in seconds of a monotonic clock."""

    why: str
    tried_at: float


class Flusher:
    """Flushes pending writes to disk. All but ``run`` and ``close`` needs the bucket's lock."""

    def __init__(
        self,
        lock: RLock,
        seconds: float,
        quota_bytes: int,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seconds`` pass between two turns, unless much of the checkpoint quota is pending.

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
        """Told what was written, under the lock, in any thread."""
        self._is_stuck = False
        self._failing: dict[Vbucket, _Failure] = {}
        self._writing: Vbucket | None = None
        """The write in the background, unless it was forgotten meanwhile."""
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
        """The last failure of each vbucket that cannot be written."""
        return {vbucket.id: failure.why for vbucket, failure in self._failing.items()}

    @property
    def _broken_pending_bytes(self) -> int:
        """The bytes that wait for logs that cannot be written."""
        return sum(self._pending.get(vbucket, 0) for vbucket in self._failing)

    def _note_room(self) -> None:
        """Say it again when writes are refused again, whoever made room."""
        if self._broken_pending_bytes < self._most_bytes:
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
        """True if little enough is pending for copies to receive more."""
        return self.pending_bytes < self._most_bytes

    def make_room(self) -> bool:
        """Write what is pending if it is too much, as far as that can be; return ``has_room``."""
        if not self.has_room:
            for vbucket in list(self._pending):
                self._try(vbucket)
        return self.has_room

    def require_room(self, vbucket: Vbucket) -> None:
        """Write what is pending if it is too much; to be called before a write to ``vbucket``.

        Raises:
            OSError: its log cannot be written, and too much waits for such logs, or far too much
                does; what is pending stays so.
        """
        if self.pending_bytes < self._most_bytes:
            return
        self.make_room()
        failure = self._failing.get(vbucket)
        most_bytes = self._refused_bytes if failure is None else self._most_bytes
        if self._broken_pending_bytes < most_bytes:
            return
        broken = vbucket if failure is not None else next(iter(self._failing))
        why = self._failing[broken].why
        if not self._is_stuck:  # once, not with each write that is refused
            text = "vbucket %d: cannot write to disk, writes to vbucket %d are refused: %s"
            _LOG.warning(text, broken.id, vbucket.id, why)
        self._is_stuck = True
        raise OSError(why)

    def _try(self, vbucket: Vbucket) -> None:
        """Write what is pending of a vbucket; now and then only where that failed before."""
        retry_seconds = min(self._seconds, _LONGEST_RETRY_SECONDS)
        before = self._failing.get(vbucket)
        if before is not None and self._monotonic() - before.tried_at < retry_seconds:
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
        self._failing[vbucket] = _Failure(str(failure), self._monotonic())

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown()

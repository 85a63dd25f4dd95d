"""One write to a vbucket's disk log that is under way; a disk log has at most one.

The three kinds differ in what happens if the file cannot be written:

    content                  if the write fails                  begun by
    items and state          stays pending and is tried again,   DiskWriter.begin_batch
                             as the disk has no other copy
    compacted disk log       given up with a warning, as the     DiskWriter.begin_compaction
                             old one has the same items
    state alone              given up; the caller undoes the     Persistence.begin_save
                             change of state

The bucket's lock is held to begin a write, and again for ``finish`` or ``give_up``. In between any
thread may ``run`` it without the lock. The disk log shows nothing before ``finish``, so readers see
only durable data. If nobody needs the data any longer, the write is abandoned.
"""

from collections.abc import Callable
from enum import Enum
from threading import Lock


def _nothing() -> None: ...


class _File(Enum):
    """State of the file."""

    OPEN = "nothing is written, or it failed and may be tried again"
    WRITTEN = "durable"
    FAILED = "not written, and not tried again"
    ABANDONED = "never to be written, nor held if it was"


class PendingWrite:
    """A write that any thread may ``run``; the other methods need the bucket's lock."""

    def __init__(
        self,
        write: Callable[[], None],
        apply: Callable[[], None],
        undo: Callable[[], None] = _nothing,
        *,
        is_optional: bool = False,
    ) -> None:
        """``apply`` updates the disk log after the write; ``undo`` prepares it to go on without."""
        self.is_optional = is_optional
        """True if the write may be given up."""
        self.is_over = False
        """True once the write is finished, given up or abandoned; all calls then do nothing."""
        self._write = write
        self._apply = apply
        self._undo = undo
        self._lock = Lock()
        self._file = _File.OPEN
        self._failure: Exception | None = None

    def run(self) -> None:
        """Write durably, once; a second thread waits for the first.

        Raises OSError if the file cannot be written. A second call tries again, unless the write is
        optional.
        """
        with self._lock:
            if self._file in (_File.WRITTEN, _File.ABANDONED):
                return
            if self._failure is not None:
                raise self._failure
            try:
                self._write()
            except Exception as error:
                if self.is_optional:
                    self._file, self._failure = _File.FAILED, error
                raise
            self._file = _File.WRITTEN

    def finish(self) -> None:
        """``run`` the write if necessary, then update the disk log.

        Raises OSError if the file cannot be written; call this again, or ``give_up``.
        """
        self.run()
        if not self.is_over:
            apply = self._apply
            self._let_go()
            apply()

    def give_up(self) -> None:
        """Continue without a write that failed or never ran.

        Raises OSError if the file cannot be read; call this again.
        """
        if not self.is_over:
            self._undo()
            self._let_go()

    def end(self) -> None:
        """Update the disk log if the write succeeded; else give it up."""
        if self._file is _File.WRITTEN:
            self.finish()
        else:
            self.give_up()

    def complete(self) -> None:
        """``run`` and ``end`` the write in one go.

        Raises OSError if the file cannot be written; the disk log is then unchanged.
        """
        try:
            self.run()
        finally:
            self.end()

    def abandon(self) -> None:
        """End the write without any update of the disk log; wait for a thread that is writing."""
        with self._lock:
            self._file = _File.ABANDONED
            self._let_go()

    def _let_go(self) -> None:
        self.is_over = True
        # A disk log keeps its last write; without this it would keep the batch's memory, too.
        self._write = self._apply = self._undo = _nothing
